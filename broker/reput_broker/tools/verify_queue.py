"""Check the units of one queue against the records of its messages, while the log is walked.

Each run of records is compared with the units of the same numbers as bytes. Only where they differ is looked at field
by field.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.dispatch import QueueRows
from reput_broker.store.queue.extension_unit import EXT_UNIT, MIN_ADDRESS, is_address
from reput_broker.store.queue.unit import UNIT_BYTES, ConsumeQueueUnit, unpack_unit, unpack_units
from reput_broker.tools.layout import Stream, read_stream
from reput_broker.tools.log_reader import Damage
from reput_broker.tools.report import Fault
from reput_broker.tools.unit_files import OpenFiles, UnitFiles, units_of
from reput_protocol.kernel.units import stray_units
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.record.layout import QUEUE_OFFSET_AT


class ExtUnits:
    """The extended entries of one queue."""

    def __init__(self, stream: Stream, files: OpenFiles) -> None:
        self._stream = stream
        self._files = files

    @classmethod
    def of_queue(cls, root: Path, topic: str, queue_id: int, files: OpenFiles) -> ExtUnits | None:
        """Return a queue's extended entries, None if it has no directory for them."""
        directory = root / "consumequeue_ext" / topic / str(queue_id)
        return cls(read_stream((directory,)), files) if directory.is_dir() else None

    def difference(self, address: int, tags_code: int) -> str:
        """Say how the entry at an address contradicts its record; empty if it does not."""
        position = address - MIN_ADDRESS
        file = self._stream.find(position)
        if file is None:
            return f"its extended entry at {position} is in no file"
        head = os.pread(self._files.fd(file.path), EXT_UNIT.size, position - file.start)
        if len(head) < EXT_UNIT.size:
            return f"its extended entry at {position} is cut short"
        size, code, _, bitmap = EXT_UNIT.unpack(head)
        if bitmap < 0 or size != EXT_UNIT.size + bitmap:
            return f"its extended entry at {position} of {file.path} has size {size} and a bitmap of {bitmap} bytes"
        if code != tags_code:
            return (
                f"its extended entry at {position} of {file.path} has tags code {code}, should be {tags_code}"
            )
        return ""


_FAULTS_KEPT = 50
_READ_UNITS = 65_536
_FIELDS = ("log offset", "size", "tags code")
_FIELDS_AT = (0, 8, 12)


class QueueState(NamedTuple):
    """Where a walk is in a queue."""

    next: int
    """Number after the last message seen."""
    last_offset: int
    """Log offset of that message."""


class QueueFindings(NamedTuple):
    """What a walk through a part of the log found in a queue, when there was nothing odd; see `QueueCheck`."""

    first: int
    state: QueueState
    behind: list[tuple[int, int]]
    behind_count: int
    compared: int
    other_times: int


class QueueCheck:
    """One queue while the log is walked."""

    def __init__(
        self, topic: str, queue_id: int, units: UnitFiles, log: Stream, ext: ExtUnits | None
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.units = units
        self.first: int | None = None
        """Number of the queue's first message in the log; None until there is one."""
        self.next = 0
        """Number after the last message seen."""
        self.faults: list[Fault] = []
        self.kinds: Counter[str] = Counter()
        """All faults by kind, kept or not."""
        self.renumbered: dict[int, int] = {}
        """Log offsets of records whose number is wrong, and the right one."""
        self.behind: list[tuple[int, int]] = []
        """Number and log offset of messages behind the last unit, at most a few of them."""
        self.behind_count = 0
        self.started_anew = False
        self._is_parked = topic == SCHEDULE_TOPIC
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
        """Where the walk is in this queue; None before its first message."""
        return None if self.first is None else QueueState(self.next, self._last_offset)

    @property
    def is_odd(self) -> bool:
        """Whether anything was found that depends on what came before."""
        return bool(self.kinds or self.renumbered or self.started_anew)

    def resume(self, state: QueueState) -> None:
        """Go on from a later place than the beginning."""
        self.first = self.next = state.next
        self._last_offset = state.last_offset

    def take(self, later: QueueFindings) -> None:
        """Take what somebody else found, who went on from this very state."""
        self.first = later.first if self.first is None else self.first
        self.next, self._last_offset = later.state
        self.behind = (self.behind + later.behind)[:_FAULTS_KEPT]
        self.behind_count += later.behind_count
        self._compared += later.compared
        self._other_times += later.other_times

    def findings(self) -> QueueFindings:
        """Return what was found, if it is nothing odd."""
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
        """Compare a run of records with the units of their numbers."""
        number = run.first_queue_offset
        count = len(run.physical_offsets)
        expected = units_of(run)
        raw = self.units.read_bytes(number * UNIT_BYTES, count * UNIT_BYTES)
        if self.first is None:
            self.first = self.next = number
        elif number != self.next:
            number = self._jump(number, run, raw, damages)
            raw = self.units.read_bytes(number * UNIT_BYTES, count * UNIT_BYTES)
        if raw != expected:
            self._differences(number, raw, expected)
        self._compared += count
        self.next = max(self.next, number + count)
        self._last_offset = run.physical_offsets[-1]

    def _jump(self, number: int, run: QueueRows, raw: bytes, damages: Sequence[Damage]) -> int:
        """The numbers do not go on where they stopped; return the number that the run begins with after all."""
        offset = run.physical_offsets[0]
        if number == 0 and int.from_bytes(raw[:8], "big") == offset:
            # The topic was deleted, by a broker that leaves no mark, and created anew.
            self.started_anew = True
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
        lost = [
            damage for damage in damages if self._last_offset < damage.end_offset and damage.offset < offset
        ]
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
                if at >= self.units.end:
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
                if is_code and self._is_parked:
                    self._other_times += 1
                self._fault(
                    path,
                    position + shift,
                    f"unit {at} gives {words} {found}, should be {right}; {self._names(at, wanted)}",
                )

    def _names(self, number: int, wanted: ConsumeQueueUnit) -> str:
        return (
            f"message {number} of {self.topic}/{self.queue_id} is the record at log offset "
            f"{wanted.physical_offset}"
        )

    def finish(self, log_min: int, damages: Sequence[Damage], log_end: int, unfinished: bool) -> int:
        """Look at the units before the first and after the last message of the log.

        Returns how many units point behind the end of a log that was not closed in order.
        """
        dangling = 0
        before = self.units.end if self.first is None else min(self.first, self.units.end)
        ranges = ((self.units.first, before, True), (max(self.next, before), self.units.end, False))
        damaged = array("q", [edge for damage in damages for edge in (damage.offset, damage.end_offset)])
        for start, stop, may_be_blank in ranges:
            for at in range(start, stop, _READ_UNITS):
                units = self.units.read_bytes(at * UNIT_BYTES, min(_READ_UNITS, stop - at) * UNIT_BYTES)
                found, behind = stray_units(
                    units, log_min, log_end if unfinished else -1, may_be_blank, damaged
                )
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
