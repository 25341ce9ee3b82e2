"""Options that many commands share, and `Settings`, which holds their values."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_cli.completion import CONTEXT
from reput_cli.context_file import DEFAULT_SERVER, TLS_KEYS, chosen_server
from reput_cli.tls import tls_of, tls_options
from reput_protocol.printable import printable
from reput_protocol.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from reput_client.blocking import Admin
    from reput_client.tls import TLS

_TIMEOUT_S = 5.0
_Command = TypeVar("_Command", bound=Callable[..., Any])


class DurationType(click.ParamType[float]):
    """A duration with its unit, such as `500ms`, `5s` or `1h`; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds. A number without a unit is refused."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType[int]):
    """A number of bytes, such as `1024`, `64KiB` or `1MB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes."""
        text = str(value)
        try:
            return int(text) if text.isascii() and text.isdigit() else parse_size(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ServerType(click.ParamType[str]):
    """`HOST[:PORT]` of a broker, or several joined by commas."""

    name = "server"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text as it is if every address in it is valid."""
        from reput_client.transport.address import parse_addresses

        try:
            parse_addresses(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


DURATION = DurationType()
SIZE = SizeType()


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the shared options, without the user, who is in the environment (`secret`): clients and child
    processes find him there."""

    server: str
    timeout_s: float
    output: str | None
    color: bool
    quiet: bool
    verbosity: int
    yes: bool
    tls: TLS | None = None
    """How to encrypt; None: not at all."""

    def admin(self) -> Admin:
        """Return an admin client of the broker, which connects on `with`."""
        from reput_client.blocking import Admin

        return Admin(self.server, timeout_s=self.timeout_s, tls=self.tls)


broker_option = click.option(
    "--broker",
    "name",
    metavar="NAME",
    help="The master of this broker name, instead of the broker at --server.",
)


def output_options(command: _Command) -> _Command:
    """Add the options about output to a command that connects to no broker; it receives them as `settings`."""

    @_about_output
    @functools.wraps(command)
    def with_settings(output: str | None, no_color: bool, quiet: bool, verbose: int, **arguments: Any) -> Any:
        settings = Settings("", 0.0, output, _has_color(no_color), quiet, verbose, yes=False)
        return command(settings=settings, **arguments)

    return with_settings  # type: ignore[return-value]


def shared_options(command: _Command, offline: Collection[str] = ()) -> _Command:
    """Add the shared options to a command that connects to a broker; it receives them as `settings`.

    Args:
        offline: arguments of the command; with one of them it connects to no broker, and takes no option about that.
    """

    @click.option(
        "--server",
        "servers",
        multiple=True,
        type=ServerType(),
        metavar="HOST[:PORT]",
        help="Address of a broker; the port defaults to 10911. Repeatable.  "
        f"[default: REPUT_SERVER, the context in use, or {DEFAULT_SERVER}]",
    )
    @click.option(
        "--context",
        type=CONTEXT,
        metavar="NAME",
        help="Connect with the settings of this context: reput context list.",
    )
    @click.option(
        "--user",
        metavar="NAME",
        help="Sign the requests as this user.  [default: REPUT_USER, or that of the context]",
    )
    @click.option(
        "--secret-file",
        metavar="FILE",
        help="File with the secret of the user.  [default: REPUT_SECRET_FILE, REPUT_SECRET, that of the context, or "
        "a prompt]",
    )
    @click.option("--timeout", type=DURATION, help="Longest wait for an answer.  [default: 5s]")
    @tls_options
    @_about_output
    @click.option("--yes", is_flag=True, help="Do not ask before dangerous actions.")
    @functools.wraps(command)
    def with_settings(
        servers: tuple[str, ...],
        context: str | None,
        user: str | None,
        secret_file: str | None,
        timeout: float | None,
        output: str | None,
        no_color: bool,
        quiet: bool,
        verbose: int,
        yes: bool,
        **arguments: Any,
    ) -> Any:
        if any(arguments[name] is not None for name in offline):
            of_tls = [arguments.pop(key) for key in TLS_KEYS]
            if any((servers, context, user, secret_file, timeout, *of_tls)):
                raise click.UsageError("a file is edited without a broker: leave out --server and its like")
            settings = Settings("", 0.0, output, _has_color(no_color), quiet, verbose, yes)
            return command(settings=settings, **arguments)
        server, values = chosen_server(servers, context, os.environ)
        of_context = values.get("timeout")
        tls = tls_of({key: arguments.pop(key) for key in TLS_KEYS}, values)
        try:
            ServerType().convert(server, None, None)
            default_s = _TIMEOUT_S if of_context is None else parse_duration(of_context)
        except (click.BadParameter, ValueError) as error:
            where = "REPUT_SERVER" if of_context is None and not context else "the context"
            raise click.UsageError(f"{where} is not valid: {error}") from None
        from reput_cli.secret import put_user_into_environment

        put_user_into_environment(user, secret_file, values)
        settings = Settings(
            server=server,
            timeout_s=default_s if timeout is None else timeout,
            output=output,
            color=_has_color(no_color),
            quiet=quiet,
            verbosity=verbose,
            yes=yes,
            tls=tls,
        )
        return command(settings=settings, **arguments)

    return with_settings  # type: ignore[return-value]


def _about_output(command: _Command) -> _Command:
    options = [
        click.option(
            "-O", "--output", type=click.Choice(["table", "json", "jsonl", "plain"]), help="Output format."
        ),
        click.option("--no-color", is_flag=True, help="No colours."),
        click.option("-q", "--quiet", is_flag=True, help="No progress and no notes."),
        click.option("-v", "--verbose", count=True, help="-vv prints the traceback of an error."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _has_color(no_color: bool) -> bool:
    return not no_color and "NO_COLOR" not in os.environ


def warn_of_unknown_variables() -> None:
    """Name REPUT_ variables that nothing reads on stderr; those of the broker's options are known."""
    from reput_broker.config.environment import OTHER_VARIABLES, own_variables, unknown_variables

    if own_variables(os.environ).keys() <= OTHER_VARIABLES.keys():
        return
    from reput_broker.config.loading import option_variables

    for name, near in unknown_variables(os.environ, option_variables()).items():
        hint = f" Did you mean {near}?" if near else ""
        click.echo(f"warning: the environment variable {printable(name)} is unknown.{hint}", err=True)
