"""Receipts of stored messages, and handles of posted ones, which get a receipt later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from itertools import accumulate, chain, count, repeat
from typing import Any, NamedTuple, TypeAlias, overload

from reput_protocol.codes import AckLevel, TransactionState
from reput_protocol.commands.send import PutMessageResult
from reput_protocol.errors import ReputError
from reput_protocol.record.delays import moment_of
from reput_protocol.record.message_id import Host, offset_message_id_of

_new_tuple = tuple.__new__


class SendReceipt(NamedTuple):
    """Where a message is stored, from the broker's answer.

    `queue_offset` is its number in its queue, `physical_offset` its byte position in the broker's commit log,
    `store_timestamp_ms` by the broker's clock (-1 from RocketMQ's, which does not send it), `ack` the level reached.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    store_host: str
    ack: AckLevel
    unique_id: str | None = None

    @property
    def stored_at(self) -> datetime | None:
        """When it was stored, by the broker's clock, in UTC; None from RocketMQ's brokers."""
        return None if self.store_timestamp_ms < 0 else moment_of(self.store_timestamp_ms)

    @property
    def offset_message_id(self) -> str:
        """The id that encodes broker and log position (RocketMQ: offsetMsgId)."""
        return offset_message_id_of(_packed_host(self.store_host), self.physical_offset)

    @property
    def message_id(self) -> str:
        """The producer's unique id (`UNIQ_KEY`), or the offset id if there is none."""
        return self.unique_id or self.offset_message_id


_new_receipt = partial(_new_tuple, SendReceipt)  # unlike `_make`, not a call of Python code


class TransactionReceipt(NamedTuple):
    """The outcome of a message sent in a transaction."""

    topic: str
    queue_id: int
    """That consumers get it from."""
    transaction_id: str
    """Also the message's id for consumers."""
    state: TransactionState
    """What the local transaction returned."""
    confirmed: bool
    """Whether the broker has accepted `state`. If not, it will call `check`."""
    half: SendReceipt
    """The receipt of the half message; consumers see other offsets."""

    @property
    def message_id(self) -> str:
        """The message's id for consumers."""
        return self.transaction_id

    @property
    def is_committed(self) -> bool:
        """Whether the message is committed, as far as this producer knows."""
        return self.state is TransactionState.COMMIT and self.confirmed


@dataclass(eq=False, repr=False, slots=True)
class BlockReceipts(Sequence[SendReceipt]):
    """The receipts of a stored block, each created on access.

    Args:
        result: where the block is stored.
        positions: where each record starts in the block.
        unique_ids: of each message.
    """

    _topic: str
    _result: PutMessageResult
    _positions: Sequence[int]
    _unique_ids: Sequence[str | None]

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> SendReceipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendReceipt]: ...

    def __getitem__(self, index: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        result, positions = self._result, self._positions
        position = positions[index]
        # The named tuple's constructor is slower, being Python code.
        return _new_tuple(
            SendReceipt,
            (
                self._topic,
                result.queue_id,
                result.queue_offset + (index if index >= 0 else index + len(positions)),
                result.physical_offset + position,
                result.store_timestamp,
                result.store_host,
                result.ack,
                self._unique_ids[index],
            ),
        )

    def __iter__(self) -> Iterator[SendReceipt]:
        result = self._result
        return map(
            _new_receipt,
            zip(
                repeat(self._topic),
                repeat(result.queue_id),
                count(result.queue_offset),
                map(result.physical_offset.__add__, self._positions),
                repeat(result.store_timestamp),
                repeat(result.store_host),
                repeat(result.ack),
                self._unique_ids[:],  # formats the ids
                strict=False,
            ),
        )


class ChainedReceipts(Sequence[SendReceipt]):
    """The receipts of several blocks."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[Sequence[SendReceipt]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> SendReceipt: ...

    @overload
    def __getitem__(self, index: slice) -> list[SendReceipt]: ...

    def __getitem__(self, index: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        part = bisect_right(self._ends, number)
        return self._parts[part][number - (self._ends[part - 1] if part else 0)]

    def __iter__(self) -> Iterator[SendReceipt]:
        return chain.from_iterable(self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@lru_cache(maxsize=64)
def _packed_host(host: str) -> bytes:
    return Host.parse(host).packed()


class Posted(ABC):
    """One posted message: `await` it under trio or asyncio, call `result()` in the synchronous API.

    A failure reported here or to a callback is not raised again by `flush`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether it has a receipt or an error. In the synchronous API it changes only in calls of the producer."""

    @property
    @abstractmethod
    def error(self) -> ReputError | None:
        """The error that `Producer.send` would have raised; None if it was acknowledged or is not done."""

    @abstractmethod
    def mark_reported(self) -> None:
        """Note that its outcome was reported."""

    @abstractmethod
    def result(self) -> SendReceipt:
        """Return its receipt. The synchronous API waits for it; under trio and asyncio, `await` the handle instead.

        Raises:
            RuntimeError: it is not done, and this program must not block.
            ReputError: it failed, as `Producer.send` would have.
        """

    @abstractmethod
    def __await__(self) -> Generator[Any, Any, SendReceipt]:
        """Return its receipt or raise its error, like `Producer.send`."""


OnDone: TypeAlias = Callable[[Posted], object]
"""Called with a posted message that has a receipt or an error."""
