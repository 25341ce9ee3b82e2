"""Options that many commands share, and `Settings`, which holds their values."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click
from typing_extensions import override

from reput_cli.completion import CONTEXT, TOPIC
from reput_cli.connection import DEFAULT_SERVER, TLS_KEYS, chosen_server, put_user_into_environment, tls_of
from reput_cli.failures import CommandFailed, Verbosity
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable
from reput_protocol.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from reput_client.blocking import Admin
    from reput_client.security import TLS

_TIMEOUT_S = 5.0
_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
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


class RateType(click.ParamType[float]):
    """A rate such as `100/s`, `30/m` or `1000/h`; the value is in messages per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return messages per second."""
        if isinstance(value, float):
            return value
        match = _RATE.fullmatch(str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is not a rate: write 100/s, 30/m or 1000/h", param, ctx)
        return float(match[1]) / _SECONDS[match[2]]


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
RATE = RateType()


class SharedOption(click.Option):
    """An option of many commands. Their help has one line for all those of a subject; `reput help SUBJECT` lists them.

    Attributes:
        subject: `connection` or `output`.
        line: the line of help, of the first option of a subject; None of the others.
    """

    def __init__(
        self, *arguments: Any, subject: str = "connection", line: tuple[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self.subject, self.line = subject, line

    @override
    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return self.line

    def own_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flags and the help text of this option."""
        return super().get_help_record(ctx)


_connection_option = partial(click.option, cls=SharedOption)
_output_option = partial(click.option, cls=SharedOption, subject="output")
_CONNECTION_LINE = ("--server, --user, --tls, ...", "Where to connect: reput help connection")
_OUTPUT_LINE = ("--json, -q, -v, ...", "Form of the output: reput help output")


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the shared options, without the user, who is in the environment (`connection`): clients and child
    processes find him there."""

    server: str
    timeout_s: float
    output: str | None
    color: bool
    quiet: bool
    yes: bool
    tls: TLS | None = None
    """How to encrypt; None: not at all."""

    def admin(self) -> Admin:
        """Return an admin client of the broker, which connects on `with`."""
        from reput_client.blocking import Admin

        return Admin(self.server, timeout_s=self.timeout_s, tls=self.tls)


broker_option = click.option(
    "--broker", "name", metavar="NAME", help="The master of this broker name, instead of the broker at --server."
)


def added(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds options, which the help lists in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def waiting_message_options(unique_id: str) -> Callable[[_Command], _Command]:
    """Add `--topic`, `--key` and `--count`, which choose among messages that wait in the broker.

    Args:
        unique_id: the command's name for the id of a message, by which `--key` finds it too.
    """
    return added(
        click.option("-t", "--topic", type=TOPIC, help="Only messages for this topic."),
        click.option("-k", "--key", help=f"Only messages with this key or {unique_id}."),
        click.option(
            "-n",
            "--count",
            type=click.IntRange(1, 1_000_000),
            default=100,
            show_default=True,
            help="At most this many.",
        ),
    )


sent_message_options = added(
    click.option("-k", "--key", "keys", multiple=True, help="Key to find the message by; repeatable."),
    click.option("-t", "--tag", help="Tag to filter by."),
    click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property; repeatable."),
)
"""Adds `--key`, `--tag` and `--property` of a message to send; `properties_of` reads the last."""


def tls_options(option: Callable[..., Callable[[Any], Any]] = click.option) -> Callable[[_Command], _Command]:
    """Add the options of TLS; the command receives them as arguments with the names of `TLS_KEYS`.

    Args:
        option: makes the decorator of one.
    """
    return added(
        option("--tls", is_flag=True, help="Connect with TLS; implied by the other options of TLS."),
        option("--tls-ca", metavar="FILE", help="Authorities to trust, in PEM.  [default: the system's]"),
        option("--tls-cert", metavar="FILE", help="Certificate to present to the broker, in PEM."),
        option("--tls-key", metavar="FILE", help="Its key, if it is not in the same file."),
        option("--tls-server-name", metavar="NAME", help="Name in the broker's certificate, if not its address."),
    )


def properties_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the properties in texts `NAME=VALUE`; a text without `=` is refused."""
    properties = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandFailed(f"property {text!r} has no value", remedy="-p NAME=VALUE", code=ExitCode.USAGE)
        properties[name] = value
    return properties


def output_options(command: _Command) -> _Command:
    """Add the options about output to a command that connects to no broker; it receives them as `settings`."""

    @_about_output()
    @functools.wraps(command)
    def with_settings(output: str | None, wants_json: bool, no_color: bool, quiet: bool, **arguments: Any) -> Any:
        settings = Settings("", 0.0, _form(output, wants_json), _has_color(no_color), quiet, yes=False)
        return command(settings=settings, **arguments)

    return with_settings  # type: ignore[return-value]


def shared_options(command: _Command, offline: Collection[str] = (), *, json_flag: bool = True) -> _Command:
    """Add the shared options to a command that connects to a broker; it receives them as `settings`.

    Args:
        offline: arguments of the command; with one of them it connects to no broker, and takes no option about that.
        json_flag: whether `--json` is `-O json`; not if the command has another option of that name.
    """

    @_connection_option(
        "--server",
        "servers",
        line=_CONNECTION_LINE,
        multiple=True,
        type=ServerType(),
        metavar="HOST[:PORT]",
        help="Address of a broker; the port defaults to 10911. Repeatable.  "
        f"[default: REPUT_SERVER, the context in use, or {DEFAULT_SERVER}]",
    )
    @_connection_option(
        "--context", type=CONTEXT, metavar="NAME", help="Connect with the settings of this context: reput context list."
    )
    @_connection_option(
        "--user", metavar="NAME", help="Sign the requests as this user.  [default: REPUT_USER, or that of the context]"
    )
    @_connection_option(
        "--secret-file",
        metavar="FILE",
        help="File with the secret of the user.  [default: REPUT_SECRET_FILE, REPUT_SECRET, that of the context, or "
        "a prompt]",
    )
    @_connection_option("--timeout", type=DURATION, help="Longest wait for a response.  [default: 5s]")
    @tls_options(_connection_option)
    @_about_output(json_flag=json_flag)
    @_output_option("-y", "--yes", is_flag=True, help="Do not ask before dangerous actions.")
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
        yes: bool,
        wants_json: bool = False,
        **arguments: Any,
    ) -> Any:
        form = _form(output, wants_json)
        if any(arguments[name] is not None for name in offline):
            of_tls = [arguments.pop(key) for key in TLS_KEYS]
            if any((servers, context, user, secret_file, timeout, *of_tls)):
                raise click.UsageError("a file is edited without a broker: leave out --server and its like")
            settings = Settings("", 0.0, form, _has_color(no_color), quiet, yes)
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
        put_user_into_environment(user, secret_file, values)
        settings = Settings(
            server=server,
            timeout_s=default_s if timeout is None else timeout,
            output=form,
            color=_has_color(no_color),
            quiet=quiet,
            yes=yes,
            tls=tls,
        )
        return command(settings=settings, **arguments)

    return with_settings  # type: ignore[return-value]


def _about_output(*, json_flag: bool = True) -> Callable[[_Command], _Command]:
    of_json = _output_option("--json", "wants_json", is_flag=True, help="The same as -O json.")
    return added(
        _output_option(
            "-O",
            "--output",
            type=click.Choice(["table", "json", "jsonl", "plain"]),
            line=_OUTPUT_LINE,
            help="Form of the output.  [default: table on a terminal, plain on a pipe]",
        ),
        *([of_json] if json_flag else []),
        _output_option("--no-color", is_flag=True, help="No colours."),
        _output_option("-q", "--quiet", is_flag=True, help="No progress and no notes."),
        _output_option(
            "-v",
            "--verbose",
            count=True,
            callback=_note_verbosity,
            expose_value=False,
            help="-vv prints the traceback of an error.",
        ),
    )


def _form(output: str | None, wants_json: bool) -> str | None:
    """Return the form of --output and --json."""
    if wants_json and output not in (None, "json"):
        raise click.UsageError(f"--json and --output {output} were both given; leave out one")
    return "json" if wants_json else output


def _note_verbosity(context: click.Context, _parameter: click.Parameter, level: int) -> None:
    context.ensure_object(Verbosity).level = level


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


@functools.cache
def every_shared_option() -> tuple[SharedOption, ...]:
    """Return the options that `shared_options` adds, in their order."""

    @click.command()
    @shared_options
    def connects(**_values: Any) -> None: ...

    return tuple(option for option in connects.params if isinstance(option, SharedOption))
