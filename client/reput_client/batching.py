"""Messages that share a block: the groups they wait in, and what their senders hold of them. Pure; `posting.py` waits.

A group is *open* while it takes messages, has *left* when its block is made, and is *done* when every message in it has
its receipt or its error. It is due `linger_s` after its first message, or at once when full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from reput_client.connection import Connection
from reput_client.core import Call, Waiter
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_client.puts import outcome_unknown
from reput_client.receipts import BlockReceipts, SendReceipt
from reput_client.unique_ids import RunIds
from reput_protocol.body_block import encode_body_block
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.commands_send import PutMessageResult
from reput_protocol.errors import ReputError
from reput_protocol.message import MessageQueue
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.properties import UNIQ_KEY


class Posted:
    """One message that was handed over, and what became of it.

    `callback`, if there is one, is called with this once it is done. `heeded` tells that somebody has been told of
    its outcome: an error that nobody heeds comes up in `flush`.
    """

    __slots__ = ("callback", "group", "heeded", "number")

    def __init__(self, group: Group, number: int, callback: Callable[[Posted], object] | None) -> None:
        self.group = group
        self.number = number
        self.callback = callback
        self.heeded = callback is not None

    @property
    def done(self) -> bool:
        """Whether it has a receipt or an error."""
        return self.group.done

    @property
    def error(self) -> ReputError | None:
        """Why it was not acknowledged, None if it was or is not done."""
        self.heeded = True
        return self.group.error_of(self.number)

    @property
    def receipt(self) -> SendReceipt:
        """Its receipt.

        Raises:
            LookupError: it is not done yet; wait for it with the producer's `result`.
            Others as `Producer.send`: it failed.
        """
        if not self.group.done:
            raise LookupError("not acknowledged yet; wait for it with result() or flush() of the producer")
        error = self.error
        if error is not None:
            raise error
        assert self.group.receipts is not None, "a group that is done has receipts or an error"
        return self.group.receipts[self.number]


class Group:
    """Messages for one queue, of one ack level and flag, that share a block."""

    __slots__ = (
        "ack",
        "attempt",
        "block",
        "bodies",
        "call",
        "connection",
        "deadline",
        "done",
        "due_at",
        "entries",
        "error",
        "flag",
        "has_own_ids",
        "may_be_stored",
        "not_before",
        "open",
        "positions",
        "queue",
        "receipts",
        "serial",
        "size",
        "texts",
        "unique_ids",
        "watchers",
    )

    def __init__(self, serial: int, queue: MessageQueue, ack: AckLevel, flag: int, due_at: float) -> None:
        self.serial = serial
        self.queue = queue
        self.ack = ack
        self.flag = flag
        self.due_at = due_at
        self.open = True
        self.done = False
        self.size = 0
        self.entries: list[Posted] = []
        self.bodies: list[Buffer] = []
        self.texts: list[bytes] = []
        self.has_own_ids = False
        self.block = b""
        self.positions: Sequence[int] = ()
        self.unique_ids: Sequence[str | None] = ()
        self.deadline = 0.0
        self.not_before = 0.0
        self.attempt = 0
        self.may_be_stored = False
        self.call: Call | None = None
        self.connection: Connection | None = None
        self.receipts: BlockReceipts | None = None
        self.error: ReputError | None = None
        self.watchers: list[Waiter] = []

    def __lt__(self, other: Group) -> bool:
        """Groups leave in the order in which they were opened."""
        return self.serial < other.serial

    def add(
        self, body: Buffer, text: bytes, size: int, callback: Callable[[Posted], object] | None
    ) -> Posted:
        """Take a message whose record has `size` bytes; `text` are its properties."""
        entries = self.entries
        posted = Posted(self, len(entries), callback)
        entries.append(posted)
        self.bodies.append(body)
        self.texts.append(text)
        self.size += size
        return posted

    def withdraw(self, posted: Posted, size: int) -> bool:
        """Take a message back; False if it has left."""
        if not self.open or posted.group is not self:
            return False
        number = posted.number
        if number >= len(self.entries) or self.entries[number] is not posted:
            return False
        del self.entries[number], self.bodies[number], self.texts[number]
        for entry in self.entries[number:]:
            entry.number -= 1
        self.size -= size
        return True

    def encode(self, born_timestamp_ms: int, ids: UniqueIdGenerator | None) -> None:
        """Make the block; the group takes no more messages and gives none back."""
        self.open = False
        count = len(self.bodies)
        texts, runs = self.texts, () if ids is None else ids.next_runs(count)
        self.unique_ids = RunIds(runs) if runs else (None,) * count
        if self.has_own_ids:
            texts, self.unique_ids = _texts_with_ids(texts, self.unique_ids)
            runs = ()
        if texts.count(texts[0]) == count:
            texts = texts[:1]
        block = encode_body_block(
            self.bodies,
            self.queue.topic,
            self.queue.queue_id,
            born_timestamp_ms,
            ids=runs,
            texts=texts,
            flag=self.flag,
        )
        self.block, self.positions = block
        self.bodies = []
        self.texts = []

    def halves(self) -> tuple[Group, Group]:
        """Return two groups with one half of the block each, for a block that was refused: one message is to blame."""
        middle = len(self.entries) // 2
        cut = self.positions[middle]
        return self._part(0, middle, self.block[:cut]), self._part(middle, None, self.block[cut:])

    def _part(self, start: int, end: int | None, block: bytes) -> Group:
        part = Group(self.serial, self.queue, self.ack, self.flag, self.due_at)
        part.open = False
        part.block = block
        first = self.positions[start]
        part.positions = [position - first for position in self.positions[start:end]]
        part.unique_ids = self.unique_ids[start:end]
        part.entries = self.entries[start:end]
        part.size = self.size * len(part.entries) // len(self.entries)
        part.attempt = self.attempt
        part.watchers = list(self.watchers)
        part.has_own_ids = self.has_own_ids
        for number, entry in enumerate(part.entries):
            entry.group, entry.number = part, number
        return part

    def settle(self, result: PutMessageResult | None, error: ReputError | None) -> None:
        """All is known: where it is stored, or why it is not, or both if the ack level was not reached."""
        if result is not None:
            self.receipts = BlockReceipts(self.queue.topic, result, self.positions, self.unique_ids)
        self.error = error
        self.block = b""
        self.call = self.connection = None
        self.done = True

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, an exception of its own: those who share a block must not share one."""
        error = self.error
        if error is None or not self.done:
            return None
        if isinstance(error, SendOutcomeUnknown):
            own = outcome_unknown(self.queue, [self.unique_ids[number]], error.reason)
            own.__cause__ = error.__cause__
            return own
        own_copy = copy(error)
        if isinstance(own_copy, AckNotReached) and self.receipts is not None:
            own_copy.receipts = [self.receipts[number]]
        return own_copy


def _texts_with_ids(texts: list[bytes], fresh: Sequence[str | None]) -> tuple[list[bytes], list[str | None]]:
    """Return texts that hold the unique ids, and the ids: what a text begins with already, else a fresh one."""
    start, ids = f"{UNIQ_KEY}\x01".encode(), list(fresh)
    whole = list(texts)
    for number, text in enumerate(texts):
        if text.startswith(start):
            ids[number] = text[len(start) : text.index(b"\x02")].decode()
        elif (unique_id := ids[number]) is not None:
            whole[number] = b"%b%b\x02%b" % (start, unique_id.encode(), text)
    return whole, ids
