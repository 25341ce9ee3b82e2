"""Walk the log once: check every record, and every queue unit and index entry against its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reput_broker.store.base.checkpoint import FlushMark
from reput_broker.store.base.dispatch import rows_by_queue
from reput_broker.store.log.walk import LOST_PAGE, SECTOR_BYTES, can_be_topic, has_lost_sector
from reput_broker.tools.report import Progress, Report
from reput_broker.tools.verify_index import IndexCheck
from reput_broker.tools.verify_queues import QueuesCheck
from reput_protocol.kernel.records import checksum_faults
from reput_protocol.record.scan import POSITION, PROPERTIES, QUEUE_OFFSET, SIZE, STORE_TIMESTAMP_MS, WIDTH, DispatchRows
from reput_protocol.store.layout import StoreLayout
from reput_protocol.store.log_reader import BlankEnd, Damage, LogBatch, LogEnd, read_log
from reput_protocol.store.unit import UNIT_BYTES

_NO_LETTER = "\N{REPLACEMENT CHARACTER}"
_QUEUE_OFFSET_MAX = (1 << 62) // UNIT_BYTES


class LogFindings(NamedTuple):
    """Findings in some files of the log; the names are those of `LogCheck`."""

    damages: tuple[Damage, ...]
    undecided: tuple[Damage, ...]
    unfinished: tuple[int, ...]
    end_offset: int
    max_store_timestamp_ms: int


class LogCheck:
    """The log while it is walked, and its findings.

    Args:
        stopped: whether the last broker stopped in order.
    """

    def __init__(self, layout: StoreLayout, mark: FlushMark | None, stopped: bool, report: Report) -> None:
        self.layout = layout
        self.report = report
        self.mark = mark
        self.stopped = stopped
        self.damages: list[Damage] = []
        """Damaged bytes of the log, in order; includes whole records with a wrong checksum."""
        self.end_offset = 0
        """End of the valid records of the log."""
        self.max_store_timestamp_ms = 0
        """The latest store time of any record."""
        self._known_topics: set[str] = set()
        self._undecided: list[Damage] = []
        self._unfinished: list[int] = []

    @property
    def kept_end(self) -> int:
        """Where the next start ends the log: before the first invalid bytes that were not flushed."""
        return min([self.end_offset, *self._unfinished])

    @property
    def holes(self) -> list[Damage]:
        """Damages with unknown messages: nothing can be derived from a log with these."""
        return [damage for damage in self.damages if not damage.is_framed]

    def walk(
        self,
        queues: QueuesCheck,
        index: IndexCheck,
        levels_ms: Sequence[int],
        progress: Progress,
        from_index: int = 0,
        to_index: int | None = None,
    ) -> None:
        """Check every record, its queue unit and its index entries; call `conclude` after the last file.

        Args:
            levels_ms: the delay levels, which determine when a delayed message is due.
            progress: receives how many bytes of the log are done.
            from_index, to_index: which files of the log, all by default.
        """
        total = self.layout.log.total_bytes
        figures = self.report.figures
        done = 0
        for part in read_log(self.layout.log, from_index, to_index=to_index):
            if isinstance(part, LogBatch):
                self._verify_batch(part, queues, index, levels_ms)
                figures["records"] += len(part)
                figures["log_bytes"] += part.end
                done = part.offset - self.layout.log.min_offset
            elif isinstance(part, Damage):
                self._judge_damage(part)
                figures["damaged_bytes"] += part.end_position - part.position
            elif isinstance(part, LogEnd):
                self.end_offset = part.offset
            else:
                assert isinstance(part, BlankEnd)
            progress(done, total)

    def conclude(self) -> None:
        """Check what requires the end of the log."""
        figures = self.report.figures
        for damage in self._undecided:
            if damage.end_offset == self.end_offset:
                self._note_unfinished(damage)
            else:
                self._record_fault(damage)
        self.damages.sort(key=lambda damage: damage.offset)
        figures["log_files"] = len(self.layout.log.files)
        if self.mark is not None and self.mark.flushed_offset > self.end_offset and not self.damages:
            # The rest of the log is gone without a trace: report its place too.
            path, position = self.layout.log.place(self.end_offset)
            self.report.fault(
                "log",
                path,
                position,
                f"the records end here, but had been flushed up to offset {self.mark.flushed_offset}",
            )

    def findings(self) -> LogFindings:
        """Return the findings so far."""
        return LogFindings(
            tuple(self.damages),
            tuple(self._undecided),
            tuple(self._unfinished),
            self.end_offset,
            self.max_store_timestamp_ms,
        )

    def take(self, found: LogFindings) -> None:
        """Add the findings of a parallel walk through the next files."""
        self.damages += found.damages
        self._undecided += found.undecided
        self._unfinished += found.unfinished
        self.end_offset = found.end_offset
        self.max_store_timestamp_ms = max(self.max_store_timestamp_ms, found.max_store_timestamp_ms)

    def _verify_batch(self, batch: LogBatch, queues: QueuesCheck, index: IndexCheck, levels_ms: Sequence[int]) -> None:
        rows = DispatchRows(batch.data, batch.table, levels_ms)
        nameless = self._nameless(batch, rows)
        bad = nameless | dict(checksum_faults(batch.data, batch.table)) | dict(self._lost_pages(batch))
        for row, reason in sorted(bad.items()):
            self._record_damage(batch, row, reason, is_framed=row not in nameless)
        self.max_store_timestamp_ms = max(self.max_store_timestamp_ms, max(batch.column(STORE_TIMESTAMP_MS)))
        for run in rows_by_queue(rows, None):
            queues.compare(run, self.damages)
        if index.is_there:
            index.compare(batch, rows)

    def _lost_pages(self, batch: LogBatch) -> list[tuple[int, str]]:
        """Records that may not be flushed and whose properties look as if a page was lost."""
        trusted = self.mark.flushed_offset if self.mark is not None else 0
        if (self.mark is None and self.stopped) or batch.offset + batch.end <= trusted:
            return []
        shift = batch.position % SECTOR_BYTES  # sectors count from the start of the file
        view = memoryview(bytes(shift) + batch.data)
        columns = zip(batch.column(POSITION), batch.column(SIZE), batch.column(PROPERTIES), strict=True)
        return [
            (row, LOST_PAGE)
            for row, (start, size, properties) in enumerate(columns)
            if batch.offset + start + size > trusted and has_lost_sector(view, shift + properties, shift + start + size)
        ]

    def _nameless(self, batch: LogBatch, rows: DispatchRows) -> dict[int, str]:
        bad = {
            row: f"QUEUEOFFSET is {number}"
            for row, number in enumerate(batch.column(QUEUE_OFFSET))
            if not 0 <= number <= _QUEUE_OFFSET_MAX
        }
        for run in rows.runs:
            if run.topic in self._known_topics:
                continue
            topic = batch.topic(run.start)
            if not can_be_topic(topic):
                bad |= dict.fromkeys(range(run.start, run.stop), f"the record has topic {topic[:80]!r}")
            elif _NO_LETTER not in run.topic:  # invalid UTF-8 decodes to this character
                self._known_topics.add(run.topic)
        return bad

    def _record_damage(self, batch: LogBatch, row: int, reason: str, *, is_framed: bool) -> None:
        position = batch.position + batch.table[WIDTH * row + POSITION]
        size = batch.table[WIDTH * row + SIZE]
        damage = Damage(batch.file, position, position + size, reason, False, is_framed)
        if not self.stopped and self.mark is None:
            self._undecided.append(damage)  # until it is known whether anything follows
        elif self._is_unfinished(damage):
            self._note_unfinished(damage)
        else:
            self._record_fault(damage)

    def _note_unfinished(self, damage: Damage) -> None:
        self._unfinished.append(damage.offset)
        self.report.note(
            f"{damage.file.path} at byte {damage.position}: {damage.reason}; it had not been flushed, "
            "the next start truncates it"
        )

    def _record_fault(self, damage: Damage) -> None:
        self.damages.append(damage)
        self.report.fault("record", damage.file.path, damage.position, damage.reason)

    def _judge_damage(self, damage: Damage) -> None:
        if damage.is_tail and self._is_unfinished(damage):
            self.report.note(
                f"{damage.file.path} at byte {damage.position}: {damage.size} bytes of unfinished "
                f"writes ({damage.reason}); the next start removes them"
            )
            return
        if damage.is_tail and self.stopped and self.mark is None and self._begins_with_zeros(damage):
            self.report.note(
                f"{damage.file.path} at byte {damage.position}: stale bytes after the log's end, which RocketMQ leaves "
                "when it truncates"
            )
            return
        self.damages.append(damage)
        self.report.fault("log", damage.file.path, damage.position, damage.reason)

    def _is_unfinished(self, damage: Damage) -> bool:
        if self.stopped:
            return False
        return self.mark is None or damage.offset >= self.mark.flushed_offset

    @staticmethod
    def _begins_with_zeros(damage: Damage) -> bool:
        with damage.file.path.open("rb") as file:
            file.seek(damage.position)
            return not any(file.read(8))
