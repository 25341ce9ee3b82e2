"""Arguments that select messages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from reput_client.positions import Position
from reput_pipeline.jobs.command_line import pairs_of
from reput_pipeline.jobs.outcomes import ArgumentError
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.spark.option_reader import SOURCE_OPTIONS, check_names

_Function = TypeVar("_Function", bound=Callable[..., Any])
DEFAULT_SERVER = "127.0.0.1:10911"
APPLICATION_TOPICS = "(?!%).*"
"""Topics of applications, the default."""


class StoreTimeType(click.ParamType[int]):
    """A time in RFC 3339, an age such as `-15m`, or ms since 1970; the value is in ms since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time; other text is rejected with the valid forms."""
        text = str(value)
        if text.isdecimal():
            return int(text)
        time_ms = Position.parse_time(text)
        if time_ms is None:
            raise click.BadParameter(
                f"{text!r} is not a time: write 2026-01-02T03:04:05Z, -15m for 15 minutes ago, or ms since 1970",
                ctx,
                param,
            )
        return time_ms


STORE_TIME = StoreTimeType()


def source_arguments(function: _Function) -> _Function:
    """Add the arguments, which the job receives as `source`, options of the Spark source."""

    @click.option("--server", metavar="HOST:PORT", help="Read from the brokers behind this address.")
    @click.option("--path", metavar="DIR", help="Read a store directory, Reput's or RocketMQ's.")
    @click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="A topic to read; repeatable.")
    @click.option(
        "--topics",
        "pattern",
        metavar="REGEX",
        help="Read the topics whose whole name matches.  [default: all but system topics]",
    )
    @click.option("--tag", "tags", metavar="EXPR", help="Only messages with these tags, such as 'a || b'.")
    @click.option(
        "--since",
        type=STORE_TIME,
        metavar="TIME",
        help="From this store time on: 2026-01-02T03:04:05Z, -15m for 15 minutes ago, or ms since 1970.",
    )
    @click.option("--until", type=STORE_TIME, metavar="TIME", help="Before this store time.")
    @click.option(
        "-o",
        "--option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any option of the Spark source; repeatable.",
    )
    @functools.wraps(function)
    def with_source(
        *given: Any,
        server: str | None,
        path: str | None,
        topics: tuple[str, ...],
        pattern: str | None,
        tags: str | None,
        since: int | None,
        until: int | None,
        options: tuple[str, ...],
        **arguments: Any,
    ) -> Any:
        source = pairs_of(options, "--option")
        proper = check_names(source, SOURCE_OPTIONS)
        if since is not None and until is not None and until <= since:
            raise ArgumentError("--until", f"{until} is not after --since {since}")
        if topics and pattern is not None:
            raise ArgumentError("--topics", "contradicts --topic; give one of them")
        for name, value in (
            ("nameServer", server),
            ("path", path),
            ("subscribe", ",".join(topics) or None),
            ("subscribePattern", pattern),
            ("subExpression", tags),
            ("startingTimestamp", since),
            ("endingTimestamp", until),
        ):
            if value is not None:
                if name in proper:
                    raise ArgumentError("--option", f"{name} is given by an argument as well")
                source[name] = str(value)
        names = set(proper) | set(source)
        if not names & {"subscribe", "subscribePattern", "assign"}:
            source["subscribePattern"] = APPLICATION_TOPICS
        if since is not None and "startingOffsetsByTimestampStrategy" not in names:
            source["startingOffsetsByTimestampStrategy"] = "latest"
        return function(*given, source=source, **arguments)

    return with_source  # type: ignore[return-value]


def checked_source(source: dict[str, str]) -> SourceOptions:
    """Parse the options of the source, for a batch.

    Raises:
        OptionError: one is invalid.
    """
    return parse_source_options(source, streaming=False)
