"""What a program holds of a message that it has posted."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from reput_client.produce.block import PostedBlock
from reput_client.produce.receipts import SendReceipt
from reput_protocol.errors import ReputError


class Posted:
    """One posted message: `await` it under trio or asyncio, call `result()` in the blocking API.

    Who has learnt a failure from here, or from a callback, is not told again by `flush`.
    """

    __slots__ = ("block", "number")

    def __init__(self, block: PostedBlock, number: int) -> None:
        self.block = block
        self.number = number

    @property
    def done(self) -> bool:
        """Whether it has a receipt or an error. In the blocking API that changes only during calls of the producer."""
        return self.block.is_decided

    @property
    def error(self) -> ReputError | None:
        """Why it was not acknowledged, as `Producer.send` would have raised it; None if it was, or is not done."""
        block = self.block
        if block.is_decided:
            block.asked.add(self.number)
        return block.error_of(self.number)

    def is_told(self) -> None:
        """Its outcome has been told, by whatever way."""
        self.block.asked.add(self.number)

    def result(self) -> SendReceipt:
        """Return its receipt. The blocking API waits for it; under trio and asyncio it must be done: `await` it.

        Raises:
            RuntimeError: it is not done, and nothing may block here.
            As `Producer.send`: it failed.
        """
        block, number = self.block, self.number
        if not block.is_decided:
            with _Asking(block, number):
                block.waits.block_for(block)
        block.asked.add(number)
        return block.outcome(number)

    def __await__(self) -> Generator[Any, Any, SendReceipt]:
        """Wait until it is done; return its receipt or raise its error, as `Producer.send` does."""
        block, number = self.block, self.number
        if not block.is_decided:
            with _Asking(block, number):
                yield from block.waits.wait_for(block).__await__()
        block.asked.add(number)
        return block.outcome(number)

    def __eq__(self, other: object) -> bool:
        """Whether `other` stands for the same message."""
        return isinstance(other, Posted) and other.block is self.block and other.number == self.number

    def __hash__(self) -> int:
        return hash((id(self.block), self.number))


class _Asking:
    """A caller waits for a message; one that gives up waiting has not been notified of it."""

    __slots__ = ("_block", "_is_known", "_number")

    def __init__(self, block: PostedBlock, number: int) -> None:
        self._block = block
        self._number = number
        self._is_known = number in block.asked  # a callback reports it, or another caller waits

    def __enter__(self) -> None:
        self._block.asked.add(self._number)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None and not self._is_known:
            self._block.asked.discard(self._number)
