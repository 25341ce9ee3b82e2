"""Check every ConsumeQueue unit against the record that it names, and that every record has its unit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import QueueRows
from reput_broker.tools.layout import StoreLayout, Stream
from reput_broker.tools.log_reader import Damage
from reput_broker.tools.report import Report
from reput_broker.tools.unit_files import OpenFiles, UnitFiles
from reput_broker.tools.verify_queue import ExtUnits, QueueCheck, QueueFindings, QueueState
from reput_protocol.printable import counted

LMQ_PREFIX = "%LMQ%"


class QueuesFindings(NamedTuple):
    """What a walk through a part of the log found in all queues, when there was nothing odd."""

    queues: dict[tuple[str, int], QueueFindings]
    skipped: dict[str, int]
    """Records of deleted topics."""


class QueuesCheck:
    """All queues of a store.

    Args:
        layout: the directory.
        deleted: whose records do not count.
        known_topics: what `topics.json` lists; None if it cannot be read or is not there.
        skip_topics: topics whose queues have another form.
    """

    def __init__(
        self,
        layout: StoreLayout,
        deleted: DeletedTopics,
        known_topics: set[str] | None,
        skip_topics: set[str],
    ) -> None:
        self.files = OpenFiles()
        self._layout = layout
        self._deleted = deleted
        self._known_topics = known_topics
        self._skip = skip_topics
        self._checks: dict[tuple[str, int], QueueCheck] = {}
        self._topics_with_queues: set[str] = set()
        self._skipped: dict[str, int] = {}
        for queue in layout.queues:
            if queue.topic in skip_topics or queue.topic.startswith(LMQ_PREFIX):
                continue
            self._topics_with_queues.add(queue.topic)
            self._checks[queue.topic, queue.queue_id] = self._make(queue.topic, queue.queue_id, queue.stream)

    def _make(self, topic: str, queue_id: int, stream: Stream) -> QueueCheck:
        ext = ExtUnits.of_queue(self._layout.root, topic, queue_id, self.files)
        return QueueCheck(topic, queue_id, UnitFiles(stream, self.files), self._layout.log, ext)

    def _make_missing(self, topic: str, queue_id: int) -> QueueCheck:
        path = self._layout.consume_queue_dir / topic / str(queue_id)
        return self._make(topic, queue_id, Stream((path,), file_size=self._layout.queue_file_size))

    def compare(self, run: QueueRows, damages: Sequence[Damage]) -> None:
        """Compare a run of records with its queue."""
        check = self._checks.get((run.topic, run.queue_id))
        if check is None:
            topic = run.topic
            gone = self._known_topics is not None and topic not in self._known_topics
            if topic in self._skip or (topic not in self._topics_with_queues and gone):
                self._skipped[topic] = self._skipped.get(topic, 0) + len(run.physical_offsets)
                return
            check = self._checks[topic, run.queue_id] = self._make_missing(topic, run.queue_id)
        if len(self._deleted):
            end = self._deleted.end_offset(check.topic)
            skip = bisect_left(run.physical_offsets, end)
            if skip == len(run.physical_offsets):
                return
            if skip:
                run = QueueRows(
                    run.topic, run.queue_id, run.first_queue_offset + skip, *(part[skip:] for part in run[3:])
                )
        check.compare(run, damages)

    def resume(self, states: Mapping[tuple[str, int], QueueState]) -> None:
        """Go on from a later place than the beginning of the log."""
        for key, state in states.items():
            if key in self._checks:
                self._checks[key].resume(state)

    def state_of(self, key: tuple[str, int]) -> QueueState | None:
        """Return where the walk is in a queue; None before its first message."""
        check = self._checks.get(key)
        return None if check is None else check.state

    @property
    def is_odd(self) -> bool:
        """Whether anything was found that depends on what came before."""
        return any(check.is_odd for check in self._checks.values())

    def findings(self) -> QueuesFindings:
        """Return what was found, if it is nothing odd."""
        met = {key: check.findings() for key, check in self._checks.items() if check.was_compared}
        return QueuesFindings(met, self._skipped)

    def take(self, found: QueuesFindings) -> None:
        """Take what somebody else found in the next files of the log, who went on from where this walk is."""
        for (topic, queue_id), findings in found.queues.items():
            check = self._checks.get((topic, queue_id))
            if check is None:
                check = self._checks[topic, queue_id] = self._make_missing(topic, queue_id)
            check.take(findings)
        for topic, count in found.skipped.items():
            self._skipped[topic] = self._skipped.get(topic, 0) + count

    def close(self) -> None:
        """Close all files."""
        self.files.close()

    def other_delays(self) -> Path | None:
        """Return the directory of a queue whose messages are mostly due at other times than by the delay levels."""
        for check in self._checks.values():
            if check.has_other_delay:
                return self._layout.consume_queue_dir / check.topic / str(check.queue_id)
        return None

    def ends(self) -> dict[tuple[str, int], int]:
        """Return where each queue ends, by its units and by the log, whichever is further."""
        return {
            (check.topic, check.queue_id): max(check.units.end, check.next if check.first is not None else 0)
            for check in self._checks.values()
        }

    def renumbered(self) -> dict[int, int]:
        """Log offsets of records whose number is wrong, and the right one."""
        return {
            offset: number for check in self._checks.values() for offset, number in check.renumbered.items()
        }

    def finish(
        self, report: Report, damages: Sequence[Damage], log_end: int, certain_until: int | None
    ) -> None:
        """Report what was found.

        Args:
            report: where it goes.
            damages: the damaged bytes of the log; units that point there are not reported again.
            log_end: where the log's sound records end.
            certain_until: log offset before which every record must have its unit; None after an orderly stop, when
                all must.
        """
        unfinished = certain_until is not None
        dangling = behind = 0
        for check in self._checks.values():
            dangling += check.finish(self._layout.log.min_offset, damages, log_end, unfinished)
            report.figures["units"] += max(0, check.units.end - check.units.first)
            for fault in check.faults:
                report.fault(*fault)
            for kind, count in check.kinds.items():
                unnamed = count - sum(fault.kind == kind for fault in check.faults)
                if unnamed:
                    report.kinds[kind] += unnamed
            if check.started_anew:
                report.note(f"{check.topic}/{check.queue_id} was deleted and began again at message 0")
            lost = [
                (n, offset) for n, offset in check.behind if certain_until is None or offset < certain_until
            ]
            if lost:
                number, offset = lost[0]
                path, position = check.units.place(number)
                count = check.behind_count if certain_until is None else len(lost)
                report.fault(
                    "queue",
                    path,
                    position,
                    f"{counted(count, 'unit is', 'units are')} missing at the end: message {number} of "
                    f"{check.topic}/{check.queue_id} is the record at log offset {offset}",
                )
            else:
                behind += check.behind_count
        if behind:
            report.note(
                f"{counted(behind, 'message has', 'messages have')} no unit yet: the next start makes them"
            )
        if dangling:
            report.note(
                f"{counted(dangling, 'unit points', 'units point')} behind the end of the log: "
                "the next start removes them"
            )
        if (other := self.other_delays()) is not None:
            report.note(
                f"the messages in {other} are due at other times than their delay levels say: if the broker that wrote "
                "them had delay levels of its own (messageDelayLevel), name them with --delay-levels"
            )
        for topic, count in self._skipped.items():
            if topic not in self._skip:
                report.note(
                    f"{counted(count, 'record belongs', 'records belong')} to topic {topic}, which has been deleted"
                )
        self.files.close()
