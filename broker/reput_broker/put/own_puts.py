"""Puts of the broker itself, serialised with those of clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from reput_broker.put.fence import Fence, Fenced
from reput_broker.put.put_lock import PutLock
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import Record

T = TypeVar("T")


class OwnPuts:
    """Puts records that the broker composed. No caller waits for their sync, since recovery can derive them."""

    def __init__(self, store: MessageStore, lock: PutLock, fence: Fence, wrote: Callable[[], None]) -> None:
        self._store = store
        self._lock = lock
        self._fence = fence
        self.wrote = wrote

    async def under_lock(self, size_max: int, work: Callable[[], T]) -> T:
        """Call `work` under the put lock, with room for `size_max` bytes, and return its result.

        Waits while the fence is closed. Raises what `PutLock.call` does. `work` calls `wrote` if it has put
        something.
        """
        while True:
            await self._fence.opened()
            with suppress(Fenced):  # it was closed while this waited for the lock
                return await self._lock.call(self._store, size_max, work)

    async def put(self, size_max: int, compose: Callable[[], Record | None]) -> PutResult | None:
        """Put the record that `compose` returns, or nothing if it returns None.

        `compose` is called under the put lock. No other task runs between that call and the return, so the caller can
        rely on the state that `compose` saw and update it.

        Args:
            size_max: upper bound for the record's size.

        Returns:
            The result, with its status; None if there was nothing to put.
        """

        def work() -> PutResult | None:
            record = compose()
            return None if record is None else self._store.put_record(record)

        try:
            result = await self.under_lock(size_max, work)
        except DiskFull:
            return PutResult(PutStatus.DISK_FULL)
        except (FileNotMade, StoreClosed):
            return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
        if result is not None and result.status is PutStatus.PUT_OK:
            self.wrote()
        return result
