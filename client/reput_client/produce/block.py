"""Messages that share a frame: gathered, encoded as a block, and what became of them. Pure: no I/O, no clock.

A block is open while it takes messages, is sealed when its bytes are made, and is done when each of its messages has
its receipt or its error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from copy import copy
from typing import Any, NamedTuple, Protocol

from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_client.produce.puts import Putter, check_ack, outcome_unknown, result_of
from reput_client.produce.receipts import BlockReceipts, SendReceipt
from reput_client.transport.address import Address
from reput_client.transport.connection import Connection
from reput_client.transport.core import Call, RequestTemplate, Waiter
from reput_client.transport.runtime import Event
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError
from reput_protocol.properties import UNIQ_KEY, encode_properties
from reput_protocol.record.message import Message, MessageQueue
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.put_block import encode_block


class Waits(Protocol):
    """How the holder of a posted message waits for its block."""

    async def wait_for(self, block: PostedBlock) -> None:
        """Return when the block is done."""

    @property
    def interruption(self) -> str | None:
        """Why the client was closed in the middle of an operation; None if it was not."""

    def block_for(self, block: PostedBlock) -> None:
        """Block the calling thread until the block is done, or the client was interrupted.

        Raises:
            RuntimeError: the program has an event loop, where nothing may block.
        """


class Terms(NamedTuple):
    """How a block is sent.

    Attributes:
        ack: the level that its answer stands for.
        timeout_s: seconds that each attempt may take; if `is_patient`, that the broker may be silent.
        retries: how often it is sent again if that may help.
        is_patient: the time in which the broker answers other blocks does not count.
        is_divisible: if the broker refuses the block because of what is in it, each message is sent again by itself.
    """

    ack: AckLevel
    timeout_s: float
    retries: int = 0
    is_patient: bool = True
    is_divisible: bool = False


class Block(Waiter):
    """Messages for one queue that are sent on the same terms. As a waiter it is told when its call has finished."""

    __slots__ = (
        "address",
        "attempt",
        "bodies",
        "call",
        "connection",
        "count",
        "data",
        "delayed_text",
        "done",
        "error",
        "flags",
        "holders",
        "is_delayed",
        "is_serial",
        "not_before",
        "on_arrival",
        "on_done",
        "own_ids",
        "parts",
        "positions",
        "queue",
        "receipts",
        "sent_at",
        "since",
        "spared",
        "terms",
        "texts",
        "unique_ids",
        "unknown",
    )

    on_arrival: Callable[[Block], None]
    """Called when its call has finished; set when it leaves."""

    def __init__(
        self,
        queue: MessageQueue,
        address: Address,
        terms: Terms,
        on_done: Callable[[Any], None] | None = None,
    ) -> None:
        self.queue = queue
        self.address = address
        """Of the queue's broker."""
        self.terms = terms
        self.on_done = on_done
        """Called once, with the block, when it is done."""
        self.holders: list[Waiter] = []
        """Those who wait for it, and do what is due meanwhile; nobody but the producer's task if this is empty."""
        self.bodies: list[Buffer] = []
        self.texts: list[bytes] = []
        """The properties of each message, without a unique id unless it has its own; one text is that of all."""
        self.flags: list[int] = []
        """Of each message; one is that of all."""
        self.own_ids: dict[int, str] = {}
        self.is_delayed = False
        """Whether its only message travels alone as a 310."""
        self.delayed_text = b""
        """The properties of such a message, once it is sealed."""
        self.count = 0
        self.data: Buffer = b""
        self.positions: Sequence[int] = ()
        self.unique_ids: Sequence[str | None] = ()
        self.is_serial = False
        """Whether it may leave again, so that none of its queue may leave before it is done."""
        self.attempt = 0
        self.since = 0.0
        """From when its time to leave counts."""
        self.sent_at = 0.0
        """From when its time to be answered counts."""
        self.spared = False
        self.not_before = 0.0
        self.call: Call | None = None
        self.connection: Connection | None = None
        self.unknown: SendOutcomeUnknown | None = None
        """Set once it may be stored though no answer said so."""
        self.parts: Sequence[Block] = ()
        """Its messages, if they are sent again one by one."""
        self.done = False
        self.receipts: Sequence[SendReceipt] | None = None
        self.error: ReputError | None = None
        """The first error, if any of its messages failed."""

    def notify(self) -> None:
        """Its call has finished: the next step takes what that has brought."""
        self.on_arrival(self)

    def seal(self, born_timestamp_ms: int, ids: UniqueIdGenerator | None) -> None:
        """Make the bytes of the block."""
        self.count = count = len(self.bodies)
        terms = self.terms
        self.is_serial = terms.retries > 0 or (terms.is_divisible and count > 1)
        fresh = None if ids is None else ids.next_run(count)
        self.unique_ids = (None,) * count if fresh is None else fresh
        if self.own_ids:
            self.unique_ids = [self.own_ids.get(number, one) for number, one in enumerate(self.unique_ids)]
        if self.is_delayed:
            self.data, self.positions, self.delayed_text = self.bodies[0], (0,), self.texts[0]
            if fresh and not self.own_ids:
                self.delayed_text = encode_properties({UNIQ_KEY: fresh[0]}) + self.texts[0]
        else:
            self.data, self.positions = encode_block(
                self.bodies,
                self.texts,
                self.queue.topic,
                self.queue.queue_id,
                born_timestamp_ms,
                ids=fresh,
                flags=self.flags,
            )
        self.bodies = []
        self.texts = []

    def template(self, putter: Putter) -> RequestTemplate:
        """Return the header of its frame."""
        may_be_stored = self.unknown is not None or self.attempt > 0 or bool(self.own_ids)
        ack = self.terms.ack
        if self.is_delayed:
            size, text, dedup = len(self.data), self.delayed_text, putter.dedup(may_be_stored)
            return putter.alone(self.queue, size, text, self.flags[0], 0, ack, dedup=dedup)
        return putter.template(self.queue, self.count, ack, may_be_stored=may_be_stored)

    def divide(self) -> list[Block]:
        """Return a block for each message of one that was refused; it is done when they are."""
        ends = (*self.positions[1:], len(self.data))
        left = self.count
        data = memoryview(self.data)
        parts: list[Block] = []

        def on_done(part: Block) -> None:
            nonlocal left
            left -= 1
            self.error = self.error or part.error
            if not left:
                receipts = None if self.error else [each.outcome(0) for each in parts]
                self.finish(receipts, self.error)
                if self.on_done is not None:
                    self.on_done(self)

        for start, end, unique_id in zip(self.positions, ends, self.unique_ids, strict=True):
            part = Block(self.queue, self.address, self.terms, on_done)
            part.data, part.count, part.positions, part.unique_ids = data[start:end], 1, (0,), (unique_id,)
            part.is_serial = True
            part.holders = self.holders
            part.attempt, part.since, part.not_before = self.attempt, self.since, self.not_before
            parts.append(part)
        self.parts = parts
        self.call = self.connection = None
        return parts

    def answered(self, call: Call) -> None:
        """The broker has stored it, at the level that was asked for or not.

        Raises:
            BrokerError, HeaderFieldError: it has not, or the answer does not say where.
        """
        receipts = BlockReceipts(self.queue.topic, result_of(call), self.positions, self.unique_ids)
        try:
            check_ack(call, self.terms.ack, ())
        except AckNotReached as error:
            error.receipts = list(receipts)
            self.finish(receipts, error)
        else:
            self.finish(receipts, None)

    def finish(self, receipts: Sequence[SendReceipt] | None, error: ReputError | None) -> None:
        """All is known: where it is stored, or why not, or both if the ack level was not reached."""
        if not self.count:  # it was never sealed
            self.count = len(self.bodies)
            self.bodies = []
            self.texts = []
        self.receipts = receipts
        self.error = error
        self.done = True
        self.data = b""
        self.call = self.connection = None

    def give_up(self, error: ReputError) -> None:
        """Finish with `error`, or as unknown if it may have left."""
        last: ReputError = self.unknown or error
        call, connection = self.call, self.connection
        if call is not None and connection is not None and not connection.abandon(call):
            last = outcome_unknown(self.queue, self.unique_ids, str(error))
        self.finish(None, last)

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, an exception of its own: those who share a block must not share one."""
        if self.parts:
            return self.parts[number].error_of(0)
        error = self.error
        if error is None:
            return None
        if isinstance(error, SendOutcomeUnknown):
            unique_id = self.unique_ids[number] if number < len(self.unique_ids) else None
            own: ReputError = outcome_unknown(self.queue, [unique_id], error.reason)
        else:
            own = copy(error)
            if isinstance(own, AckNotReached) and self.receipts is not None:
                own.receipts = [self.receipts[number]]
        own.__cause__ = error.__cause__
        return own

    def receipt_of(self, number: int) -> SendReceipt | None:
        """Return one message's receipt, if it is stored."""
        if self.parts:
            return self.parts[number].receipt_of(0)
        return None if self.receipts is None else self.receipts[number]

    def outcome(self, number: int) -> SendReceipt:
        """Return the receipt of a message of a block that is decided, or raise its error."""
        if self.error is not None or self.receipts is None:
            error = self.error_of(number)
            if error is not None:
                raise error
        receipt = self.receipt_of(number)
        assert receipt is not None, "what is done without an error is stored"
        return receipt


class PostedBlock(Block):
    """A block of messages that were posted. It takes them one by one, until it is sealed."""

    __slots__ = (
        "asked",
        "callbacks",
        "changed",
        "due_at",
        "fixed",
        "serial",
        "size",
        "waits",
        "withdrawn",
    )

    def __init__(
        self,
        serial: int,
        queue: MessageQueue,
        address: Address,
        terms: Terms,
        fixed: int,
        on_done: Callable[[Any], None],
        due_at: float,
        waits: Waits,
    ) -> None:
        super().__init__(queue, address, terms, on_done)
        self.serial = serial
        """Blocks are sealed in any order; those of one queue in the order of these."""
        self.due_at = due_at
        """When it leaves at the latest."""
        self.waits = waits
        self.fixed = fixed
        """Bytes of each of its records without body and properties, unique id included."""
        self.size = 0
        """Bytes of its records."""
        self.withdrawn: Set[int] = frozenset()
        """Messages that were taken out again."""
        self.callbacks: deque[tuple[Any, Callable[[Any], object]]] = deque()
        """With what each of them is called."""
        self.asked: set[int] = set()
        """Messages whose outcome was reported, or is waited for."""
        self.changed: Event | None = None
        """Set when it is done, if anything waits for that."""

    def put(self, message: Message, body: Buffer, text: bytes, size: int) -> int:
        """Take a message with its properties text, a record of `size` bytes; return its number."""
        place = len(self.bodies)
        if message.unique_id is not None:
            self.own_ids[place] = message.unique_id
        self.bodies.append(body)
        self.texts.append(text)
        self.flags.append(message.flag)
        self.size += size
        return place + len(self.withdrawn)

    def withdraw(self, number: int) -> None:
        """Take a message out again before the block is sealed."""
        place = self._place(number)
        self.size -= self.fixed + len(self.bodies[place]) + len(self.texts[place])
        for of_each in (self.bodies, self.texts, self.flags):
            del of_each[place]
        self.own_ids.pop(place, None)
        self.own_ids = {other - (other > place): unique_id for other, unique_id in self.own_ids.items()}
        self.withdrawn = {*self.withdrawn, number}

    @property
    def is_empty(self) -> bool:
        """Whether all its messages were taken out again."""
        return not self.bodies

    def _place(self, number: int) -> int:
        """Return which of the messages that are left is this one."""
        return number - sum(other < number for other in self.withdrawn) if self.withdrawn else number

    def receipt_of(self, number: int) -> SendReceipt | None:
        """As of every block."""
        return super().receipt_of(self._place(number))

    def signal(self) -> None:
        """Have those who wait for it look again."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    def finish(self, receipts: Sequence[SendReceipt] | None, error: ReputError | None) -> None:
        """As of every block."""
        super().finish(receipts, error)
        self.signal()

    @property
    def is_decided(self) -> bool:
        """Whether it is done, or has an unknown outcome because the client was interrupted."""
        return self.done or self.waits.interruption is not None

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, also that of an interrupt."""
        place = self._place(number)
        reason = None if self.done else self.waits.interruption
        if reason is None:
            return super().error_of(place)
        unique_id = self.unique_ids[place] if place < len(self.unique_ids) else None
        return outcome_unknown(self.queue, [unique_id], reason)
