"""Options that many commands share, and the settings they add up to."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

DEFAULT_SERVER = "127.0.0.1:10911"
_Command = TypeVar("_Command", bound=Callable[..., Any])
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class DurationType(click.ParamType[float]):
    """A length of time with its unit, as `500ms`, `5s`, `1h`; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or refuse a number without a unit."""
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(
                f"{value!r} is no duration: write a number and its unit, such as 500ms, 5s or 1h", param, ctx
            )
        return float(match[1]) * _SECONDS[match[2]]


class SizeType(click.ParamType[int]):
    """A number of bytes, as `1024`, `64KiB` or `1MB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes."""
        match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", str(value))
        if match is None or match[2].upper() not in _SIZE_UNITS:
            self.fail(
                f"{value!r} is no size: write bytes, or a number with KiB, MiB, GiB, KB, MB or GB", param, ctx
            )
        return int(match[1]) * _SIZE_UNITS[match[2].upper()]


class ServerType(click.ParamType[str]):
    """`host:port` of a broker, several with commas; the port may be left out."""

    name = "server"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text, or say what is wrong with it."""
        from reput_client.address import parse_addresses

        try:
            parse_addresses(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


DURATION = DurationType()
SIZE = SizeType()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the shared options say."""

    server: str
    timeout_s: float
    output: str | None
    color: bool
    quiet: bool
    verbosity: int
    yes: bool


def shared_options(command: _Command) -> _Command:
    """Give a command the shared options; it receives them as one `Settings` in its argument `settings`."""

    @click.option(
        "--server",
        "servers",
        multiple=True,
        type=ServerType(),
        metavar="HOST[:PORT]",
        envvar="REPUT_SERVER",
        help=f"Where the broker is, on port 10911 if none is given; repeatable.  [default: {DEFAULT_SERVER}]",
    )
    @click.option(
        "--timeout", type=DURATION, default="5s", show_default=True, help="Longest wait for one answer."
    )
    @click.option(
        "-O", "--output", type=click.Choice(["table", "json", "jsonl", "plain"]), help="Form of the output."
    )
    @click.option("--no-color", is_flag=True, help="No colours, whatever the terminal can do.")
    @click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
    @click.option("-v", "--verbose", count=True, help="More notes; twice: tracebacks of errors.")
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
