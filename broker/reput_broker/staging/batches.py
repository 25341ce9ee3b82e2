"""The batch that is decided and its progress, with the marker that decides it; and the last committed batch of every
query, by which repeated commits are recognised.

The marker that decides a batch is appended to the topic of the markers before the first message of the batch. It names
the stagings in their order, and where each queue ended before: published messages of the batch follow there, in that
order. A broker that has one message of the batch, as a copy or after a crash, therefore has the marker, too, and
completes the batch.

The marker that closes a batch, in the topic `rmq_sys_reput_sink`, is durable before the commit is answered. The
table is read from a snapshot, `config/sinkBatches.json`, and the markers that follow it. The snapshot is written after
commits, and before files of the log are deleted, so it outlives retention.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import trio

from reput_broker.staging.staging_file import StagingKey, StagingTable
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFile, ConfigFileSave, DataVersion
from reput_broker.tables.table_saver import TableSaver

_STAGINGS = "stagings"

Queue = tuple[str, int]
"""Topic and queue id."""


class QueuePlace(NamedTuple):
    """A queue of a batch: all messages of the batch are at queue offset `look_from` or later."""

    topic: str
    queue_id: int
    look_from: int


class StagingFacts(NamedTuple):
    """A complete staging as the marker names it; `born_host` is in hexadecimal."""

    staging_id: str
    partition_id: int
    born_host: str
    size: int
    messages: int
    checksum: int


class CopyPlace(NamedTuple):
    """Where the copies of the staged blocks begin in the log."""

    queue_offset: int
    physical_offset: int


@dataclass(slots=True, frozen=True)
class Intent:
    """A decided batch."""

    query_id: str
    batch_id: int
    stagings: list[StagingFacts]
    messages: int
    queues: list[QueuePlace]
    topics: list[dict[str, Any]]
    """The settings of the topics, since another master may not know a new one."""
    copies: CopyPlace | None = None
    """None: the staged blocks are only in the stagings."""

    def key_of(self, staging: StagingFacts) -> StagingKey:
        """Return the key of one of the stagings."""
        return StagingKey(self.query_id, self.batch_id, staging.partition_id, staging.staging_id)


def begin_marker(intent: Intent) -> bytes:
    """Return the body of the marker that decides a batch."""
    return json.dumps(asdict(intent), separators=(",", ":")).encode()


def give_up_marker(intent: Intent) -> bytes:
    """Return the body of the marker after which a decided batch is not completed any more."""
    members = {"query_id": intent.query_id, "batch_id": intent.batch_id, _STAGINGS: None}
    return json.dumps(members, separators=(",", ":")).encode()


def is_intent(members: Mapping[str, Any]) -> bool:
    """Whether a marker decides a batch, or gives one up; other markers say that a batch is committed."""
    return _STAGINGS in members


def read_intent(members: Mapping[str, Any]) -> Intent | None:
    """Return the batch that a marker decides; None if it gives one up.

    Raises:
        KeyError, TypeError: it is not a valid marker.
    """
    if members[_STAGINGS] is None:
        return None
    copies = members["copies"]
    return Intent(
        members["query_id"],
        members["batch_id"],
        [StagingFacts(*facts) for facts in members[_STAGINGS]],
        members["messages"],
        [QueuePlace(*place) for place in members["queues"]],
        members["topics"],
        None if copies is None else CopyPlace(*copies),
    )


class Decision:
    """At most one batch at a time. Belongs to the event loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.intent: Intent | None = None
        self.counts: dict[Queue, int] = {}
        """How many of its messages are in the log, by queue."""
        self._in_work: tuple[str, int] | None = None
        self._begins_at: int | None = 0

    @property
    def begins_at(self) -> int | None:
        """Log offset from which on the log is needed to complete the batch; None without one.

        0 until a start has read the markers.
        """
        return self._begins_at

    def covers(self, query_id: str, batch_id: int) -> bool:
        """Whether a batch is decided or about to be, so that its stagings must stay."""
        intent = self.intent
        names = None if intent is None else (intent.query_id, intent.batch_id)
        return (query_id, batch_id) in (names, self._in_work)

    @contextmanager
    def about(self, query_id: str, batch_id: int) -> Iterator[None]:
        """Keep the stagings of a batch, and the log from here on, while it is checked and decided."""
        self._in_work = (query_id, batch_id)
        if self._begins_at is None:
            self._begins_at = self._store.max_physical_offset
        try:
            yield
        finally:
            self._in_work = None
            if self.intent is None:
                self._begins_at = None

    def make(self, intent: Intent, counts: dict[Queue, int], begins_at: int) -> None:
        """Decide a batch, of which `counts` messages are in the log.

        Args:
            begins_at: log offset of its marker, or of the copies before that.
        """
        self.intent, self.counts, self._begins_at = intent, counts, begins_at

    def close(self) -> None:
        """End the decision: the batch is published and its marker in the log; or there was none at a start."""
        self.intent, self.counts, self._begins_at = None, {}, None


class CommittedBatch(NamedTuple):
    """A committed batch of a query."""

    batch_id: int
    messages: int
    committed_ms: int


class CommittedBatches:
    """The table of last batches. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../config/sinkBatches.json`; not read yet.
        clock_ms: the time of day.
    """

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        self.file = ConfigFile(path)
        self._clock_ms = clock_ms
        self._last: dict[str, CommittedBatch] = {}
        self._version = DataVersion()
        self.next_marker = 0
        """Queue offset of the first marker that is not in the table."""
        self.unsaved_from: int | None = None
        """Physical offset of the first marker that is not in the snapshot; None if all are."""
        self._unsaved = False

    def __len__(self) -> int:
        return len(self._last)

    def load(self) -> None:
        """Read the snapshot. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup is usable.
            OSError: a file cannot be read.
        """
        members = self.file.load().members
        self._version = DataVersion.from_json(members.get("dataVersion"))
        self.next_marker = int(members.get("nextMarker", 0))
        for query_id, (batch_id, messages, committed_ms) in (members.get("lastBatches") or {}).items():
            self._last[query_id] = CommittedBatch(batch_id, messages, committed_ms)

    def last(self, query_id: str) -> CommittedBatch | None:
        """Return the last batch of a query; None if none is known."""
        return self._last.get(query_id)

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        """Whether this batch of a query, or a later one, has been committed."""
        last = self._last.get(query_id)
        return last is not None and batch_id <= last.batch_id

    def forget_all(self) -> None:
        """Empty the table: it is not of this log."""
        self._last = {}
        self.next_marker = 0
        self._changed()

    def note(self, query_id: str, batch: CommittedBatch, queue_offset: int, physical_offset: int) -> None:
        """Add a batch from its marker, in the order of their queue."""
        self._last[query_id] = batch
        self.next_marker = queue_offset + 1
        if self.unsaved_from is None:
            self.unsaved_from = physical_offset
        self._changed()

    def forget_before(self, age_s: float) -> int:
        """Forget queries that have committed nothing for `age_s`; return how many."""
        since_ms = self._clock_ms() - int(age_s * 1000)
        old = [query_id for query_id, batch in self._last.items() if batch.committed_ms < since_ms]
        for query_id in old:
            del self._last[query_id]
        if old:
            self._changed()
        return len(old)

    @property
    def version(self) -> DataVersion:
        """How often the table changed, and when it last did."""
        return self._version

    def members(self) -> dict[str, Any]:
        """Return the snapshot as of now."""
        return self._snapshot()()

    def begin_save(self) -> ConfigFileSave | None:
        """Return a job that saves the table as it is now; None if the file has it."""
        if not self._unsaved:
            return None
        self._unsaved = False
        marked, self.unsaved_from = self.unsaved_from, None

        def failed() -> None:
            self._unsaved = True
            if marked is not None:
                self.unsaved_from = marked

        return ConfigFileSave(self.file, self._snapshot(), failed)

    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        version, next_marker, last = self._version, self.next_marker, dict(self._last)
        return lambda: {
            "dataVersion": version.to_json(),
            "nextMarker": next_marker,
            "lastBatches": dict(sorted(last.items())),
        }

    def _changed(self) -> None:
        self._version = self._version.next(self._clock_ms())
        self._unsaved = True


def marker_of(query_id: str, batch: CommittedBatch) -> bytes:
    """Return the body of a committed batch's marker."""
    members = {
        "queryId": query_id,
        "batchId": batch.batch_id,
        "messages": batch.messages,
        "committedMs": batch.committed_ms,
    }
    return json.dumps(members, separators=(",", ":")).encode()


def read_marker(members: Mapping[str, Any]) -> tuple[str, CommittedBatch]:
    """Return a marker's query and batch. Raises KeyError: it is not a valid marker."""
    return members["queryId"], CommittedBatch(members["batchId"], members["messages"], members["committedMs"])


class StagingState:
    """The files, and the tables that hold their content. A master reads the stagings once it has the markers."""

    def __init__(
        self,
        data_dir: Path,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        directory = data_dir / "staging"
        self.staging = StagingTable(directory, trio.current_time)
        self.batches = CommittedBatches(data_dir / "config" / "sinkBatches.json", clock_ms)
        self.saver = TableSaver(self.batches, partial(on_saved, "sinkBatches"))
