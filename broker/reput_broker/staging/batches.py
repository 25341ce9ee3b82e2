"""The last committed batch of every query, by which repeated commits are recognised.

The marker that closes a batch, in the topic `rmq_sys_reput_sink`, is durable before the commit is answered. The
table is read from a snapshot, `config/sinkBatches.json`, and the markers that follow it. The snapshot is written after
commits, and before files of the log are deleted, so it outlives retention.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from reput_broker.tables.config_file import ConfigFile, ConfigFileSave, DataVersion


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
