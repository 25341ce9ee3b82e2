"""Posted messages that share a frame: gathered, laid out as a block, and what became of them. Pure: no I/O, no clock.

A block is open while it takes messages, is sealed when its bytes are made, and is done when each of its messages has
its receipt or its error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, Protocol

from reput_client.address import Address
from reput_client.connection import Connection
from reput_client.core import Call, RequestTemplate
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_client.puts import Putter, outcome_unknown
from reput_client.receipts import BlockReceipts, SendReceipt
from reput_client.runtime import Event
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.commands_send import PutMessageResult
from reput_protocol.errors import ReputError
from reput_protocol.message import MessageQueue
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.properties import UNIQ_KEY, encode_properties
from reput_protocol.put_block import encode_block


class Waits(Protocol):
    """How those who hold a message of a block wait for it."""

    async def wait_for(self, block: Block) -> None:
        """Return when the block is done."""

    @property
    def interruption(self) -> str | None:
        """Why the client was closed in the middle of an operation; None if it was not."""

    def block_for(self, block: Block) -> None:
        """Block the calling thread until the block is done, or the client was interrupted.

        Raises:
            RuntimeError: the program has an event loop, where nothing may block.
        """


class Block:
    """Messages for one queue, of one ack level and flag."""

    __slots__ = (
        "ack",
        "address",
        "asked",
        "attempt",
        "bodies",
        "call",
        "callbacks",
        "changed",
        "connection",
        "count",
        "data",
        "delayed_text",
        "done",
        "due_at",
        "error",
        "fixed",
        "flag",
        "is_delayed",
        "not_before",
        "own_ids",
        "positions",
        "queue",
        "receipts",
        "sent_at",
        "serial",
        "since",
        "size",
        "spared",
        "texts",
        "unique_ids",
        "unknown",
        "waits",
    )

    def __init__(
        self,
        serial: int,
        queue: MessageQueue,
        address: Address,
        ack: AckLevel,
        flag: int,
        due_at: float,
        waits: Waits,
        fixed: int,
    ) -> None:
        self.serial = serial
        """Blocks of one queue are sent in the order of these."""
        self.queue = queue
        self.address = address
        """Of the queue's broker."""
        self.ack = ack
        self.flag = flag
        self.due_at = due_at
        """When it leaves at the latest."""
        self.waits = waits
        self.fixed = fixed
        """Bytes of each of its records without body and properties, unique id included."""
        self.size = 0
        """Bytes of its records."""
        self.bodies: list[bytes] = []
        self.texts: list[bytes] = []
        """The properties of each message, without a unique id unless it has its own."""
        self.own_ids: dict[int, str] = {}
        self.is_delayed = False
        """Whether its only message travels alone as a 310."""
        self.delayed_text = b""
        """Then: its properties, once it is sealed."""
        self.callbacks: deque[tuple[Any, Callable[[Any], object]]] = deque()
        """With what each of them is called."""
        self.asked: set[int] = set()
        """Messages whose outcome somebody has been told, or waits for."""
        self.count = 0
        self.data: Buffer = b""
        self.positions: Sequence[int] = ()
        self.unique_ids: Sequence[str | None] = ()
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
        self.done = False
        self.receipts: BlockReceipts | None = None
        self.error: ReputError | None = None
        self.changed: Event | None = None
        """Set when it is done, if somebody waits for that."""

    def seal(self, born_timestamp_ms: int, ids: UniqueIdGenerator | None) -> None:
        """Make the bytes of the block."""
        self.count = count = len(self.bodies)
        bodies, texts = self.bodies, self.texts
        fresh = None if ids is None else ids.next_run(count)
        self.unique_ids = fresh or (None,) * count
        if self.own_ids:
            self.unique_ids = [self.own_ids.get(number, one) for number, one in enumerate(self.unique_ids)]
        if self.is_delayed:
            self.data, self.positions, self.delayed_text = bodies[0], (0,), texts[0]
            if fresh and not self.own_ids:
                self.delayed_text = encode_properties({UNIQ_KEY: fresh[0]}) + texts[0]
        else:
            self.data, self.positions = encode_block(
                bodies,
                texts,
                self.queue.topic,
                self.queue.queue_id,
                born_timestamp_ms,
                ids=fresh,
                flags=(self.flag,),
            )
        self.bodies = []
        self.texts = []

    def template(self, putter: Putter) -> RequestTemplate:
        """Return the header of its frame."""
        may_be_stored = self.unknown is not None or self.attempt > 0 or bool(self.own_ids)
        if self.is_delayed:
            size, text, dedup = len(self.data), self.delayed_text, putter.dedup(may_be_stored)
            return putter.alone(self.queue, size, text, self.flag, 0, self.ack, dedup=dedup)
        return putter.template(self.queue, self.count, self.ack, may_be_stored=may_be_stored)

    def finish(self, result: PutMessageResult | None, error: ReputError | None) -> None:
        """All is known: where it is stored, or why not, or both if the ack level was not reached."""
        self.count = self.count or len(self.bodies)
        if result is not None:
            self.receipts = BlockReceipts(self.queue.topic, result, self.positions, self.unique_ids)
        self.error = error
        self.done = True
        self.data = b""
        self.bodies = []
        self.texts = []
        self.call = self.connection = None
        self.signal()

    def give_up(self, error: ReputError) -> None:
        """Finish with `error`, or as unknown if it may have left."""
        last: ReputError = self.unknown or error
        call, connection = self.call, self.connection
        if call is not None and connection is not None and not connection.abandon(call):
            last = outcome_unknown(self.queue, self.unique_ids, str(error))
        self.finish(None, last)

    def signal(self) -> None:
        """Have those who wait for it look again."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    @property
    def is_decided(self) -> bool:
        """Whether it is done, or has an unknown outcome because the client was interrupted."""
        return self.done or self.waits.interruption is not None

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, an exception of its own: those who share a block must not share one."""
        error = self.error
        if not self.done:
            reason = self.waits.interruption
            error = None if reason is None else outcome_unknown(self.queue, (), reason)
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

    def outcome(self, number: int) -> SendReceipt:
        """Return the receipt of a message of a block that is decided, or raise its error."""
        error = self.error_of(number)
        if error is not None:
            raise error
        assert self.receipts is not None, "what is done without an error is stored"
        return self.receipts[number]
