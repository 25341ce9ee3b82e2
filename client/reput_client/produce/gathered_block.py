"""The block that gathers messages: of `send`, whose callers wait for it, or of `post`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import field

from reput_client.produce.block import OutgoingBlock
from reput_client.produce.posted import OnDone, Posted, Waits
from reput_client.produce.puts import outcome_unknown
from reput_client.produce.queue_selector import AnyBroker, QueueChoice
from reput_protocol.errors import ReputError
from reput_protocol.record.message_id import UniqueIdGenerator


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
    callbacks: deque[tuple[Posted, OnDone]] = field(default_factory=deque)
    """With their arguments."""
    asked: set[int] = field(default_factory=set)
    """Messages whose outcome was reported or is waited for."""
    ends_of_spans: list[Callable[[], None]] = field(default_factory=list)
    """Called when the block is done."""

    def pin(self, choice: QueueChoice) -> None:
        """Keep the block at its queue, unless any broker's queue of its number will do for a message that joins it."""
        if not isinstance(choice, AnyBroker) or choice != self.number:
            self.is_free = False

    def call_back(self, posted: Posted, on_done: OnDone) -> None:
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
