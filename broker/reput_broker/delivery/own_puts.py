"""What the broker puts into the log on its own account, in turn with everybody else's puts."""

from __future__ import annotations

from collections.abc import Callable

import trio

from reput_broker.put_lock import PutLock
from reput_broker.store.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutResult
from reput_broker.store.status import PutStatus
from reput_protocol.record import Record


class OwnPuts:
    """Puts records that the broker composed. Nobody waits for the disk: what they say can be found out again.

    Args:
        wrote: called after each put.
    """

    def __init__(self, store: MessageStore, lock: PutLock, wrote: Callable[[], None]) -> None:
        self._store = store
        self._lock = lock
        self._wrote = wrote

    async def put(self, size_max: int, compose: Callable[[], Record | None]) -> PutResult | None:
        """Put the record that `compose` returns, or nothing if it returns None.

        `compose` is called when it is this put's turn. Between that call and the return of this one nobody else runs:
        what made the record right is still so, and what follows from it can be noted before anybody looks.

        Args:
            size_max: more bytes than the record takes.

        Returns:
            The result, whose status says whether it was stored; None if there was nothing to put.
        """
        async with self._lock.held():
            if self._store.needs_new_file(size_max):
                try:
                    await trio.to_thread.run_sync(self._store.make_log_file)
                except DiskFull:
                    return PutResult(PutStatus.DISK_FULL)
            record = compose()
            if record is None:
                return None
            result = self._store.put_record(record)
        if result.status is PutStatus.PUT_OK:
            self._wrote()
        return result
