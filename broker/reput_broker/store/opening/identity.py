"""Check at a start that every record belongs to the queue and queue offset that it names. Changes nothing.

No checksum of RocketMQ's records covers topic, queue id and queue offset (except the optional whole-record one). But
the offsets of one queue are consecutive in the log, and the queue's entry points at the record. A record that leaves a
gap in its queue, or that another queue's entry points at, was changed, and the start is refused. If records and entries
disagree otherwise, the entries are wrong, and rebuilt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.errors import REPAIR_REMEDY, StoreDamaged
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.walk import QueuedRecords
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_protocol.kernel.units import differing_units
from reput_protocol.store.unit import UNIT, UNIT_BYTES

Queue = tuple[str, int]


class _Run(NamedTuple):
    """Records of one queue with consecutive queue offsets."""

    queue: Queue
    records: array[int]
    """Queue offset, log offset and size of each."""

    def __len__(self) -> int:
        return len(self.records) // 3

    @property
    def first(self) -> int:
        return self.records[0]

    @property
    def end(self) -> int:
        return self.records[0] + len(self)

    @property
    def place(self) -> int:
        return self.records[1]

    def before(self, log_offset: int) -> int:
        """How many of the records are before a log offset."""
        return bisect_left(self.records[1::3], log_offset)


class IdentityCheck:
    """Compares the records of a walk with each other and with the queues' entries. Changes nothing.

    Args:
        queues: recovered, but not truncated yet.
        from_offset: where the walk begins.
        entries_until: every record before this log offset has its entry on disk.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        deleted: DeletedTopics,
        from_offset: int,
        entries_until: int,
    ) -> None:
        self.agrees = True
        """Whether every entry before `entries_until` is right, as far as the walk has come."""
        self.first: dict[Queue, tuple[int, int]] = {}
        """Queue offset and log offset of each queue's first record in the walk."""
        self.ends_at_mark: dict[Queue, tuple[int, bool]] = {}
        """End of each of these queues at `entries_until`, and whether it started again at 0 on the way."""
        self._log = log
        self._queues = queues
        self._deleted = deleted
        self._from_offset = from_offset
        self._entries_until = entries_until
        self._next: dict[Queue, int] = {}

    def take(self, records: QueuedRecords) -> None:
        """Compare the next records of the walk.

        Raises:
            StoreDamaged: a record is not the message that its queue has there.
        """
        runs = list(self._runs_of(records))
        # Entries first: if a record claims to be in another queue, they name it; a gap only names
        # the record after it.
        self._compare([run for run in runs if run.place < self._entries_until])
        for run in runs:
            self._follow(run)

    def check_continued_by(self, later: IdentityCheck) -> None:
        """Check that the records of a later walk follow those of this one.

        Raises:
            StoreDamaged: a queue has a gap between both.
        """
        for queue, (first, offset) in later.first.items():
            self._check_order(queue, first, offset)

    def _runs_of(self, records: QueuedRecords) -> Iterator[_Run]:
        hides = bool(len(self._deleted))
        for (topic_bytes, queue_id), rows in records.items():
            topic = topic_bytes.decode()
            if hides:
                rows = rows[3 * bisect_left(rows[1::3], self._deleted.end_offset(topic)) :]
                if not rows:
                    continue
            numbers = rows[::3]
            if numbers == array("q", range(numbers[0], numbers[0] + len(numbers))):
                yield _Run((topic, queue_id), rows)
                continue
            breaks = [at for at, (one, other) in enumerate(pairwise(numbers), 1) if other != one + 1]
            for start, stop in pairwise([0, *breaks, len(numbers)]):
                yield _Run((topic, queue_id), rows[3 * start : 3 * stop])

    # -- records with each other -----------------------------------------------------------------------

    def _follow(self, run: _Run) -> None:
        queue, first, offset = run.queue, run.first, run.place
        self._check_order(queue, first, offset)
        self.first.setdefault(queue, (first, offset))
        # A topic that was deleted starts at 0 again. Offsets used twice are an old broker's fault.
        known = 0 if first == 0 else self._next.get(queue, 0)
        self._next[queue] = max(known, run.end)
        certain = run.before(self._entries_until)
        if certain:
            end, restarted = self.ends_at_mark.get(queue, (0, False))
            end, restarted = (0, True) if first == 0 else (end, restarted)
            self.ends_at_mark[queue] = (max(end, first + certain), restarted)

    def _check_order(self, queue: Queue, first: int, offset: int) -> None:
        # Nothing precedes the log's first byte: every queue starts at 0 there.
        expected = self._next.get(queue, 0 if self._from_offset == 0 else None)
        if expected is not None and first > expected:
            self._refuse(
                queue, first, offset, f"but the record before it in that queue is message {expected - 1}"
            )

    # -- records with entries --------------------------------------------------------------------------

    def _compare(self, runs: list[_Run]) -> None:
        missed: list[tuple[_Run, int]] = []
        for run in runs:
            certain = run.before(self._entries_until)
            missed += [(run, index) for index in self._without_entries(run) if index < certain]
        if not missed:
            return
        self.agrees = False
        places = [run.records[3 * index + 1] for run, index in missed]
        claims = self._claims(min(places), max(places))
        for (run, index), place in zip(missed, places, strict=True):
            claim = claims.get((place, run.records[3 * index + 2]))
            if claim is not None:
                (topic, queue_id), number = claim
                self._refuse(
                    run.queue,
                    run.first + index,
                    place,
                    f"but entry {number} of queue {queue_id} of topic {topic} points at it",
                )

    def _without_entries(self, run: _Run) -> list[int]:
        wrong: list[int] = []
        queue = self._queues.get(*run.queue)
        done = 0
        while queue is not None and done < len(run):
            at = run.first + done
            units = queue.read_units(at, len(run) - done)
            if units:
                wrong += differing_units(units, run.records, done)
                done += len(units) // UNIT_BYTES
                continue
            if at >= queue.min_queue_offset:
                break
            expired = min(queue.min_queue_offset - at, len(run) - done)
            wrong += range(done, done + expired)
            done += expired
        wrong += range(done, len(run))
        return wrong

    def _claims(self, low: int, high: int) -> dict[tuple[int, int], tuple[Queue, int]]:
        """Queue and queue offset of entries that point into `[low, high]`, by (log offset, size)."""
        claims: dict[tuple[int, int], tuple[Queue, int]] = {}
        for queue in self._queues:
            for number, units in _entries_between(queue, low, high):
                for at, (place, size, _) in enumerate(UNIT.iter_unpack(units), number):
                    if low <= place <= high and size > 0:
                        claims[place, size] = (queue.topic, queue.queue_id), at
        return claims

    def _refuse(self, queue: Queue, message: int, offset: int, contradiction: str) -> None:
        file = self._log.files.find_by_offset(offset)
        assert file is not None, "it was read from there"
        topic, queue_id = queue
        raise StoreDamaged(
            file.path,
            offset - file.base_offset,
            f"the record there says that it is message {message} of queue {queue_id} of topic {topic} "
            f"(log offset {offset}), {contradiction}",
            REPAIR_REMEDY,
        )


def _entries_between(queue: ConsumeQueue, low: int, high: int) -> Iterator[tuple[int, bytes]]:
    position = max(queue.queue_offset_of(low), queue.min_queue_offset)
    end = min(queue.queue_offset_of(high + 1), queue.max_queue_offset)
    while position < end and (units := queue.read_units(position, end - position)):
        yield position, units
        position += len(units) // UNIT_BYTES
