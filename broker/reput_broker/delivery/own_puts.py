"""What the broker puts into the log on its own account, in turn with everybody else's puts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from reput_broker.put_lock import PutLock
from reput_broker.store.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutResult
from reput_broker.store.status import PutStatus
from reput_protocol.record import Record

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

        Between that call and the return of this one nobody else runs. `work` calls `wrote` if it has put something.

        Raises:
            DiskFull, FileNotMade, StoreClosed: a file of the log was needed and could not be made; `work` was not
                called.
        """
        store, lock = self._store, self._lock
        if not lock.is_held and not store.needs_new_file(size_max):
            lock.acquire_nowait()
            try:
                return work()
            finally:
                lock.release()
        async with lock.held():
            if store.needs_new_file(size_max):
                store.note_file_wait()
                await trio.to_thread.run_sync(store.make_log_file)
            return work()

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
