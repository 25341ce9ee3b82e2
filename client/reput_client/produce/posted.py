"""The handle of a posted message."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from reput_client.receipts import SendReceipt
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from reput_client.produce.gathered_block import GatheredBlock


class Posted:
    """One posted message: `await` it under trio or asyncio, call `result()` in the synchronous API.

    A failure reported here or to a callback is not raised again by `flush`.
    """

    __slots__ = ("block", "number")

    def __init__(self, block: GatheredBlock, number: int) -> None:
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

    def __init__(self, block: GatheredBlock, number: int) -> None:
        self._block = block
        self._number = number
        self._is_known = number in block.asked  # reported by a callback, or another caller waits

    def __enter__(self) -> None:
        self._block.asked.add(self._number)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None and not self._is_known:
            self._block.asked.discard(self._number)
