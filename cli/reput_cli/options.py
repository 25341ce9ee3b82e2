"""Options that many commands share, and `Settings`, which holds their values."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_protocol.units import parse_duration, parse_size

if TYPE_CHECKING:
    from reput_client.blocking import Admin

DEFAULT_SERVER = "127.0.0.1:10911"
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
    """The values of the shared options."""

    server: str
    timeout_s: float
    output: str | None
    color: bool
    quiet: bool
    verbosity: int
    yes: bool

    def admin(self) -> Admin:
        """Return an admin client of the broker, which connects on `with`."""
        from reput_client.blocking import Admin

        return Admin(self.server, timeout_s=self.timeout_s)


def shared_options(command: _Command) -> _Command:
    """Add the shared options to a command, which receives them as `settings`."""

    @click.option(
        "--server",
        "servers",
        multiple=True,
        type=ServerType(),
        metavar="HOST[:PORT]",
        envvar="REPUT_SERVER",
        help=f"Address of a broker; the port defaults to 10911. Repeatable.  [default: {DEFAULT_SERVER}]",
    )
    @click.option(
        "--timeout", type=DURATION, default="5s", show_default=True, help="Longest wait for an answer."
    )
    @click.option(
        "-O", "--output", type=click.Choice(["table", "json", "jsonl", "plain"]), help="Output format."
    )
    @click.option("--no-color", is_flag=True, help="No colours.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
    @click.option("-v", "--verbose", count=True, help="-vv prints the traceback of an error.")
    @click.option("--yes", is_flag=True, help="Do not ask before dangerous actions.")
    @functools.wraps(command)
    def with_settings(
        servers: tuple[str, ...],
        timeout: float,
        output: str | None,
        no_color: bool,
        quiet: bool,
        verbose: int,
        yes: bool,
        **arguments: Any,
    ) -> Any:
        settings = Settings(
            server=",".join(servers) or DEFAULT_SERVER,
            timeout_s=timeout,
            output=output,
            color=not no_color and "NO_COLOR" not in os.environ,
            quiet=quiet,
            verbosity=verbose,
            yes=yes,
        )
        return command(settings=settings, **arguments)

    return with_settings  # type: ignore[return-value]
