"""The messages of a job: the arguments that select them, and messages from brokers, a store directory or an archive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_client.positions import Position
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.read import read_archive
from reput_pipeline.jobs.directories import ARCHIVE_PLACE
from reput_pipeline.jobs.run import ArgumentError, JobRun, pairs_of
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.spark.errors import NoSuchTopic
from reput_pipeline.spark.option_reader import SOURCE_OPTIONS, check_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Function = TypeVar("_Function", bound=Callable[..., Any])
_ARCHIVE_KNOWS = frozenset(
    (
        "subscribe",
        "subscribePattern",
        "includeSystemTopics",
        "subExpression",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestampStrategy",
    )
)
_NOWHERE = "reput-archive"
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


@dataclass(frozen=True)
class Messages:
    """The messages that a job reads."""

    source: Mapping[str, str]
    """Options of the source; for an archive, those that select messages."""
    archive: Path | None
    options: SourceOptions
    """The same, parsed; an archive's place is never opened."""

    @property
    def where(self) -> str:
        """The broker or directory, for texts."""
        return str(self.archive) if self.archive is not None else self.options.where

    def frame(self, run: JobRun, columns: Sequence[str]) -> DataFrame:
        """Return some columns of the messages.

        Raises:
            NotAnArchive: the directory is not an archive.
            NoSuchTopic: see `check_topics`.
        """
        if self.archive is None:
            return run.source(self.source, columns)
        from pyspark.sql import functions

        self.check_topics()
        options = self.options
        frame = read_archive(run.spark, self.archive)
        if options.pattern is not None:
            frame = frame.where(functions.col("topic").rlike(f"^(?:{options.pattern})$"))
        else:
            frame = frame.where(functions.col("topic").isin(list(options.topics)))
        if not options.tag_filter.matches_all:
            frame = frame.where(functions.col("tags").isin(sorted(options.tag_filter.tags)))
        for when, sign in ((options.start.timestamp_ms, ">="), (options.end.timestamp_ms, "<")):
            if when is not None:
                frame = frame.where(f"storeTimestamp {sign} timestamp_millis({when})")
        return frame.select(*columns)

    def check_topics(self) -> None:
        """Check that an archive has the named topics, as the source does.

        Raises:
            NoSuchTopic: it lacks one.
        """
        if self.archive is None or self.options.pattern is not None:
            return
        known = {file.topic for file in ArchiveDirectory(self.archive).files()}
        for topic in self.options.topics:
            if topic not in known:
                raise NoSuchTopic(f"topic {topic!r}", str(self.archive))


def messages_arguments(function: _Function) -> _Function:
    """Add the arguments, which the job receives as `messages`."""

    @click.option(
        "--archive", type=ARCHIVE_PLACE, metavar="DIR", help="Read an archive that the job archive has written."
    )
    @source_arguments
    @functools.wraps(function)
    def with_messages(*given: Any, archive: Path | None, source: dict[str, str], **arguments: Any) -> Any:
        if archive is None:
            messages = Messages(source, None, checked_source(source))
        else:
            for name in source:
                if name not in _ARCHIVE_KNOWS:
                    argument = {"nameServer": "--server", "path": "--path"}.get(name, f"--option {name}")
                    raise ArgumentError(argument, "contradicts --archive")
            archive = archive.absolute()
            ArchiveDirectory(archive).existing()
            messages = Messages(source, archive, checked_source({**source, "path": _NOWHERE}))
        return function(*given, messages=messages, **arguments)

    return with_messages  # type: ignore[return-value]
