"""What the copying of topics needs of a table, whatever its format: its progress, and the sources of its topics.

A source is where messages are from: elsewhere the same offsets are other messages.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from reput_client.arrow.queues import Generations, QueueKey, TopicKey
from reput_client.arrow.urls import directory_of, is_remote, without_secret
from reput_client.transport.address import Address, parse_address
from reput_pipeline.archives.batches import addresses_of
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import Catalog
from reput_protocol.errors import ReputError

LIBRARIES: Final = {"delta": "deltalake", "iceberg": "pyiceberg"}
"""The library of each format, which the extra of the format's name installs."""
Sources: TypeAlias = Mapping[TopicKey, str]
"""Where topics are from: the addresses of their broker, or a store directory.

The broker is empty for a directory that was not counted as a broker's.
"""


class OtherSource(ReputError):
    """An archive or a table has messages of another place."""

    def __init__(self, where: str, found: str, now: str, remedy: str = "") -> None:
        super().__init__(f"{where} is of {found}, not of {now}; name another directory{remedy}")


SAME_SOURCE = ", or, if that is the same place under another address, give --same-source"
"""What helps if a source may have got another address."""


def place_of(path: str) -> str:
    """Return the place of a store directory: its absolute path, or its URL without secrets."""
    if is_remote(path):
        return without_secret(path).partition("?")[0].rstrip("/")
    return str(directory_of(path).absolute())


def is_directory(place: str) -> bool:
    """Tell whether a place is a store directory, and not brokers: `broker.example:10911` is no URL."""
    return place.startswith("/") or ":/" in place


def is_same_source(before: str, now: str) -> bool:
    """Whether two sources are the same: a directory, or brokers of the same names.

    Each broker must have an address in common. The others may differ, since after a failover a member of the group may
    be away.
    """
    if before == now or is_directory(before) or is_directory(now):
        return before == now
    there, here = _brokers_in(before), _brokers_in(now)
    return there.keys() == here.keys() and all(there[name] & here[name] for name in there)


def _brokers_in(source: str) -> dict[str, set[Address]]:
    parts = (part.partition(" at ") for part in re.split(r", (?=\S+ at )", source))
    return {name: set(_addresses_in(text)) for name, _, text in parts}


def _addresses_in(text: str) -> Iterator[Address]:
    """Yield addresses between spaces; earlier versions also wrote them as `nameServer` was given."""
    for part in re.split(r"[\s,;]+", text):
        if part:
            yield parse_address(part)


def sources_of(
    catalog: Catalog, options: SourceOptions, queues: Iterable[QueueKey], as_broker: str
) -> dict[TopicKey, str]:
    """Return the sources of the topics of queues.

    Args:
        catalog: the brokers or the directory.
        options: of the source.
        queues: to be copied.
        as_broker: the broker of the directory; empty if it is not given, or for brokers.
    """
    if options.path is not None:
        return dict.fromkeys(((queue.topic, as_broker) for queue in queues), place_of(options.path))
    addresses = addresses_of(catalog)
    return {(queue.topic, queue.broker): addresses[queue.broker] for queue in queues if queue.broker in addresses}


def check_source(
    where: str, known: Sources, key: TopicKey, place: str, *, is_same_topic: bool, same_source: bool
) -> None:
    """Check that a table may continue a topic with the messages of a place.

    A table from before sources were noted has none, and may continue; the next commit with messages of the topic
    stores it.

    Args:
        where: the table, for the error.
        known: its sources.
        key: the topic and its broker.
        place: where it is read now.
        is_same_topic: whether the topic's generation is the table's: then brokers may have other addresses.
        same_source: whether a place that looks different is the same one.

    Raises:
        OtherSource: it has the topic's messages of another place, or every queue would count as new.
    """
    topic, broker = key
    found = {other: at for (of, other), at in known.items() if of == topic}
    before = found.get(broker)
    if not found or before == place:
        return
    texts = (
        f"topic {topic} in {where}",
        ", ".join(_named(other, at) for other, at in sorted(found.items())),
        _named(broker, place),
    )
    if before is None:
        if ("" in found) != (broker == ""):
            # A directory has no broker name: every queue would count as new.
            named = "" if broker else f", or, if that is the directory of {' or '.join(found)}, give --as-broker"
            raise OtherSource(*texts, named)
        return
    if same_source or (broker and is_directory(before) != is_directory(place)):
        return  # --as-broker says whose directory it is
    is_broker = not is_directory(place)
    if is_broker and (is_same_topic or is_same_source(_named(broker, before), _named(broker, place))):
        return
    raise OtherSource(*texts, SAME_SOURCE)


def encode_sources(sources: Sources) -> dict[str, dict[str, str]]:
    """Return sources by topic and broker, for JSON."""
    topics: dict[str, dict[str, str]] = {}
    for (topic, broker), place in sorted(sources.items()):
        topics.setdefault(topic, {})[broker] = place
    return topics


def decode_sources(data: Mapping[str, Mapping[str, str]]) -> dict[TopicKey, str]:
    """Return the sources that `encode_sources` has encoded."""
    return {(topic, broker): place for topic, brokers in data.items() for broker, place in brokers.items()}


def _named(broker: str, place: str) -> str:
    return f"{broker} at {place}" if broker else place


class TableError(ReputError):
    """A table cannot be written as requested; what was committed stays."""


class LibraryMissing(TableError):
    """The library of a format is not installed."""

    def __init__(self, table_format: str) -> None:
        super().__init__(
            f"--format {table_format} needs {LIBRARIES[table_format]}, which is not installed: "
            f"pip install ./client '.[{table_format}]' in the directory of Reput's source"
        )


class TableUnreachable(TableError):
    """A table or its catalog cannot be opened."""

    def __init__(self, where: str, reason: object) -> None:
        super().__init__(f"the table {where} cannot be opened: {one_line(reason)}")


class SchemaMismatch(TableError):
    """The columns of a table are not those of the messages."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the table {where} cannot take the messages: {reason}")


class OtherPartitions(TableError):
    """A table exists, with other partitions than those requested."""

    def __init__(self, where: str, columns: Sequence[str], requested: Sequence[str]) -> None:
        super().__init__(
            f"the table {where} is partitioned by {','.join(columns) or 'nothing'}, not by {','.join(requested)}; "
            "name no columns, or another table"
        )


class ProgressMoved(TableError):
    """Another job has committed messages of the same queues."""

    def __init__(self, where: str, queue: QueueKey, expected: int | None, found: int | None) -> None:
        super().__init__(
            f"another job writes to the table {where}: queue {queue} was committed up to "
            f"{'its start' if expected is None else expected}, and now is up to "
            f"{'its start' if found is None else found}; no message is there twice or missing, but only one job may "
            "continue: end this one or the other"
        )


class RowRejected(TableError):
    """A message, or a row of a stream, cannot be a row of a table."""

    def __init__(self, where: str, what: str, reason: str) -> None:
        super().__init__(f"the table {where} cannot take {what}: {reason}")


class TableChanged(Exception):
    """A commit was rejected because of another one; nothing was committed. Load the table and try again."""


class Progress(NamedTuple):
    """What a table holds."""

    ends: Mapping[QueueKey, int]
    """The next message of each queue."""
    generations: Generations
    """Of their topics, if known."""
    sources: Sources
    """Of topics, if known; also of others than those of the queues."""


class Misfit(NamedTuple):
    """A row that a table cannot take."""

    row: int
    """Its number in its batch."""
    reason: str


@dataclass(frozen=True)
class TableOptions:
    """How a table is found and, if it does not exist, created."""

    place: str
    """Directory or URL of the table, or of the warehouse (Iceberg)."""
    schema: pa.Schema
    """Of the messages."""
    name: str = "reput.messages"
    """Namespace and name in the catalog (Iceberg)."""
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    evolve: bool = False
    """Whether columns that the table lacks are added."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Options of the storage (Delta) or of the catalog (Iceberg)."""


class LakeTable(ABC):
    """A table. Not for several threads."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The table's place, for texts."""

    @abstractmethod
    def load(self, queues: list[QueueKey], generations: Generations) -> Progress:
        """Read the newest version of the table and return its progress in these queues.

        Args:
            queues: of the topics to read.
            generations: of these topics now.

        Raises:
            TableUnreachable: it cannot be read.
        """

    def misfit(self, rows: pa.RecordBatch) -> Misfit | None:  # noqa: ARG002
        """Return the first of some rows that the table cannot take; None if it can take all."""
        return None

    def check(self, rows: pa.RecordBatch, what: Callable[[int], str]) -> None:
        """Check that the table can take rows, before they are appended.

        Args:
            rows: with the columns of the table.
            what: returns what a row is by its number, for the error.

        Raises:
            RowRejected: it cannot.
        """
        found = self.misfit(rows)
        if found is not None:
            raise RowRejected(self.where, what(found.row), found.reason)

    @abstractmethod
    def append(self, rows: pa.RecordBatchReader, progress: Progress, row_bytes: int) -> None:
        """Commit rows and progress, both or neither, to the version that was loaded.

        Args:
            rows: read once, in batches.
            progress: the ends that have changed, the generations of their topics, and sources that have changed.
            row_bytes: average size of a row.

        Raises:
            TableChanged: another commit has changed the progress or the columns; nothing is committed.
            Exception: of `rows`, or of the library; after the latter only the next `load` shows whether the rows are
                committed.
        """

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """Return members of the job's last line: the version of the table."""

    @abstractmethod
    def tidy(self, keep_s: float) -> str:
        """Merge small files where the library can, delete versions older than `keep_s`; return what was done."""


def one_line(reason: object) -> str:
    """Return an error's first sentences; the libraries draw trees of causes."""
    text = " ".join(line.strip(" \t↳") for line in _plain(str(reason)).splitlines() if line.strip())
    return text[:500] or type(reason).__name__


def _plain(text: str) -> str:
    parts = text.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])


def other_type(name: str, ours: object, theirs: object) -> str | None:
    """Return why a column of the messages does not fit that of a table, or None."""
    if ours == theirs:
        return None
    return f"its column {name} is of type {theirs}, and that of the messages is {ours}"


def mismatches(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    needed: set[str],
    evolve: bool,
    difference: Callable[[str, Any, Any], str | None] = other_type,
) -> str | None:
    """Return why a table cannot take the messages, or None.

    Args:
        ours: types of the columns of the messages by name.
        theirs: those of the table.
        needed: columns of the table that have a value in each row.
        evolve: whether missing columns are added.
        difference: compares the types of a column.
    """
    missing = [name for name in ours if name not in theirs]
    if missing and not evolve:
        return f"it has no column {', '.join(missing)}; add them with --evolve, or leave them out with --option select"
    for name, kind in ours.items():
        if name in theirs and (reason := difference(name, kind, theirs[name])) is not None:
            return reason
    empty = [name for name in sorted(needed) if name not in ours]
    if empty:
        return f"its column {', '.join(empty)} needs a value in each row, and the messages do not have it"
    return None


_COLUMN = "brokerName"


@dataclass(eq=False, repr=False)
class AsBroker(LakeTable):
    """Wraps a table: rows and progress get the broker's name, so that a job that reads from the broker continues.

    Sources name it already.

    Args:
        table: the table.
        broker: the broker whose directory is read; the directory does not name it.
    """

    _table: LakeTable
    _broker: str

    @property
    def where(self) -> str:
        """That of the table."""
        return self._table.where

    def load(self, queues: list[QueueKey], generations: Generations) -> Progress:
        """Return the broker's progress as the directory's."""
        found = self._table.load([queue._replace(broker=self._broker) for queue in queues], self._named(generations))
        ends = {queue._replace(broker=""): end for queue, end in found.ends.items() if queue.broker == self._broker}
        known = {
            (topic, ""): generation
            for (topic, broker), generation in found.generations.items()
            if broker == self._broker
        }
        return Progress(ends, known, found.sources)

    def misfit(self, rows: pa.RecordBatch) -> Misfit | None:
        """Return that of the table."""
        return self._table.misfit(rows)

    def append(self, rows: pa.RecordBatchReader, progress: Progress, row_bytes: int) -> None:
        """Commit rows and progress under the broker's name."""
        ends = {queue._replace(broker=self._broker): end for queue, end in progress.ends.items()}
        named = pa.RecordBatchReader.from_batches(rows.schema, self._rows(rows))
        self._table.append(named, Progress(ends, self._named(progress.generations), progress.sources), row_bytes)

    def figures(self) -> dict[str, Any]:
        """Return those of the table."""
        return self._table.figures()

    def tidy(self, keep_s: float) -> str:
        """Tidy the table."""
        return self._table.tidy(keep_s)

    def _named(self, generations: Generations) -> Generations:
        return {(topic, self._broker): generation for (topic, _), generation in generations.items()}

    def _rows(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        at = rows.schema.get_field_index(_COLUMN)
        for batch in rows:
            name = pa.scalar(self._broker, pa.string())
            yield (batch if at < 0 else batch.set_column(at, batch.schema.field(at), pa.repeat(name, len(batch))))
