"""The slots of the wheel whose time is near, in memory: their messages by the millisecond at which they fire.

A slot is begun when the loader has seen its chain; what is put into it later comes here directly. It is done with when
its second is over, its chain is loaded and none of its messages waits any more. The log offset at which its first
message was delivered is kept until then: the copies of all messages of slots that are not done with lie behind it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from reput_broker.delay.delayed_record import DeleteId, Due


@dataclass(slots=True)
class ActiveSlot:
    """A slot whose messages are here, or on their way."""

    is_loaded: bool
    waiting: set[int] = field(default_factory=set)
    """Log offsets of messages that have not been delivered, cancelled or dropped yet."""
    order: list[int] | None = None
    """Those in order, and some that wait no more, once somebody has asked for them so."""
    began_at: int | None = None
    """Where the log ended when the first of its messages was delivered."""
    deletes: dict[DeleteId, str | None] = field(default_factory=dict)
    """What delete messages of this slot cancel: the topic that it is for, None once such a message has come up."""


class ActiveSlots:
    """What waits in memory. One owner."""

    def __init__(self) -> None:
        self.slots: dict[int, ActiveSlot] = {}
        """Every begun slot that is not done with, by its time."""
        self._heap: list[Due] = []
        self._waiting: dict[int, Due] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_loading(self) -> bool:
        """Whether the messages of a begun slot are still on their way."""
        return any(not slot.is_loaded for slot in self.slots.values())

    def activate(self, slot_ms: int, *, is_loaded: bool) -> ActiveSlot:
        """Return a slot, begun if need be."""
        slot = self.slots.get(slot_ms)
        if slot is None:
            slot = self.slots[slot_ms] = ActiveSlot(is_loaded)
        return slot

    def push(self, due: Due) -> None:
        """Let a message of a begun slot wait for its time; nothing happens if it does already."""
        if due.physical_offset in self._waiting:
            return
        self._waiting[due.physical_offset] = due
        slot = self.slots[due.place]
        slot.waiting.add(due.physical_offset)
        if slot.order is not None:
            at = bisect_left(slot.order, due.physical_offset)
            if slot.order[at : at + 1] != [due.physical_offset]:
                slot.order.insert(at, due.physical_offset)
        heapq.heappush(self._heap, due)

    @property
    def next_ms(self) -> int | None:
        """When the next message fires; None if none waits."""
        heap = self._heap
        while heap and heap[0].physical_offset not in self._waiting:
            heapq.heappop(heap)  # cancelled
        return heap[0].due_ms if heap else None

    def take(self, now_ms: int, count: int) -> list[Due]:
        """Return up to `count` messages whose time has come, in order; they still wait. `give_back` what was not
        done."""
        taken: list[Due] = []
        heap = self._heap
        while heap and len(taken) < count and heap[0].due_ms <= now_ms:
            due = heapq.heappop(heap)
            if due.physical_offset in self._waiting:
                taken.append(due)
        return taken

    def give_back(self, dues: Iterable[Due]) -> None:
        """Let messages that were taken fire again."""
        for due in dues:
            heapq.heappush(self._heap, due)

    def is_waiting(self, physical_offset: int) -> bool:
        """Whether this message waits here."""
        return physical_offset in self._waiting

    def done(self, physical_offset: int, *, delivered_from: int | None = None) -> None:
        """Forget a message: it was delivered, with the log ending at `delivered_from` before, or cancelled or
        dropped."""
        due = self._waiting.pop(physical_offset, None)
        if due is None:
            return
        slot = self.slots[due.place]
        slot.waiting.discard(physical_offset)
        if delivered_from is not None and slot.began_at is None:
            slot.began_at = delivered_from

    def waiting(self) -> list[Due]:
        """Return every message that waits, in order."""
        return sorted(self._waiting.values())

    def waiting_in(self, slot_ms: int, after: int, count: int) -> list[Due]:
        """Return up to `count` messages that wait in a begun slot, by their log offsets beyond `after`.

        Costs what the slot has the first time, and little more than what is returned afterwards.
        """
        slot = self.slots[slot_ms]
        if slot.order is None:
            slot.order = sorted(slot.waiting)
        order, found = slot.order, list[Due]()
        for index in range(bisect_right(order, after), len(order)):
            if order[index] in slot.waiting:
                found.append(self._waiting[order[index]])
                if len(found) >= count:
                    break
        return found

    def finish_before(self, stop_ms: int) -> tuple[int, list[ActiveSlot]]:
        """Forget the slots before a time that are done with, up to the first that is not.

        Returns:
            The time of that slot, or `stop_ms`; and the slots that were forgotten.
        """
        finished: list[ActiveSlot] = []
        for slot_ms in sorted(slot_ms for slot_ms in self.slots if slot_ms < stop_ms):
            slot = self.slots[slot_ms]
            if slot.waiting or not slot.is_loaded:
                return slot_ms, finished
            finished.append(self.slots.pop(slot_ms))
        return stop_ms, finished

    def first_delivery(self, default: int) -> int:
        """Return where the log ended before the first delivery of a slot that is not done with."""
        return min((s.began_at for s in self.slots.values() if s.began_at is not None), default=default)
