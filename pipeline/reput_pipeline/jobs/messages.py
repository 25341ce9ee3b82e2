"""Messages for jobs that only read: from brokers, a store directory or an archive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.read import read_archive
from reput_pipeline.jobs.arguments import checked_source, source_arguments
from reput_pipeline.jobs.directories import ARCHIVE_PLACE
from reput_pipeline.jobs.outcomes import ArgumentError
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.spark.errors import NoSuchTopic

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
        "--archive",
        type=ARCHIVE_PLACE,
        metavar="DIR",
        help="Read an archive that the job archive has written.",
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
