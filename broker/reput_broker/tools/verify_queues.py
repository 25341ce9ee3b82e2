"""Check every ConsumeQueue unit against its record, and that every record has its unit.

Each run of records is compared with its units as bytes, and field by field only if they differ.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.dispatch import DeletedTopics, QueueRows
from reput_broker.store.opening.foreign_files import LMQ_PREFIX
from reput_broker.store.queue.table import digest_of_ends
from reput_broker.tools.report import Fault, Report
from reput_protocol.kernel.units import queue_units, stray_units
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.printable import counted
from reput_protocol.record.layout import QUEUE_OFFSET_AT
from reput_protocol.store.layout import StoreLayout, Stream, read_stream
from reput_protocol.store.log_reader import Damage
from reput_protocol.store.unit import (
    EXT_UNIT,
    MIN_ADDRESS,
    UNIT_BYTES,
    ConsumeQueueUnit,
    is_address,
    unpack_unit,
    unpack_units,
)
from reput_protocol.store.unit_files import OpenFiles, UnitFiles

_READ_UNITS = 65_536


@dataclass(eq=False, repr=False)
class ExtUnits:
    """The extended entries of one queue."""

    _stream: Stream
    _files: OpenFiles

    @classmethod
    def of_queue(cls, root: Path, topic: str, queue_id: int, files: OpenFiles) -> ExtUnits | None:
        """Return a queue's extended entries, None if it has no directory for them."""
        directory = root / "consumequeue_ext" / topic / str(queue_id)
        return cls(read_stream((directory,)), files) if directory.is_dir() else None

    def difference(self, address: int, tags_code: int) -> str:
        """Return how the entry at an address contradicts its record; empty if it does not."""
        position = address - MIN_ADDRESS
        file = self._stream.find(position)
        if file is None:
            return f"its extended entry at {position} is in no file"
        head = self._files.read_at(file.path, EXT_UNIT.size, position - file.start)
        if len(head) < EXT_UNIT.size:
            return f"its extended entry at {position} is truncated"
        size, code, _, bitmap = EXT_UNIT.unpack(head)
        if bitmap < 0 or size != EXT_UNIT.size + bitmap:
            return f"its extended entry at {position} of {file.path} has size {size} and a bitmap of {bitmap} bytes"
        if code != tags_code:
            return f"its extended entry at {position} of {file.path} has tags code {code}, should be {tags_code}"
        return ""


_FAULTS_KEPT = 50
_FIELDS = ("log offset", "size", "tags code")
_FIELDS_AT = (0, 8, 12)


class QueueState(NamedTuple):
    """State of a walk in a queue."""

    next: int
    """Number after the last message met."""
    last_offset: int
    """Log offset of that message."""


class QueueFindings(NamedTuple):
    """Findings of a walk through a part of the log in a queue that is not odd; see `QueueCheck`."""

    first: int
    state: QueueState
    behind: list[tuple[int, int]]
    behind_count: int
    compared: int
    other_times: int


class QueueCheck:
    """One queue while the log is walked."""

    def __init__(
        self, topic: str, queue_id: int, units: UnitFiles, log: Stream, ext: ExtUnits | None, certain_until: int | None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.units = units
        self.first: int | None = None
        """Number of its first message in the log; None until that is met."""
        self.next = 0
        """Number after the last message met."""
        self.faults: list[Fault] = []
        self.kinds: Counter[str] = Counter()
        self.renumbered: dict[int, int] = {}
        """Log offset to right number of records whose number is wrong."""
        self.behind: list[tuple[int, int]] = []
        """Number and log offset of messages after the last unit, up to a limit."""
        self.behind_count = 0
        self.was_restarted = False
        self._is_outdated = False
        """Whether the units are those of a topic that was created again since, which the next start drops."""
        self._certain_until = certain_until
        self._is_delayed = topic == SCHEDULE_TOPIC
        self._compared = self._other_times = 0
        self._log = log
        self._ext = ext
        self._last_offset = -1

    @property
    def has_other_delay(self) -> bool:
        """Whether most of its messages are due at another time than their delay level says."""
        return 2 * self._other_times > self._compared

    @property
    def state(self) -> QueueState | None:
        """State of the walk in this queue; None before its first message."""
        return None if self.first is None else QueueState(self.next, self._last_offset)

    @property
    def is_odd(self) -> bool:
        """Whether anything was found that depends on earlier records."""
        return bool(self.kinds or self.renumbered or self.was_restarted)

    def resume(self, state: QueueState) -> None:
        """Continue from a later state."""
        self.first = self.next = state.next
        self._last_offset = state.last_offset

    def take(self, later: QueueFindings) -> None:
        """Add the findings of a parallel walk that continued from this state."""
        self.first = later.first if self.first is None else self.first
        self.next, self._last_offset = later.state
        self.behind = (self.behind + later.behind)[:_FAULTS_KEPT]
        self.behind_count += later.behind_count
        self._compared += later.compared
        self._other_times += later.other_times

    def findings(self) -> QueueFindings:
        """Return the findings if the queue is not odd."""
        assert self.first is not None, "something was compared"
        return QueueFindings(
            self.first,
            QueueState(self.next, self._last_offset),
            self.behind,
            self.behind_count,
            self._compared,
            self._other_times,
        )

    @property
    def was_compared(self) -> bool:
        """Whether a message of this queue was met."""
        return self._compared > 0

    def compare(self, run: QueueRows, damages: Sequence[Damage]) -> None:
        """Compare a run of records with its units."""
        number = run.first_queue_offset
        count = len(run.physical_offsets)
        expected = units_of(run)
        raw = self._units_at(number, count)
        if self.first is None:
            self.first = self.next = number
        elif number != self.next:
            number = self._jump(number, run, raw, damages)
            raw = self._units_at(number, count)
        if raw != expected:
            self._differences(number, raw, expected)
        self._compared += count
        self.next = max(self.next, number + count)
        self._last_offset = run.physical_offsets[-1]

    def _units_at(self, number: int, count: int) -> bytes:
        return (
            bytes(count * UNIT_BYTES)
            if self._is_outdated
            else self.units.read_bytes(number * UNIT_BYTES, count * UNIT_BYTES)
        )

    def _jump(self, number: int, run: QueueRows, raw: bytes, damages: Sequence[Damage]) -> int:
        """Handle a run that does not continue the last one; return the number of its first message."""
        offset = run.physical_offsets[0]
        is_uncertain = self._certain_until is not None and offset >= self._certain_until
        if number == 0 and (int.from_bytes(raw[:8], "big") == offset or is_uncertain):
            # The topic was deleted, by a broker that leaves no mark, and created again. (A slave takes over the mark
            # later than the log.)
            self.was_restarted = True
            self._is_outdated = int.from_bytes(raw[:8], "big") != offset
            self.faults.clear()
            self.behind.clear()
            self.kinds.clear()
            self.behind_count = 0
            self.first = self.next = 0
            return 0
        where = f"message {number} of {self.topic}/{self.queue_id}"
        if self.units.read(self.next, 1)[0].physical_offset == offset and offset:
            path, position = self._log.place(offset + QUEUE_OFFSET_AT)
            words = f"QUEUEOFFSET is {number}, but unit {self.next} of its queue names the record"
            self._fault(path, position, words, "order")
            self.renumbered[offset] = self.next
            return self.next
        path, position = self._log.place(offset)
        if number < self.next:
            self._fault(path, position, f"{where}: the message before it has number {self.next - 1}", "order")
            return number
        lost = [damage for damage in damages if self._last_offset < damage.end_offset and damage.offset < offset]
        stop = min(number, self.units.end)
        for at in range(self.next, stop, _READ_UNITS):
            for found, unit in enumerate(self.units.read(at, min(_READ_UNITS, stop - at)), at):
                if (unit.size or unit.physical_offset) and not any(
                    damage.offset <= unit.physical_offset < damage.end_offset for damage in lost
                ):
                    self._points_nowhere(found, unit)
        if not lost and stop <= self.next:
            self._fault(
                path,
                position,
                f"{where}: messages from {self.next} on are neither in the log nor in the queue",
                "order",
            )
        return number

    def _differences(self, number: int, units: bytes, expected: bytearray) -> None:
        pairs = zip(unpack_units(units), unpack_units(expected), strict=True)
        for at, (unit, wanted) in enumerate(pairs, number):
            if unit == wanted:
                continue
            path, position = self.units.place(at)
            if not any(unit):
                if at >= self.units.end or self._is_outdated:
                    self.behind_count += 1
                    if len(self.behind) < _FAULTS_KEPT:
                        self.behind.append((at, wanted.physical_offset))
                else:
                    self._fault(path, position, f"unit {at} is empty; {self._names(at, wanted)}")
                continue
            for words, shift, found, right in zip(_FIELDS, _FIELDS_AT, unit, wanted, strict=True):
                if found == right:
                    continue
                is_code = words == "tags code"
                if is_code and self._ext is not None and is_address(found):
                    wrong = self._ext.difference(found, right)
                    if wrong:
                        self._fault(path, position + shift, f"unit {at}: {wrong}")
                    continue
                if is_code and self._is_delayed:
                    self._other_times += 1
                self._fault(
                    path,
                    position + shift,
                    f"unit {at} gives {words} {found}, should be {right}; {self._names(at, wanted)}",
                )

    def _names(self, number: int, wanted: ConsumeQueueUnit) -> str:
        return f"message {number} of {self.topic}/{self.queue_id} is the record at log offset {wanted.physical_offset}"

    def finish(self, log_min: int, damages: Sequence[Damage], log_end: int, unfinished: bool) -> int:
        """Check the units before the first and after the last message of the log.

        Returns how many units point beyond the end of a log that was not closed in order.
        """
        dangling = 0
        if self._is_outdated:
            return dangling
        before = self.units.end if self.first is None else min(self.first, self.units.end)
        ranges = ((self.units.first, before, True), (max(self.next, before), self.units.end, False))
        damaged = array("q", [edge for damage in damages for edge in (damage.offset, damage.end_offset)])
        for start, stop, may_be_blank in ranges:
            for at in range(start, stop, _READ_UNITS):
                units = self.units.read_bytes(at * UNIT_BYTES, min(_READ_UNITS, stop - at) * UNIT_BYTES)
                found, behind = stray_units(units, log_min, log_end if unfinished else -1, may_be_blank, damaged)
                dangling += behind
                for row in found[:_FAULTS_KEPT]:
                    self._points_nowhere(at + row, unpack_unit(units, row))
                self.kinds["queue"] += max(0, len(found) - _FAULTS_KEPT)
        return dangling

    def _points_nowhere(self, number: int, unit: ConsumeQueueUnit) -> None:
        path, position = self.units.place(number)
        self._fault(
            path,
            position,
            f"unit {number} of {self.topic}/{self.queue_id} gives log offset {unit.physical_offset} and "
            f"size {unit.size}, "
            "but no such message of this queue is there",
        )

    def _fault(self, path: Path, position: int, reason: str, kind: str = "queue") -> None:
        self.kinds[kind] += 1
        if self.kinds[kind] <= _FAULTS_KEPT:
            self.faults.append(Fault(kind, path, position, reason))


class QueuesFindings(NamedTuple):
    """Findings of a walk through a part of the log in all queues, if none is odd."""

    queues: dict[tuple[str, int], QueueFindings]
    skipped: dict[str, int]
    """Records of deleted topics."""


class QueuesCheck:
    """All queues of a store.

    Args:
        deleted: topics whose records do not count.
        known_topics: contents of `topics.json`; None if it is missing or unreadable.
        skip_topics: topics whose queues have another form.
        certain_until: log offset before which every record must have its unit; None after an
            orderly stop, when all must.
    """

    def __init__(
        self,
        layout: StoreLayout,
        deleted: DeletedTopics,
        known_topics: set[str] | None,
        skip_topics: set[str],
        certain_until: int | None,
    ) -> None:
        self._certain_until = certain_until
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
        return QueueCheck(topic, queue_id, UnitFiles(stream, self.files), self._layout.log, ext, self._certain_until)

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
        """Continue from a later state than the beginning of the log."""
        for key, state in states.items():
            if key in self._checks:
                self._checks[key].resume(state)

    def state_of(self, key: tuple[str, int]) -> QueueState | None:
        """Return the state of the walk in a queue; None before its first message."""
        check = self._checks.get(key)
        return None if check is None else check.state

    @property
    def is_odd(self) -> bool:
        """Whether anything was found that depends on earlier records."""
        return any(check.is_odd for check in self._checks.values())

    def findings(self) -> QueuesFindings:
        """Return the findings if no queue is odd."""
        met = {key: check.findings() for key, check in self._checks.items() if check.was_compared}
        return QueuesFindings(met, self._skipped)

    def take(self, found: QueuesFindings) -> None:
        """Add the findings of a parallel walk that continued from this walk's state."""
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
        """Return the directory of a queue most of whose messages contradict the delay levels."""
        for check in self._checks.values():
            if check.has_other_delay:
                return self._layout.consume_queue_dir / check.topic / str(check.queue_id)
        return None

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the end of each queue according to its units or to the log, whichever is greater."""
        return {
            (check.topic, check.queue_id): max(check.units.end, check.next if check.first is not None else 0)
            for check in self._checks.values()
        }

    def renumbered(self) -> dict[int, int]:
        """Log offset to right queue offset of records whose queue offset is wrong."""
        return {offset: number for check in self._checks.values() for offset, number in check.renumbered.items()}

    def finish(self, report: Report, damages: Sequence[Damage], log_end: int) -> None:
        """Report the findings.

        Args:
            damages: the damaged bytes of the log; units that point there are not reported again.
            log_end: end of the log's valid records.
        """
        certain_until = self._certain_until
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
            if check.was_restarted:
                report.note(f"{check.topic}/{check.queue_id} was deleted and began again at message 0")
            lost = [(n, offset) for n, offset in check.behind if certain_until is None or offset < certain_until]
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
            report.note(f"{counted(behind, 'message has', 'messages have')} no unit yet: the next start creates them")
        if dangling:
            report.note(
                f"{counted(dangling, 'unit points', 'units point')} beyond the end of the log: "
                "the next start removes them"
            )
        if (other := self.other_delays()) is not None:
            report.note(
                f"the messages in {other} are due at other times than their delay levels say: if the broker that wrote "
                "them had other delay levels (messageDelayLevel), name them with --delay-levels"
            )
        for topic, count in self._skipped.items():
            if topic not in self._skip:
                report.note(
                    f"{counted(count, 'record belongs', 'records belong')} to topic {topic}, which has been deleted"
                )
        self.files.close()


def units_of(run: QueueRows) -> bytearray:
    """Return the units of consecutive records of a queue."""
    return queue_units(run.physical_offsets, run.sizes, run.tags_codes, run.first_queue_offset, -1, -1)[0]


def queue_ends(layout: StoreLayout, log_end: int) -> dict[tuple[str, int], int]:
    """Return where each queue ends if only units of records before a log offset count."""
    ends: dict[tuple[str, int], int] = {}
    files = OpenFiles()
    try:
        for queue in layout.queues:
            units = UnitFiles(queue.stream, files)
            end = units.end
            while end > units.first:
                first = max(units.first, end - _READ_UNITS)
                data = units.read_bytes(first * UNIT_BYTES, (end - first) * UNIT_BYTES)
                while end > first and unpack_unit(data, end - 1 - first).physical_offset >= log_end:
                    end -= 1
                if end > first:
                    break
            ends[queue.topic, queue.queue_id] = end
    finally:
        files.close()
    return ends


def queues_digest(layout: StoreLayout) -> int:
    """Return the checksum of where all queues begin and end, as an orderly stop computes it."""
    ends: list[tuple[str, int, int, int, int]] = []
    files = OpenFiles()
    try:
        for queue in layout.queues:
            if queue.stream.files:
                units = UnitFiles(queue.stream, files)
                last = units.read(units.end - 1, 1)[0]
                ends.append((queue.topic, queue.queue_id, units.first, units.end, last.end_offset))
    finally:
        files.close()
    return digest_of_ends(ends)
