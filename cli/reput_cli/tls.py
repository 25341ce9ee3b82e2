"""The options of TLS that every command has that connects to a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_cli.context_file import TLS_KEYS

if TYPE_CHECKING:
    from reput_client.security import TLS

_Command = TypeVar("_Command", bound=Callable[..., Any])


def tls_options(
    command: _Command, option: Callable[..., Callable[[_Command], _Command]] = click.option
) -> _Command:
    """Add the options; the command receives them as arguments with the names of `context_file.TLS_KEYS`.

    Args:
        option: makes the decorator of one.
    """
    options = [
        option("--tls", is_flag=True, help="Connect with TLS; implied by the other options of TLS."),
        option("--tls-ca", metavar="FILE", help="Authorities to trust, in PEM.  [default: the system's]"),
        option("--tls-cert", metavar="FILE", help="Certificate to present to the broker, in PEM."),
        option("--tls-key", metavar="FILE", help="Its key, if it is not in the same file."),
        option(
            "--tls-server-name", metavar="NAME", help="Name in the broker's certificate, if not its address."
        ),
    ]
    for add in reversed(options):
        command = add(command)
    return command


def tls_of(given: Mapping[str, Any], context: Mapping[str, str]) -> TLS | None:
    """Return how to encrypt; None for not at all.

    Args:
        given: the options; they take precedence.
        context: the values of the context in use.

    Raises:
        click.UsageError: there is a key without a certificate.
    """
    values = {key: given.get(key) or context.get(key) or None for key in TLS_KEYS}
    if values["tls"] == "off":  # of a context
        values["tls"] = None
    if not any(values.values()):
        return None
    from reput_client.security import TLS

    try:
        return TLS(
            ca=values["tls_ca"],
            cert=values["tls_cert"],
            key=values["tls_key"],
            server_name=values["tls_server_name"],
        )
    except ValueError:
        raise click.UsageError("--tls-key is the key of --tls-cert, which is not given") from None
