"""`reput context ...`: named connection profiles."""

from __future__ import annotations

import os
from typing import Any

import click

from reput_cli.completion import CONTEXT
from reput_cli.connection import load_contexts, save_contexts, tls_of
from reput_cli.failures import CommandFailed
from reput_cli.options import ServerType, Settings, output_options, tls_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode
from reput_protocol.quantities import parse_duration


@click.group()
def command() -> None:
    """Name connections, and choose the one that commands use.

    A command connects to its --server; without it to the server of --context, of REPUT_SERVER, of REPUT_CONTEXT, or of
    the context in use, in this order.
    """


@command.command()
@click.argument("name")
@click.option("--server", required=True, type=ServerType(), metavar="HOST[:PORT]", help="Brokers, joined by commas.")
@click.option("--timeout", metavar="DURATION", help="Longest wait for a response, such as 10s.")
@click.option("--user", metavar="NAME", help="Sign the requests as this user.")
@click.option("--secret-file", metavar="FILE", help="File with the secret of the user.")
@tls_options()
@output_options
def add(
    settings: Settings,
    name: str,
    server: str,
    timeout: str | None,
    user: str | None,
    secret_file: str | None,
    **tls: Any,
) -> int:
    """Add the context NAME, or replace it. The first one becomes the current one."""
    values = {"server": server}
    if (user is None) != (secret_file is None):
        raise CommandFailed(
            "a user needs a secret, and a secret a user", remedy="--user NAME --secret-file FILE", code=ExitCode.USAGE
        )
    if user is not None and secret_file is not None:
        values |= {"user": user, "secret_file": os.path.abspath(secret_file)}
    if timeout is not None:
        try:
            parse_duration(timeout)
        except ValueError as error:
            raise CommandFailed(str(error), remedy="--timeout 10s", code=ExitCode.USAGE) from error
        values["timeout"] = timeout
    tls_of(tls, {})  # refuses what does not fit together
    for key, value in tls.items():
        if value:
            # Files as the commands find them from any directory.
            values[key] = "on" if value is True else value if key == "tls_server_name" else os.path.abspath(value)
    known = load_contexts()
    known.contexts[name] = values
    if len(known.contexts) == 1:
        known.current = name
    save_contexts(known)
    Printer(settings).note(f"context {name}: {server}" + (", in use" if known.current == name else ""))
    return ExitCode.DONE


@command.command()
@click.argument("name", type=CONTEXT)
@output_options
def use(settings: Settings, name: str) -> int:
    """Use the context NAME from now on."""
    known = load_contexts()
    server = known.get(name).get("server", "")
    known.current = name
    save_contexts(known)
    Printer(settings).note(f"context {name} is in use: {server}")
    return ExitCode.DONE


@command.command(name="list")
@output_options
def list_contexts(settings: Settings) -> int:
    """List the contexts."""
    known = load_contexts()
    Printer(settings).rows(
        ["context", "in_use", "server", "timeout", "user"],
        [
            (name, name == known.current, values.get("server"), values.get("timeout"), values.get("user"))
            for name, values in sorted(known.contexts.items())
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("name", required=False, type=CONTEXT)
@output_options
def show(settings: Settings, name: str | None) -> int:
    """Show one context; without NAME, the one in use."""
    known = load_contexts()
    chosen = name or known.current
    if chosen is None:
        raise CommandFailed("no context is in use", remedy="reput context use NAME", code=ExitCode.NOT_FOUND)
    Printer(settings).fields({"context": chosen, "in_use": chosen == known.current, **known.get(chosen)})
    return ExitCode.DONE


@command.command()
@click.argument("name", type=CONTEXT)
@output_options
def remove(settings: Settings, name: str) -> int:
    """Remove the context NAME; removing one that does not exist changes nothing."""
    known = load_contexts()
    printer = Printer(settings)
    if known.contexts.pop(name, None) is None:
        printer.note(f"there is no context {name}")
        return ExitCode.DONE
    if known.current == name:
        known.current = None
    save_contexts(known)
    printer.note(f"context {name} removed")
    return ExitCode.DONE
