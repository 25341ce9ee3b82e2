"""Check the files of a store directory against each other. Changes nothing.

The log is authoritative. It is read once; on the way every record is checked, and every queue unit and index entry
against its record. The checkpoint and the tables follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reput_broker.store.base.options import DELAY_LEVELS_MS
from reput_broker.store.opening.directory_swap import SWAPPED
from reput_broker.store.opening.foreign_files import LMQ_PREFIX
from reput_broker.tools.report import FAULTS_KEPT, Progress, Report, no_progress
from reput_broker.tools.verify_checkpoint import LogFacts, index_time, valid_mark, verify_checkpoint
from reput_broker.tools.verify_index import IndexCheck
from reput_broker.tools.verify_log import LogCheck
from reput_broker.tools.verify_queues import QueuesCheck
from reput_broker.tools.verify_tables import (
    read_deleted_topics,
    read_topics,
    verify_offsets,
    verify_other_tables,
    verify_topics,
)
from reput_protocol.store.files import standing_for
from reput_protocol.store.layout import Geometry, OddFile, StoreLayout


class Verification:
    """One verification of one directory, which the caller has locked.

    Args:
        commit_log_dirs: directories of the log, if not `commitlog`.
        geometry: known sizes; the others are read from the files.
        delay_levels_ms: those of the broker that wrote it; None: RocketMQ's are assumed.
        faults_kept: how many faults of a kind are kept in full.
        progress: receives how many bytes of the log are done.
    """

    def __init__(
        self,
        root: Path,
        *,
        commit_log_dirs: Sequence[Path] = (),
        geometry: Geometry | None = None,
        delay_levels_ms: Sequence[int] | None = None,
        faults_kept: int = FAULTS_KEPT,
        progress: Progress = no_progress,
    ) -> None:
        self.root = root
        self.layout = StoreLayout(root, commit_log_dirs, geometry)
        self.report = Report(faults_kept)
        self.stopped = not self.layout.abort.exists()
        """Whether the last broker stopped in order."""
        self.mark = valid_mark(root)
        self.log = LogCheck(self.layout, self.mark, self.stopped, self.report)
        """The log and its findings."""
        self.queue_ends: dict[tuple[str, int], int] = {}
        self.renumbered: dict[int, int] = {}
        """Log offset to right queue offset of records whose QUEUEOFFSET contradicts their unit."""
        self.delay_levels_ms = DELAY_LEVELS_MS if delay_levels_ms is None else tuple(delay_levels_ms)
        self.delay_levels_given = delay_levels_ms is not None
        self.other_delays: Path | None = None
        """A queue of delayed messages most of which are due at other times than these levels say."""
        self._progress = progress
        self._topics: dict[str, dict[str, Any]] | None = None
        self.queues: QueuesCheck
        """Set by `begin`."""
        self.index: IndexCheck
        """Set by `begin`."""

    def run(self) -> Report:
        """Check everything."""
        self.begin()
        self.index.verify_files()
        self.walk()
        return self.conclude()

    def begin(self) -> None:
        """Read the files and tables that the walk needs."""
        report, layout, log = self.report, self.layout, self.log
        if not self.stopped:
            report.note(
                f"{layout.abort} is there: the last broker did not stop in order, the next start recovers"
            )
        for name in SWAPPED:
            if (old := standing_for(self.root / name)) != self.root / name:
                report.note(f"a rebuild was killed: the next start renames {old} back to {name}")
        self._verify_files()
        topics = read_topics(layout.config_dir, report)
        deleted = read_deleted_topics(self.root, report)
        other_form = self._topics_of_another_form(topics or {})
        self._topics = topics
        certain = None if self.stopped else (self.mark.queues_offset if self.mark is not None else 0)
        known = None if topics is None else set(topics)
        self.queues = QueuesCheck(layout, deleted, known, other_form, certain)
        whole_until_ms = None if self.stopped else index_time(self.root)
        self.index = IndexCheck(layout, deleted, log.damages, report, whole_until_ms)
        if not layout.index_files():
            report.note("there is no key index")

    def walk(self, from_index: int = 0, to_index: int | None = None) -> None:
        """Check the files of the log, or some of them: in order, each once."""
        self.log.walk(self.queues, self.index, self.delay_levels_ms, self._progress, from_index, to_index)

    def conclude(self) -> Report:
        """Check what requires the complete walk, and return all findings."""
        report, layout, log = self.report, self.layout, self.log
        queues, index, topics = self.queues, self.index, self._topics
        log.conclude()
        self._progress(layout.log.total_bytes, layout.log.total_bytes)
        queues.finish(report, log.damages, log.kept_end)
        index.finish(stopped=self.stopped, log_has_damage=bool(log.damages))
        facts = LogFacts(
            log.end_offset, report.figures["records"], log.max_store_timestamp_ms, bool(log.damages)
        )
        verify_checkpoint(self.root, facts, report)
        self.other_delays = queues.other_delays()
        self.queue_ends = queues.ends()
        self.renumbered = queues.renumbered()
        if topics is not None:
            verify_topics(layout.config_dir, topics, self.queue_ends, self.stopped, report)
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
        """Whether a start would remove the file: the last one, too short, never written to."""
        files = self.layout.log.files
        if self.stopped or not files or odd.path != files[-1].path or len(files) < 2:
            return False
        with odd.path.open("rb") as file:
            if any(file.read(1 << 20).strip(b"\0") for _ in range(1 + files[-1].size // (1 << 20))):
                return False
        self.report.note(f"{odd.path} was being created when the broker ended: the next start removes it")
        return True

    def _topics_of_another_form(self, topics: Mapping[str, Mapping[str, Any]]) -> set[str]:
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

    @property
    def is_out_of_order(self) -> bool:
        """Whether queue offsets in the log are not consecutive: queues rebuilt from it would differ."""
        return bool(self.report.kinds["order"])
