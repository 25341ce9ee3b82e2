"""Check everything in a store directory against everything else, and change nothing.

The log decides. It is read once, from its first file to its end; on the way every record is checked by itself, every
queue unit and every index entry against the record that it names. The checkpoint and the tables follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reput_broker.store.consume_queue_unit import UNIT_BYTES
from reput_broker.store.dispatch import rows_by_queue
from reput_broker.store.log_walk import SECTOR_BYTES, can_be_topic, has_lost_sector
from reput_broker.store.options import DELAY_LEVELS_MS
from reput_broker.store_tools.layout import Geometry, OddFile, StoreLayout
from reput_broker.store_tools.log_reader import BlankEnd, Damage, LogBatch, LogEnd, crc_faults, read_log
from reput_broker.store_tools.report import FAULTS_KEPT, Progress, Report, no_progress
from reput_broker.store_tools.verify_checkpoint import LogFacts, index_time, valid_mark, verify_checkpoint
from reput_broker.store_tools.verify_index import IndexCheck
from reput_broker.store_tools.verify_queues import LMQ_PREFIX, QueuesCheck
from reput_broker.store_tools.verify_tables import (
    read_deleted_topics,
    read_topics,
    verify_offsets,
    verify_other_tables,
    verify_topics,
)
from reput_protocol.dispatch_rows import DispatchRows, rows_of_columns

LOST_PAGE = "its properties hold zeros where a lost page would leave them"
_NO_LETTER = "\N{REPLACEMENT CHARACTER}"
_QUEUE_OFFSET_MAX = (1 << 62) // UNIT_BYTES


class Verification:
    """One examination of one directory, which somebody has locked already.

    Args:
        root: the store directory.
        commit_log_dirs: where the log lies, if not in `commitlog`.
        geometry: sizes that are known; the others are read from the files.
        delay_levels_ms: the delay levels of the broker that wrote it.
        faults_kept: how many faults of a kind are kept with their words.
        progress: told how many bytes of the log are done.
    """

    def __init__(
        self,
        root: Path,
        *,
        commit_log_dirs: Sequence[Path] = (),
        geometry: Geometry | None = None,
        delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
        faults_kept: int = FAULTS_KEPT,
        progress: Progress = no_progress,
    ) -> None:
        self.root = root
        self.layout = StoreLayout(root, commit_log_dirs, geometry)
        self.report = Report(faults_kept)
        self.damages: list[Damage] = []
        """Damaged bytes of the log, in order: whole records whose checksum fails, too."""
        self.end_offset = 0
        """Where the sound records of the log end."""
        self.stopped = not self.layout.abort.exists()
        """Whether the last broker stopped in order."""
        self.mark = valid_mark(root)
        self.queue_ends: dict[tuple[str, int], int] = {}
        self.renumbered: dict[int, int] = {}
        """Log offsets of records whose QUEUEOFFSET is wrong, and what it must be: their units tell."""
        self._levels = tuple(delay_levels_ms)
        self._progress = progress
        self.max_store_timestamp_ms = 0
        """The latest store time of any record."""
        self._known_topics: set[str] = set()
        self._undecided: list[Damage] = []
        self._unfinished: list[int] = []

    def run(self) -> Report:
        """Check everything."""
        report, layout = self.report, self.layout
        if not self.stopped:
            report.note(
                f"{layout.abort} is there: the last broker did not stop in order, the next start recovers"
            )
        self._verify_files()
        topics = read_topics(layout.config_dir, report)
        deleted = read_deleted_topics(self.root, report)
        other_form = self._topics_of_another_form(topics or {})
        queues = QueuesCheck(layout, deleted, None if topics is None else set(topics), other_form)
        whole_until_ms = None if self.stopped else index_time(self.root)
        index = IndexCheck(layout, deleted, self.damages, report, whole_until_ms)
        if not layout.index_files():
            report.note("there is no key index")
        self._walk(queues, index)
        certain = None if self.stopped else (self.mark.queues_offset if self.mark is not None else 0)
        queues.finish(report, self.damages, self.log_end, certain)
        index.finish(stopped=self.stopped, log_has_damage=bool(self.damages))
        facts = LogFacts(
            self.end_offset, report.figures["records"], self.max_store_timestamp_ms, bool(self.damages)
        )
        verify_checkpoint(self.root, facts, report)
        self.queue_ends = queues.ends()
        self.renumbered = queues.renumbered()
        if topics is not None:
            verify_topics(layout.config_dir, topics, self.queue_ends, report)
        verify_offsets(layout.config_dir, self.queue_ends, self.stopped, report)
        verify_other_tables(layout.config_dir, report)
        return report

    # -- files ---------------------------------------------------------------------------------------------

    def _verify_files(self) -> None:
        for odd in (*self.layout.log.odd, *(odd for queue in self.layout.queues for odd in queue.stream.odd)):
            if not self._was_being_made(odd):
                self.report.fault("file", *odd)
        ends = bool(self.mark and self.mark.flushed_offset) or any(
            queue.stream.files for queue in self.layout.queues
        )
        if not self.layout.log.files and ends:
            self.report.fault(
                "file",
                self.layout.log.directories[0],
                0,
                "there is no log, but queues or a checkpoint of one",
            )

    def _was_being_made(self, odd: OddFile) -> bool:
        """Whether a start would remove the file: shorter than it must be, the last one, and never written to."""
        files = self.layout.log.files
        if self.stopped or not files or odd.path != files[-1].path or len(files) < 2:
            return False
        with odd.path.open("rb") as file:
            if any(file.read(1 << 20).strip(b"\0") for _ in range(1 + files[-1].size // (1 << 20))):
                return False
        self.report.note(f"{odd.path} was being made when the broker ended: the next start removes it")
        return True

    def _topics_of_another_form(self, topics: Mapping[str, Mapping[str, Any]]) -> set[str]:
        """Name the topics whose queues are not what is checked here, and say so."""
        batch = self.root / "batchconsumequeue"
        found = {path.name for path in batch.iterdir() if path.is_dir()} if batch.is_dir() else set()
        for name, entry in topics.items():
            attributes = entry.get("attributes")
            if isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ":
                found.add(name)
        for name in sorted(found):
            self.report.note(f"the batch queues of topic {name} are not verified")
        multi = sorted({queue.topic for queue in self.layout.queues if queue.topic.startswith(LMQ_PREFIX)})
        for name in multi:
            self.report.note(f"the multi-dispatch queues of {name} are not verified")
        for path in ("timerlog", "compaction", "consumequeue_r", "rocksdb"):
            if (self.root / path).is_dir():
                self.report.note(f"{path}/ is not verified")
        return found

    # -- the log -------------------------------------------------------------------------------------------

    def _walk(self, queues: QueuesCheck, index: IndexCheck) -> None:
        total = self.layout.log.total_bytes
        figures = self.report.figures
        done = 0
        for part in read_log(self.layout.log):
            if isinstance(part, LogBatch):
                self._verify_batch(part, queues, index)
                records = len(part.columns)
                figures["records"] += records
                figures["log_bytes"] += int(part.columns.head["size"].sum())
                done = part.offset - self.layout.log.min_offset
            elif isinstance(part, Damage):
                self._judge_damage(part)
                figures["damaged_bytes"] += part.end_position - part.position
            elif isinstance(part, LogEnd):
                self.end_offset = part.offset
            else:
                assert isinstance(part, BlankEnd)
            self._progress(done, total)
        for damage in self._undecided:
            if damage.end_offset == self.end_offset:
                self._note_unfinished(damage)
            else:
                self._record_fault(damage)
        self.damages.sort(key=lambda damage: damage.offset)
        figures["log_files"] = len(self.layout.log.files)
        self._progress(total, total)
        if self.mark is not None and self.mark.flushed_offset > self.end_offset and not self.damages:
            # The rest of the log is gone without a trace: its place must be named too.
            path, position = self.layout.log.place(self.end_offset)
            self.report.fault(
                "log",
                path,
                position,
                f"the records end here, but had been flushed up to offset {self.mark.flushed_offset}",
            )

    def _verify_batch(self, batch: LogBatch, queues: QueuesCheck, index: IndexCheck) -> None:
        columns = batch.columns
        rows = rows_of_columns(batch.data, columns, self._levels)
        nameless = self._nameless(batch, rows)
        bad = nameless | dict(crc_faults(batch)) | dict(self._lost_pages(batch))
        for row, reason in sorted(bad.items()):
            self._record_damage(batch, row, reason, is_framed=row not in nameless)
        self.max_store_timestamp_ms = max(
            self.max_store_timestamp_ms, int(columns.head["store_timestamp_ms"].max())
        )
        for run in rows_by_queue(rows, None):
            queues.compare(run, self.damages)
        if index.is_there:
            index.compare(batch, rows)

    def _lost_pages(self, batch: LogBatch) -> list[tuple[int, str]]:
        """Records not known to be flushed whose properties look as if a page had been lost, as a start judges them."""
        columns = batch.columns
        ends = columns.position + columns.head["size"]
        trusted = self.mark.flushed_offset if self.mark is not None else 0
        if (self.mark is None and self.stopped) or batch.offset + int(ends[-1]) <= trusted:
            return []
        shift = batch.position % SECTOR_BYTES  # sectors count from the start of the file
        view = memoryview(bytes(shift) + batch.data)
        return [
            (row, LOST_PAGE)
            for row in np.flatnonzero(ends + batch.offset > trusted).tolist()
            if has_lost_sector(view, shift + int(columns.properties_position[row]), shift + int(ends[row]))
        ]

    def _nameless(self, batch: LogBatch, rows: DispatchRows) -> dict[int, str]:
        """Records of which it cannot be told which message of which queue they are."""
        number = batch.columns.queue_offset
        bad = {
            row: f"QUEUEOFFSET is {int(number[row])}"
            for row in np.flatnonzero((number < 0) | (number > _QUEUE_OFFSET_MAX)).tolist()
        }
        for run in rows.runs:
            if run.topic in self._known_topics:
                continue
            topic = bytes(batch.columns.topic(run.start))
            if not can_be_topic(topic):
                bad |= dict.fromkeys(range(run.start, run.stop), f"the record has topic {topic[:80]!r}")
            elif _NO_LETTER not in run.topic:  # bytes that are no text read as this one
                self._known_topics.add(run.topic)
        return bad

    def _record_damage(self, batch: LogBatch, row: int, reason: str, *, is_framed: bool) -> None:
        """A record with sound lengths in its place, but with wrong content."""
        position = batch.position + int(batch.columns.position[row])
        size = int(batch.columns.head["size"][row])
        damage = Damage(batch.file, position, position + size, reason, False, is_framed)
        if not self.stopped and self.mark is None:
            self._undecided.append(damage)  # until it is known whether anything follows
        elif self._is_unfinished(damage):
            self._note_unfinished(damage)
        else:
            self._record_fault(damage)

    @property
    def log_end(self) -> int:
        """Where the next start ends the log: before the first bytes that are no sound record and were not flushed."""
        return min([self.end_offset, *self._unfinished])

    @property
    def is_out_of_order(self) -> bool:
        """Whether message numbers in the log do not follow each other: queues made of it would be other ones."""
        return bool(self.report.kinds["order"])

    @property
    def holes(self) -> list[Damage]:
        """Damages of which it is not known which messages they were: nothing can be derived from a log with these."""
        return [damage for damage in self.damages if not damage.is_framed]

    def _note_unfinished(self, damage: Damage) -> None:
        self._unfinished.append(damage.offset)
        self.report.note(
            f"{damage.file.path} at byte {damage.position}: {damage.reason}; it had not been flushed, "
            "the next start cuts it off"
        )

    def _record_fault(self, damage: Damage) -> None:
        self.damages.append(damage)
        self.report.fault("record", damage.file.path, damage.position, damage.reason)

    def _judge_damage(self, damage: Damage) -> None:
        if damage.is_tail and self._is_unfinished(damage):
            self.report.note(
                f"{damage.file.path} at byte {damage.position}: {damage.size} bytes of unfinished "
                f"writes ({damage.reason}); the next start cuts them off"
            )
            return
        if damage.is_tail and self.stopped and self.mark is None and self._begins_with_zeros(damage):
            self.report.note(
                f"{damage.file.path} at byte {damage.position}: stale bytes behind the log's end, as RocketMQ leaves "
                "them when it cuts"
            )
            return
        self.damages.append(damage)
        self.report.fault("log", damage.file.path, damage.position, damage.reason)

    def _is_unfinished(self, damage: Damage) -> bool:
        """Whether the broker was killed and nothing says that these bytes had been flushed."""
        if self.stopped:
            return False
        return self.mark is None or damage.offset >= self.mark.flushed_offset

    @staticmethod
    def _begins_with_zeros(damage: Damage) -> bool:
        with damage.file.path.open("rb") as file:
            file.seek(damage.position)
            return not any(file.read(8))
