"""Does every record belong where it says that it belongs? Asked at a start, before anything is changed.

No checksum of RocketMQ's records covers topic, queue id and queue offset (unless the whole-record one is there). But
they are not alone: the offsets of one queue follow each other in the log, and the queue's entry points at the record.
A record that leaves a gap in its queue, or that another queue entry claims, has had its identity changed, and the start
is refused. Where records and entries disagree and nothing speaks against the records, it is the entries that are wrong:
they are derived, and made anew.
"""

from __future__ import annotations

import numpy as np

from reput_broker.store.commit_log import CommitLog
from reput_broker.store.consume_queue_table import ConsumeQueueTable
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import DispatchBatch, QueueRows
from reput_broker.store.errors import StoreDamaged
from reput_broker.store.recovery import REPAIR_REMEDY
from reput_broker.store.reput import Reput
from reput_broker.store.stats import StoreStats


def queues_agree(
    log: CommitLog,
    queues: ConsumeQueueTable,
    deleted: DeletedTopics,
    from_offset: int,
    end_offset: int,
    *,
    entries_until: int,
) -> bool:
    """Check the records of the log's bytes `[from_offset, end_offset)`, all of them sound. Changes nothing.

    Args:
        log: just loaded.
        queues: just loaded; their entries are read, wherever they end.
        deleted: records that do not count.
        from_offset: where a record starts.
        end_offset: where the last one ends.
        entries_until: every record before this log offset has its entry on the disk.

    Returns:
        Whether every entry that is certain is right.

    Raises:
        StoreDamaged: a record is not the message that its queue has there.
    """
    check = _IdentityCheck(log, queues, from_offset, min(entries_until, end_offset))
    reput = Reput(
        log,
        [check],
        deleted,
        StoreStats(),
        limit=lambda: end_offset,
        position=from_offset,
        levels_ms=(),
    )
    while reput.step():
        pass
    return check.agrees


class _IdentityCheck:
    """The dispatcher that compares instead of writing."""

    def __init__(
        self, log: CommitLog, queues: ConsumeQueueTable, from_offset: int, entries_until: int
    ) -> None:
        self.agrees = True
        self._log = log
        self._queues = queues
        self._from_offset = from_offset
        self._entries_until = entries_until
        self._next: dict[tuple[str, int], int] = {}
        self._claims: dict[tuple[int, int], str] | None = None

    def dispatch(self, batch: DispatchBatch) -> None:
        """Compare every record of the batch."""
        for rows in batch.queues:
            if int(rows.physical_offsets[0]) < self._entries_until:
                self._compare(rows)
            self._follow(rows)

    def _follow(self, rows: QueueRows) -> None:
        key = (rows.topic, rows.queue_id)
        first = rows.first_queue_offset
        # Before the log's first byte nothing has been: every queue counts from 0 there.
        expected = self._next.get(key, 0 if self._from_offset == 0 else None)
        if expected is not None and first > expected:
            self._refuse(rows, 0, f"but the record before it in that queue is message {expected - 1}")
        # A topic that was deleted counts from 0 again. Offsets that are taken are an old broker's fault.
        known = 0 if expected is None or first == 0 else expected
        self._next[key] = max(known, rows.end_queue_offset)

    def _compare(self, rows: QueueRows) -> None:
        queue = self._queues.get(rows.topic, rows.queue_id)
        places = np.asarray(rows.physical_offsets, np.int64)
        sizes = np.asarray(rows.sizes, np.int64)
        same = np.zeros(len(places), np.bool_)
        done = 0
        while queue is not None and done < len(places):
            at = rows.first_queue_offset + done
            units = queue.read_units(at, len(places) - done)
            if not len(units):
                if at >= queue.min_queue_offset:
                    break
                done += queue.min_queue_offset - at
                continue
            stop = done + len(units)
            same[done:stop] = (units["physical_offset"] == places[done:stop]) & (
                units["size"] == sizes[done:stop]
            )
            done = stop
        for index in np.flatnonzero(~same & (places < self._entries_until)).tolist():
            self.agrees = False
            claim = self._claim(int(places[index]), int(sizes[index]))
            if claim:
                self._refuse(rows, index, f"but it is {claim} that points at it")

    def _claim(self, physical_offset: int, size: int) -> str:
        """Which queue entry points at a record, in words; empty if none does."""
        if self._claims is None:
            self._claims = {}
            for queue in self._queues:
                if not queue.has_files:
                    continue
                position, end = queue.min_queue_offset, queue.max_queue_offset
                while position < end and len(units := queue.read_units(position, end - position)):
                    wanted = np.flatnonzero(
                        (units["physical_offset"] >= self._from_offset) & (units["size"] > 0)
                    )
                    for index in wanted.tolist():
                        unit = units[index]
                        place = int(unit["physical_offset"]), int(unit["size"])
                        self._claims[place] = (
                            f"entry {position + index} of queue {queue.queue_id} of topic {queue.topic}"
                        )
                    position += len(units)
        return self._claims.get((physical_offset, size), "")

    def _refuse(self, rows: QueueRows, index: int, contradiction: str) -> None:
        offset = int(rows.physical_offsets[index])
        file = self._log.files.find_by_offset(offset)
        assert file is not None, "it was read from there"
        message = rows.first_queue_offset + index
        raise StoreDamaged(
            file.path,
            offset - file.base_offset,
            f"the record there says that it is message {message} of queue {rows.queue_id} of topic {rows.topic} "
            f"(log offset {offset}), {contradiction}",
            REPAIR_REMEDY,
        )
