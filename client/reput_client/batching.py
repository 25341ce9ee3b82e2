"""Linger and batch: sends that wait a moment so that they can leave together. Pure; the producer does the waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from reput_client.core import Call, Waiter
from reput_client.receipts import SendReceipt
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.message import Message, MessageQueue


class FanOut(Waiter):
    """A waiter for one call that wakes several others."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        super().__init__()
        self.members: list[Waiter] = []

    def notify(self) -> None:
        """The call has finished: wake every member."""
        super().notify()
        for member in self.members:
            member.notify()


@dataclass(slots=True, eq=False)
class Entry:
    """One message in a group, and whoever waits for its receipt."""

    message: Message
    unique_id: str | None
    size: int
    waiter: Waiter = field(default_factory=Waiter)


@dataclass(slots=True, eq=False)
class Group:
    """Sends to one queue at one ack level that will share a block.

    A group is open until its block leaves. It is due `linger_s` after its first message, or at once when full.
    """

    queue: MessageQueue
    ack: AckLevel
    due_at: float
    entries: list[Entry] = field(default_factory=list)
    size: int = 0
    open: bool = True
    block: Buffer = b""
    call: Call | None = None
    receipts: list[SendReceipt] | None = None
    fan_out: FanOut = field(default_factory=FanOut)


class Batcher:
    """The open groups of a producer, one for each queue and ack level.

    Invariant: a group never holds more than `count_max` messages, nor more than `bytes_max` bytes unless one
    message alone is larger.
    """

    def __init__(self, linger_s: float, bytes_max: int, count_max: int) -> None:
        self._linger_s = linger_s
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._groups: dict[tuple[MessageQueue, AckLevel], Group] = {}

    def add(self, queue: MessageQueue, ack: AckLevel, entry: Entry, now: float) -> Group:
        """Put an entry into the group of its queue; a group that it fills up, or does not fit, becomes due."""
        group = self._groups.get((queue, ack))
        if group is not None and group.size + entry.size > self._bytes_max:
            self._make_due(group)
            group = None
        if group is None:
            group = self._groups[queue, ack] = Group(queue, ack, now + self._linger_s)
        group.entries.append(entry)
        group.size += entry.size
        if len(group.entries) >= self._count_max or group.size >= self._bytes_max:
            self._make_due(group)
        return group

    def _make_due(self, group: Group) -> None:
        """No more entries for this group; its members may send it at once."""
        group.due_at = -math.inf
        if self._groups.get((group.queue, group.ack)) is group:
            del self._groups[group.queue, group.ack]
        for entry in group.entries:
            if entry.waiter.wake is not None:
                entry.waiter.wake()

    def close(self, group: Group) -> None:
        """The group's block leaves now: it takes no more entries and gives none back."""
        group.open = False
        if self._groups.get((group.queue, group.ack)) is group:
            del self._groups[group.queue, group.ack]

    def withdraw(self, group: Group, entry: Entry) -> bool:
        """Take an entry back, if its group has not left yet."""
        if not group.open:
            return False
        if entry not in group.entries:
            return False
        group.entries.remove(entry)
        group.size -= entry.size
        if not group.entries:
            self.close(group)
        return True
