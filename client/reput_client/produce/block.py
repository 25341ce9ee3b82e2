"""Messages that share a frame, from gathering to their receipts or errors, and the handles of posted ones.

No I/O, no clock.

A block is open while messages are added, sealed when its bytes are encoded, and done when each message has a receipt or
an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence, Set
from copy import copy
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field
from typing_extensions import override

from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_client.produce.puts import MaybeStored, Putter, outcome_unknown, receipts_of
from reput_client.produce.queue_selector import AnyBroker, QueueChoice
from reput_client.receipts import OnDone, Posted, SendReceipt
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.runtime import Sleeper
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel, Dedup
from reput_protocol.errors import ReputError
from reput_protocol.properties import UNIQ_KEY, encode_properties
from reput_protocol.record.delays import Delay
from reput_protocol.record.layout import I32, QUEUE_ID_AT
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.put_block import encode_block
from reput_protocol.wire.channel import Call


class Terms(NamedTuple):
    """How a block is sent.

    Attributes:
        ack: the level to be acknowledged.
        timeout_s: seconds for all attempts; of a bulk block, for which the broker may be silent.
        retries: how often it is sent again where that helps; None: until its time is over. 0: never.
        is_bulk: it is one of many blocks, of which no caller waits for this one: of `post`, of `send_many`, or staged.
            Time in which the broker answers other blocks does not count, receipts are made when they are asked for, and
            the time to its answer is not how slow the broker is.
        is_divisible: if the broker rejects the content, each message is sent again in its own frame.
        is_oneway: it has no answer, and is done, without receipts, when the system has taken all of it.
        is_personal: its broker must know this producer before, because it will ask it about the message, or has a
            reply for it; so the message is not taken for one that the broker has.
    """

    ack: AckLevel
    timeout_s: float
    retries: int | None = 0
    is_bulk: bool = False
    is_divisible: bool = False
    is_oneway: bool = False
    is_personal: bool = False


class OutgoingBlock(Struct, eq=False):
    """Messages for one queue, sent on the same terms."""

    queue: MessageQueue
    terms: Terms
    on_done: Callable[[Any], None] | None = None
    """Called once, with the block, when it is done."""
    is_free: bool = False
    """Whether it may go to another queue, because the application has not chosen this one."""
    number: AnyBroker | None = None
    """Of its queue, if it may go to another broker, but only to the queue of this number."""
    refused_by: set[str] = set()
    """Names of brokers that have not taken it."""
    sleepers: list[Sleeper] = []
    """Of callers to be woken when it is done."""
    bodies: list[Buffer] = []
    texts: list[bytes] = []
    """Encoded properties, with unique ids only if messages have their own: of each message, or one for all."""
    flags: list[int] = []
    """Of each message, or one for all."""
    own_ids: dict[int, str] = {}
    delay: Delay | None = None
    """The delay or priority of its only message; None: its messages have none."""
    sys_flag: int | None = None
    """Bits of `MessageSysFlag` of its only message; None: those of blocks."""
    single_text: bytes | None = None
    """Once sealed: the encoded properties of its only message, if that is sent as a 310."""
    count: int = 0
    data: Buffer = b""
    """Its records, in a `bytearray` of its own; a message that is sent as a 310: its body."""
    positions: Sequence[int] = ()
    unique_ids: Sequence[str | None] = ()
    is_serial: bool = False
    """Whether it may be sent again, so that it must be its queue's only block in flight."""
    attempt: int = 0
    since: float = 0.0
    """Start of its time; of a bulk block, of its time to leave."""
    repeated_until: float = 0.0
    """Until when it is sent again; set by its first failure."""
    sent_at: float = 0.0
    """Start of its time to be answered."""
    spared: bool = False
    not_before: float = 0.0
    withdrawn: Set[int] = frozenset()
    """Messages that were removed before it was sealed, by number."""
    call: Call | None = None
    connection: BrokerConnection | None = None
    unknown: MaybeStored | None = None
    """Set once it may be stored although no answer says that it is, as asked."""
    parts: Sequence[OutgoingBlock] = ()
    """Its messages as blocks of their own, if they are sent again one by one."""
    whole: OutgoingBlock | None = None
    """The divided block that it is a part of."""
    done: bool = False
    recall_handle: str = ""
    """What its only message can be recalled by, once it is stored, if that has a delay."""
    receipts: Sequence[SendReceipt] | None = None
    error: ReputError | None = None
    """The first error, if any message failed."""

    def seal(self, born_timestamp_ms: int, ids: UniqueIdGenerator | None) -> None:
        """Encode the block."""
        self.count = count = len(self.bodies)
        terms = self.terms
        # Delayed messages have no order among them; those with a priority or a time to live have.
        is_ordered = self.delay is None or self.delay.keeps_order
        self.is_serial = (terms.retries != 0 and is_ordered) or (terms.is_divisible and count > 1)
        fresh = None if ids is None else ids.next_run(count)
        self.unique_ids = (None,) * count if fresh is None else fresh
        if self.own_ids:
            self.unique_ids = [self.own_ids.get(number, one) for number, one in enumerate(self.unique_ids)]
        if self.delay is not None or self.sys_flag is not None:
            self.data, self.positions, self.single_text = self.bodies[0], (0,), self.texts[0]
            if fresh and not self.own_ids:
                self.single_text = encode_properties({UNIQ_KEY: fresh[0]}) + self.texts[0]
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

    def move(self, queue: MessageQueue) -> None:
        """Change the queue of a sealed block that is certainly not stored."""
        self.queue = queue
        if self.single_text is None:
            for position in self.positions:
                I32.pack_into(self.data, position + QUEUE_ID_AT, queue.queue_id)
        self.call = self.connection = None

    def template(self, putter: Putter) -> RequestTemplate:
        """Return the header of its frame."""
        terms, dedup = self.terms, None
        if putter.deduplicate and not terms.is_personal:
            if self.unknown is not None or (putter.knows_ids and self.own_ids):
                dedup = Dedup.CHECK  # it may be stored already
            elif terms.retries != 0:
                dedup = Dedup.MARK
        if self.single_text is not None:
            return putter.single_template(
                self.queue,
                len(self.data),
                self.single_text,
                terms.ack,
                flag=self.flags[0],
                sys_flag=self.sys_flag or 0,
                dedup=dedup,
                oneway=terms.is_oneway,
            )
        return putter.template(self.queue, self.count, terms.ack, dedup, oneway=terms.is_oneway)

    def divide(self) -> list[OutgoingBlock]:
        """Return a block for each message of a rejected block, which is done when they are."""
        ends = (*self.positions[1:], len(self.data))
        left = self.count
        data = memoryview(self.data)
        parts: list[OutgoingBlock] = []

        def on_done(part: OutgoingBlock) -> None:
            nonlocal left
            left -= 1
            self.error = self.error or part.error
            if not left:
                receipts = None if self.error else [each.outcome(0) for each in parts]
                self.finish(receipts, self.error)

        for start, end, unique_id in zip(self.positions, ends, self.unique_ids, strict=True):
            part = OutgoingBlock(self.queue, self.terms, on_done)
            part.data, part.count, part.positions, part.unique_ids = data[start:end], 1, (0,), (unique_id,)
            part.is_serial, part.whole = True, self
            if self.own_ids:  # the broker looks for each of them, as for the block
                part.own_ids = {0: unique_id or ""}
            part.attempt, part.since, part.not_before = self.attempt, self.since, self.not_before
            parts.append(part)
        self.parts = parts
        self.call = self.connection = None
        return parts

    def answered(self, call: Call) -> None:
        """Take the answer of a stored block; raises like `receipts_of`."""
        answer = call.header
        assert answer is not None, "a block takes the answers of calls without an error"
        self.recall_handle = str(answer.ext.get("recallHandle", ""))
        topic, ack = self.queue.topic, self.terms.ack
        self.finish(receipts_of(answer, topic, self.positions, self.unique_ids, ack), None)

    def finish(self, receipts: Sequence[SendReceipt] | None, error: ReputError | None) -> None:
        """Finish with receipts or an error, which has receipts itself if the ack level was not reached."""
        if not self.count:  # never sealed
            self.count = len(self.bodies)
            self.bodies = []
            self.texts = []
        self.receipts = error.receipts if isinstance(error, AckNotReached) and not self.parts else receipts
        self.error = error
        self.done = True
        self.data = b""
        self.call = self.connection = None

    def give_up(self, error: ReputError) -> None:
        """Finish with `error`, or with an unknown outcome if the block may have left."""
        last: ReputError = self.unknown or error
        call, connection = self.call, self.connection
        if call is not None and connection is not None and not connection.abandon(call):
            last = outcome_unknown(self.queue, self.unique_ids, str(error))
        self.finish(None, last)

    def _place(self, number: int) -> int:
        """Return the message's index among those not removed."""
        return number - sum(other < number for other in self.withdrawn)

    def unique_id_of(self, number: int) -> str | None:
        """Return one message's unique id; None if it has none, or gets it when the block is sealed."""
        place = self._place(number)
        return self.unique_ids[place] if place < len(self.unique_ids) else None

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, an exception object of its own: tracebacks must not be shared."""
        place = self._place(number)
        if self.parts:
            return self.parts[place].error_of(0)
        error = self.error
        if error is None:
            return None
        if isinstance(error, SendOutcomeUnknown):
            own: ReputError = outcome_unknown(self.queue, [self.unique_id_of(number)], error.reason)
        else:
            own = copy(error)
            if isinstance(own, AckNotReached) and self.receipts is not None:
                own.receipts = [self.receipts[place]]
        own.__cause__ = error.__cause__
        return own

    def receipt_of(self, number: int) -> SendReceipt | None:
        """Return one message's receipt, or None if it is not stored."""
        place = self._place(number)
        if self.parts:
            return self.parts[place].receipt_of(0)
        return None if self.receipts is None else self.receipts[place]

    def outcome(self, number: int) -> SendReceipt:
        """Return one message's receipt, or raise its error; the block is decided."""
        if self.error is None and self.receipts is not None:
            return self.receipts[self._place(number) if self.withdrawn else number]
        error = self.error_of(number)
        if error is not None:
            raise error
        receipt = self.receipt_of(number)
        assert receipt is not None, "what is done without an error is stored"
        return receipt


class Waits(Protocol):
    """Waits for blocks to be done: a producer's `Gathering`."""

    @property
    def interruption(self) -> str | None:
        """Why the outcomes of unfinished blocks stay unknown; None if nothing has interrupted the client."""

    async def wait_for(self, block: GatheredBlock) -> None:
        """Return when a block is done."""

    def wait_in_thread(self, block: GatheredBlock) -> None:
        """Block the calling thread until a block is done, or the client was interrupted."""


class GatheredBlock(OutgoingBlock, kw_only=True):
    """A block to which messages are added one by one until it is sealed."""

    serial: int
    """Blocks are sealed in any order, those of one queue by their serials."""
    waits: Waits
    fixed: int = 0
    """Bytes of a record without body and properties, but with the unique id."""
    due_at: float = 0.0
    """When it leaves if its broker can take it at once."""
    grows_until: float = 0.0
    """Until when it takes more messages instead while its broker has unanswered blocks."""
    left: int = 0
    """How many of its messages were sent by callers that were cancelled since it was sealed."""
    size: int = 0
    """Bytes of the records."""
    callbacks: deque[tuple[PostedMessage, OnDone]] = field(default_factory=deque)
    """With their arguments."""
    asked: set[int] = field(default_factory=set)
    """Messages whose outcome was reported or is waited for."""
    ends_of_spans: list[Callable[[], None]] = field(default_factory=list)
    """Called when the block is done."""

    def pin(self, choice: QueueChoice) -> None:
        """Keep the block at its queue, unless any broker's queue of its number will do for a message that joins it."""
        if not isinstance(choice, AnyBroker) or choice != self.number:
            self.is_free = False

    def call_back(self, posted: PostedMessage, on_done: OnDone) -> None:
        """Have `on_done` called with one of its messages when it is done, which reports the outcome."""
        self.callbacks.append((posted, on_done))
        self.asked.add(posted.number)

    def withdraw(self, number: int) -> None:
        """Remove a message before the block is sealed."""
        place = self._place(number)
        self.size -= self.fixed + len(self.bodies[place]) + len(self.texts[place])
        for of_each in (self.bodies, self.texts, self.flags):
            del of_each[place]
        self.own_ids.pop(place, None)
        self.own_ids = {other - (other > place): unique_id for other, unique_id in self.own_ids.items()}
        self.withdrawn = {*self.withdrawn, number}

    @property
    def outcomes(self) -> int:
        """How many receipts or errors it has, each with a handle: one for a message."""
        return self.count or len(self.bodies)

    @property
    def is_posted(self) -> bool:
        """Whether its messages were posted; else each has a caller in `send`."""
        return self.terms.is_bulk

    @property
    def is_empty(self) -> bool:
        """Whether all its messages were removed."""
        return not self.bodies

    @property
    def is_decided(self) -> bool:
        """Whether it is done, or its outcome is unknown because the client was interrupted."""
        return self.done or self.waits.interruption is not None

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, also after an interrupt."""
        reason = None if self.done else self.waits.interruption
        if reason is None:
            return super().error_of(number)
        return outcome_unknown(self.queue, [self.unique_id_of(number)], reason)


class EncodedBlock(GatheredBlock, kw_only=True):
    """A posted block that the caller has encoded, with one outcome: the receipt of its first message, or an error."""

    @property
    def outcomes(self) -> int:
        """One, however many messages it has."""
        return 1

    def seal(self, born_timestamp_ms: int, ids: UniqueIdGenerator | None) -> None:  # noqa: ARG002
        """Keep the bytes as they are."""
        self.is_serial = self.terms.retries != 0


class PostedMessage(Posted):
    """A posted message: its number in its block."""

    __slots__ = ("block", "number")

    def __init__(self, block: GatheredBlock, number: int) -> None:
        self.block = block
        self.number = number

    @property
    @override
    def done(self) -> bool:
        return self.block.is_decided

    @property
    @override
    def error(self) -> ReputError | None:
        block = self.block
        if block.is_decided:
            block.asked.add(self.number)
        return block.error_of(self.number)

    @override
    def mark_reported(self) -> None:
        self.block.asked.add(self.number)

    @override
    def result(self) -> SendReceipt:
        block, number = self.block, self.number
        if not block.is_decided:
            with _Asking(block, number):
                block.waits.wait_in_thread(block)
        block.asked.add(number)
        return block.outcome(number)

    @override
    def __await__(self) -> Generator[Any, Any, SendReceipt]:
        block, number = self.block, self.number
        if not block.is_decided:
            with _Asking(block, number):
                yield from block.waits.wait_for(block).__await__()
        block.asked.add(number)
        return block.outcome(number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PostedMessage) and other.block is self.block and other.number == self.number

    def __hash__(self) -> int:
        return hash((id(self.block), self.number))


class _Asking:
    """Marks a message as reported while a caller waits for it; undone if the caller gives up."""

    __slots__ = ("_block", "_is_known", "_number")

    def __init__(self, block: GatheredBlock, number: int) -> None:
        self._block = block
        self._number = number
        self._is_known = number in block.asked  # reported by a callback, or another caller waits

    def __enter__(self) -> None:
        self._block.asked.add(self._number)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None and not self._is_known:
            self._block.asked.discard(self._number)
