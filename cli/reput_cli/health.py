"""`reput health`: ask the broker's health page whether it is ready."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import click

from reput_broker.config.environment import own_variables
from reput_cli.failures import CommandFailed
from reput_protocol.exit_codes import ExitCode


def _default_url() -> str:
    """Return the page of the broker that has these variables, as a container's health check has."""
    variables = own_variables(os.environ)
    modes = (variables.get(name) for name in ("REPUT_TLS__HTTP_MODE", "REPUT_TLS__MODE"))
    mode = next((mode for mode in modes if mode and mode != "auto"), "off")
    # A port that needs TLS would log each check that comes without.
    scheme = "http" if mode == "off" else "https"
    main = variables.get("REPUT_PORT", "")
    port = int(main) + 2 if main.isdigit() and main != "0" else 10913  # the default of http_port
    return f"{scheme}://127.0.0.1:{variables.get('REPUT_HTTP_PORT', port)}/readyz"


@click.command()
@click.option(
    "--url",
    default=_default_url,
    help="Page to fetch; the path defaults to /readyz.  [default: http://127.0.0.1:10913/readyz]",
)
@click.option("-q", "--quiet", is_flag=True, help="Only the exit code.")
def command(url: str, quiet: bool) -> int:
    """Exit with 0 if the broker is ready, 1 if it responds that it is not, 3 if it does not respond.

    A port that needs TLS is requested with https, immediately if REPUT_TLS__MODE or REPUT_TLS__HTTP_MODE says so. Its
    certificate is not checked.
    """
    try:
        if urlsplit(url).path in ("", "/"):
            url = url.rstrip("/") + "/readyz"
        with _fetch(url) as answer:
            if not quiet:
                click.echo(f"ready ({url})")
            return ExitCode.DONE if answer.status == 200 else ExitCode.FAILED
    except urllib.error.HTTPError as error:
        if quiet:
            return ExitCode.FAILED
        raise CommandFailed(f"the broker is not ready ({url})", reason=_failing_checks(error)) from error
    except OSError as error:
        if quiet:
            return ExitCode.CANNOT_CONNECT
        raise CommandFailed(
            f"no response from {url}",
            reason=str(getattr(error, "reason", error)),
            remedy="reput serve, or --url http://HOST:PORT with the port that the broker logs as `http` in "
            "broker_ready (option http_port)",
            code=ExitCode.CANNOT_CONNECT,
        ) from error
    except ValueError as error:
        raise CommandFailed(f"{url!r} is not a URL", reason=str(error), code=ExitCode.USAGE) from error


def _fetch(url: str) -> Any:
    """Return the answer of a page; of the same page with https, if http is refused because the port needs TLS."""
    # A probe sends no secret and trusts an answer no further than an exit code, so it needs no authority.
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        return urllib.request.urlopen(url, timeout=3.0, context=unchecked)
    except urllib.error.HTTPError as error:
        is_for_tls = error.code == 400 and url.startswith("http://")
        if not (is_for_tls and b"needs TLS" in error.read(65_536)):
            raise
    return urllib.request.urlopen(f"https://{url.removeprefix('http://')}", timeout=3.0, context=unchecked)


def _failing_checks(error: urllib.error.HTTPError) -> str:
    try:
        body = json.loads(error.read(65_536))
    except ValueError:
        return f"HTTP {error.code}"
    return json.dumps(body)
