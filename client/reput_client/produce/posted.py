"""The block that gathers messages of `send` or of `post`, and the handles of its posted messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Protocol

from msgspec import field
from typing_extensions import override

from reput_client.produce.block import OutgoingBlock
from reput_client.produce.puts import outcome_unknown
from reput_client.produce.queue_selector import AnyBroker, QueueChoice
from reput_client.receipts import OnDone, Posted, SendReceipt
from reput_protocol.errors import ReputError
from reput_protocol.record.message_id import UniqueIdGenerator


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
