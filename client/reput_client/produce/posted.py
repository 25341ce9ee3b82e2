"""The handle of a posted message."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeAlias

from reput_client.receipts import SendReceipt
from reput_protocol.errors import ReputError


class Waits(Protocol):
    """Waits for blocks to be done: a producer's `Gathering`."""

    @property
    def interruption(self) -> str | None:
        """Why the outcomes of unfinished blocks stay unknown; None if nothing has interrupted the client."""

    async def wait_for(self, block: Any) -> None:
        """Return when a block is done."""

    def wait_in_thread(self, block: Any) -> None:
        """Block the calling thread until a block is done, or the client was interrupted."""


class PostedBlock(Protocol):
    """What a handle needs of the block with its message: a `GatheredBlock`."""

    asked: set[int]
    """Messages whose outcome was reported or is waited for."""
    ends_of_spans: list[Callable[[], None]]
    """Called when the block is done."""

    @property
    def waits(self) -> Waits:
        """What waits for the block."""

    @property
    def done(self) -> bool:
        """Whether each message has a receipt or an error."""

    @property
    def is_decided(self) -> bool:
        """Whether it is done, or its outcome is unknown because the client was interrupted."""

    def outcome(self, number: int) -> SendReceipt:
        """Return one message's receipt, or raise its error."""

    def receipt_of(self, number: int) -> SendReceipt | None:
        """Return one message's receipt, if it has one."""

    def error_of(self, number: int) -> ReputError | None:
        """Return one message's error, if it has one."""


class Posted:
    """One posted message: `await` it under trio or asyncio, call `result()` in the synchronous API.

    A failure reported here or to a callback is not raised again by `flush`.
    """

    __slots__ = ("block", "number")

    def __init__(self, block: PostedBlock, number: int) -> None:
        self.block = block
        self.number = number

    @property
    def done(self) -> bool:
        """Whether it has a receipt or an error. In the synchronous API it changes only in calls of the producer."""
        return self.block.is_decided

    @property
    def error(self) -> ReputError | None:
        """The error that `Producer.send` would have raised; None if it was acknowledged or is not done."""
        block = self.block
        if block.is_decided:
            block.asked.add(self.number)
        return block.error_of(self.number)

    def mark_reported(self) -> None:
        """Note that its outcome was reported."""
        self.block.asked.add(self.number)

    def result(self) -> SendReceipt:
        """Return its receipt. The synchronous API waits for it; under trio and asyncio, `await` the handle instead.

        Raises:
            RuntimeError: it is not done, and this program must not block.
            ReputError: it failed, as `Producer.send` would have.
        """
        block, number = self.block, self.number
        if not block.is_decided:
            with _Asking(block, number):
                block.waits.wait_in_thread(block)
        block.asked.add(number)
        return block.outcome(number)

    def __await__(self) -> Generator[Any, Any, SendReceipt]:
        """Return its receipt or raise its error, like `Producer.send`."""
        block, number = self.block, self.number
        if not block.is_decided:
            with _Asking(block, number):
                yield from block.waits.wait_for(block).__await__()
        block.asked.add(number)
        return block.outcome(number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Posted) and other.block is self.block and other.number == self.number

    def __hash__(self) -> int:
        return hash((id(self.block), self.number))


OnDone: TypeAlias = Callable[[Posted], object]
"""Called with a posted message that has a receipt or an error."""


class _Asking:
    """Marks a message as reported while a caller waits for it; undone if the caller gives up."""

    __slots__ = ("_block", "_is_known", "_number")

    def __init__(self, block: PostedBlock, number: int) -> None:
        self._block = block
        self._number = number
        self._is_known = number in block.asked  # reported by a callback, or another caller waits

    def __enter__(self) -> None:
        self._block.asked.add(self._number)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None and not self._is_known:
            self._block.asked.discard(self._number)
