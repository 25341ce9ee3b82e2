"""The slots of the wheel that are due soon, in memory: their messages by the millisecond at which they are due.

A slot is activated when the loader finds its chain; messages put into it later are added here directly. It is finished
when its second is over, its chain is loaded and none of its messages waits. Until then it keeps the log offset at which
its first message was delivered, behind which the copies of its messages are.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from reput_broker.delay.delayed_record import DeleteId, Due


@dataclass(slots=True)
class ActiveSlot:
    """A slot whose messages are in memory or being loaded."""

    is_loaded: bool
    waiting: set[int] = field(default_factory=set)
    """Log offsets of messages that are not finished."""
    order: list[int] | None = None
    """The same sorted, perhaps with finished ones; None until `waiting_in`."""
    delivered_from: int | None = None
    """Where the log ended when the first of its messages was delivered."""
    deletes: dict[DeleteId, str | None] = field(default_factory=dict)
    """What its delete messages cancel, with the topic; None once that has been found."""


class ActiveSlots:
    """The messages in memory. One owner."""

    def __init__(self) -> None:
        self.slots: dict[int, ActiveSlot] = {}
        """Every unfinished active slot by its time."""
        self._heap: list[Due] = []
        self._waiting: dict[int, Due] = {}
        self._taken: list[Due] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_loading(self) -> bool:
        """Whether an active slot is still being loaded."""
        return any(not slot.is_loaded for slot in self.slots.values())

    def activate(self, slot_ms: int, *, is_loaded: bool) -> ActiveSlot:
        """Return the slot of this time, activated if necessary."""
        slot = self.slots.get(slot_ms)
        if slot is None:
            slot = self.slots[slot_ms] = ActiveSlot(is_loaded)
        return slot

    def push(self, due: Due) -> None:
        """Add a message of an active slot, unless it is there."""
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
        """When the next message is due; None if none waits."""
        heap = self._heap
        while heap and heap[0].physical_offset not in self._waiting:
            heapq.heappop(heap)  # cancelled
        return heap[0].due_ms if heap else None

    @property
    def first_ms(self) -> int | None:
        """When the first message is due that is not done, one that was taken included; None if there is none."""
        taken = [due.due_ms for due in self._taken if due.physical_offset in self._waiting]
        next_ms = self.next_ms
        return min(taken if next_ms is None else (*taken, next_ms), default=None)

    def take(self, now_ms: int, count: int) -> list[Due]:
        """Return up to `count` due messages in order. Those that are not `done` must be given back."""
        taken: list[Due] = []
        heap = self._heap
        while heap and len(taken) < count and heap[0].due_ms <= now_ms:
            due = heapq.heappop(heap)
            if due.physical_offset in self._waiting:
                taken.append(due)
        self._taken = taken
        return taken

    def give_back(self, dues: Iterable[Due]) -> None:
        """End what `take` began: make the messages of `dues` due again."""
        self._taken = []
        for due in dues:
            heapq.heappush(self._heap, due)

    def is_waiting(self, physical_offset: int) -> bool:
        """Whether this message waits here."""
        return physical_offset in self._waiting

    def done(self, physical_offset: int, *, delivered_from: int | None = None) -> None:
        """Remove a delivered, cancelled or dropped message.

        Args:
            physical_offset: of its delayed record.
            delivered_from: where the log ended before the delivery; None if it was not delivered.
        """
        due = self._waiting.pop(physical_offset, None)
        if due is None:
            return
        slot = self.slots[due.place]
        slot.waiting.discard(physical_offset)
        if delivered_from is not None and slot.delivered_from is None:
            slot.delivered_from = delivered_from

    def first_late(self, before_ms: int, default: int) -> int:
        """Return the first log offset of a waiting message whose own slot is before that of a time."""
        # One that is rescheduled there is due when the slot begins that it is in.
        return min((due.physical_offset for due in self._waiting.values() if due.due_ms <= before_ms), default=default)

    def waiting(self) -> list[Due]:
        """Return every waiting message in order."""
        return sorted(self._waiting.values())

    def waiting_in(self, slot_ms: int, after: int, count: int) -> list[Due]:
        """Return up to `count` waiting messages of a slot, by log offset beyond `after`. The first
        call sorts the slot."""
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
        """Remove the finished slots before a time, up to the first unfinished one; return that
        one's time, or `stop_ms`, and the removed slots."""
        finished: list[ActiveSlot] = []
        for slot_ms in sorted(slot_ms for slot_ms in self.slots if slot_ms < stop_ms):
            slot = self.slots[slot_ms]
            if slot.waiting or not slot.is_loaded:
                return slot_ms, finished
            finished.append(self.slots.pop(slot_ms))
        return stop_ms, finished

    def first_delivery(self, default: int) -> int:
        """Return where the log ended before the first delivery of an unfinished slot."""
        return min((s.delivered_from for s in self.slots.values() if s.delivered_from is not None), default=default)
