"""Where a group's offsets are kept: with the broker, or in a store that the application gave."""

from __future__ import annotations

from typing import Protocol

from reput_client.consume.offsets import OffsetRequests
from reput_client.offset_store import OffsetStore, ReadOffsetType
from reput_protocol.message import MessageQueue


class KeptOffsets(Protocol):
    """The offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the group's offset, or None if it has none.

        Raises:
            ReputError, OSError: it could not be found out.
        """

    async def write(
        self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None
    ) -> None:
        """Keep an offset, durably; with `increase_only` not if a higher one is kept.

        Raises:
            ReputError, OSError: it may or may not be kept.
        """


class BrokerOffsets:
    """Offsets with the broker, for members that share the work (RocketMQ: RemoteBrokerOffsetStore)."""

    def __init__(self, offsets: OffsetRequests, group: str) -> None:
        self._offsets = offsets
        self._group = group

    async def read(self, queue: MessageQueue) -> int | None:
        """See `KeptOffsets`."""
        return await self._offsets.committed(self._group, queue)

    async def write(
        self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None
    ) -> None:
        """See `KeptOffsets`."""
        await self._offsets.commit(
            self._group, queue, offset, increase_only=increase_only, timeout_s=timeout_s
        )


class StoredOffsets:
    """Offsets in an `OffsetStore`, such as a file of each member that reads everything."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store

    async def read(self, queue: MessageQueue) -> int | None:
        """See `KeptOffsets`."""
        offset = await self._store.read(queue, ReadOffsetType.READ_FROM_STORE)
        if offset >= 0:
            return offset
        if self._store.failure is not None:
            raise self._store.failure  # there may be one all the same
        return None

    async def write(
        self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None
    ) -> None:
        """See `KeptOffsets`. A store of one's own knows no other member that could be further."""
        del increase_only, timeout_s
        self._store.update(queue, offset)
        await self._store.persist(queue)
