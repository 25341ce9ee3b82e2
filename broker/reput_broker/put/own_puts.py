"""What the broker puts into the log on its own account, in turn with everybody else's puts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from reput_broker.put.put_lock import PutLock
from reput_broker.store.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutResult, PutStatus
from reput_protocol.record.record import Record

Result = TypeVar("Result")


class OwnPuts:
    """Puts records that the broker composed. Nobody waits for the disk: what they say can be found out again.

    Args:
        store: put into.
        lock: held while something is put.
        wrote: called after each put.
    """

    def __init__(self, store: MessageStore, lock: PutLock, wrote: Callable[[], None]) -> None:
        self._store = store
        self._lock = lock
        self.wrote = wrote

    async def in_turn(self, size_max: int, work: Callable[[], Result]) -> Result:
        """Call `work` when it is its turn to append, with room for `size_max` bytes, and return what it returns.

        See `PutLock.in_turn`, also for what it raises. `work` calls `wrote` if it has put something.
        """
        return await self._lock.in_turn(self._store, size_max, work)

    async def put(self, size_max: int, compose: Callable[[], Record | None]) -> PutResult | None:
        """Put the record that `compose` returns, or nothing if it returns None.

        `compose` is called when it is this put's turn. Between that call and the return of this one nobody else runs:
        what made the record right is still so, and what follows from it can be noted before anybody looks.

        Args:
            size_max: more bytes than the record takes.
            compose: makes the record.

        Returns:
            The result, whose status says whether it was stored; None if there was nothing to put.
        """

        def work() -> PutResult | None:
            record = compose()
            return None if record is None else self._store.put_record(record)

        try:
            result = await self.in_turn(size_max, work)
        except DiskFull:
            return PutResult(PutStatus.DISK_FULL)
        except (FileNotMade, StoreClosed):
            return PutResult(PutStatus.CREATE_MAPPED_FILE_FAILED)
        if result is not None and result.status is PutStatus.PUT_OK:
            self.wrote()
        return result
