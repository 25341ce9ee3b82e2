"""The one lock that every append to the log holds.

One trio task runs at a time, so what the lock guards against is an append that has to wait for a new log file: the puts
behind it must neither overtake it nor append meanwhile. One lock stands for both of RocketMQ's (the spin lock and the
reentrant one): see docs/decisions/0001-one-put-lock.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from reput_broker.store.errors import DiskFull, FileNotMade
from reput_broker.store.message_store import MessageStore

_FILE_ROUNDS: Final = 2
"""The file that a start found is set aside, and then perhaps has no room for this put."""
Result = TypeVar("Result")


class PutLock:
    """Mutual exclusion of appends, first come, first served.

    An append that waits for nothing takes it with `acquire_nowait` and `release` around the append, which costs a
    tenth of a microsecond; that matters at a hundred thousand puts a second, and is why this is not a `trio.Lock`.
    """

    __slots__ = ("_waiting", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        """Whether an append is under way; outside of one that waits, nobody ever sees it set."""
        self._waiting = trio.lowlevel.ParkingLot()

    def acquire_nowait(self) -> None:
        """Take the lock. Only for whoever has just seen that it is not held."""
        assert not self.is_held
        self.is_held = True

    def release(self) -> None:
        """Give the lock back, or on to the task that has waited longest."""
        if self._waiting:
            self._waiting.unpark()  # it stays held: the woken task owns it now
        else:
            self.is_held = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the lock and hold it. A cancelled wait leaves it as it was."""
        if self.is_held:
            await self._waiting.park()
        else:
            self.is_held = True
        try:
            yield
        finally:
            self.release()

    def is_free(self, files: MessageStore, size: int) -> bool:
        """Whether `size` bytes can be appended now, without waiting for the lock or for a file."""
        return not self.is_held and not files.needs_new_file(size)

    def now(self, work: Callable[[], Result]) -> Result:
        """Do `work` under the lock. Only for a caller that has just seen that it is free."""
        self.acquire_nowait()
        try:
            return work()
        finally:
            self.release()

    async def in_turn(self, files: MessageStore, size: int, work: Callable[[], Result]) -> Result:
        """Do `work` under the lock as soon as `size` bytes can be appended, and return what it returns.

        Between that call and the return of this one no other task runs.

        Raises:
            DiskFull, FileNotMade, StoreClosed: a file of the log was needed and could not be made; `work` was not
                called.
        """
        if self.is_free(files, size):
            return self.now(work)
        files.note_file_wait()
        async with self.held():
            for _ in range(_FILE_ROUNDS):
                if not files.needs_new_file(size):
                    break
                try:
                    await trio.to_thread.run_sync(files.make_log_file)
                except (DiskFull, FileNotMade):
                    files.want_file()
                    raise
            return work()
