"""The fence and the lock of every append to the log, and the puts of the broker itself.

Nothing is accepted or acknowledged after the master's lease. It is valid until the time when its last extension was
*sent*, plus its length, minus a margin. The engine starts counting later, so a member that takes over does so after
this time. The clock counts time in which the machine was suspended and never jumps.

One trio task runs at a time, so the lock matters for an append that waits for a new log file: later puts must neither
overtake it nor append meanwhile, and the broker may have ceased to be the master meanwhile. It replaces both of
RocketMQ's locks (spin and reentrant): see docs/decisions/0001-one-put-lock.md.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Final, TypeVar

import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError
from reput_protocol.record.record import Record

T = TypeVar("T")

_LOOK_S: Final = 0.05
_LOOK_AT_CHANGES_S: Final = 0.005


def boot_time() -> float:
    """Return the seconds since the machine was started, suspended or not."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Fenced(ReputError):
    """The fence is closed: nothing was stored or changed.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fence:
    """Decides whether a master may accept and acknowledge messages and changes, as long as its mastership lasts.

    Every acknowledgement asks, because a process that was stopped for longer than the lease continues in the middle of
    anything: a timer would be late.

    Args:
        clock: seconds of a clock that never jumps.
        valid_until: in seconds of the clock; without an election there is no end.
    """

    def __init__(self, clock: Callable[[], float] = boot_time, valid_until: float = inf) -> None:
        self.who_may_lead: Callable[[], Mapping[str, str]] = dict
        """Returns what a refusal says of the brokers of which one may be the master."""
        self._clock = clock
        self._valid_until = valid_until
        self._closed: str | None = None
        self._ended: str | None = None
        self._changes = 0

    @property
    def left_s(self) -> float:
        """The seconds until the fence; negative after it."""
        return self._valid_until - self._clock()

    def extend(self, valid_until: float) -> None:
        """Acknowledge until `valid_until`, unless the mastership has ended."""
        self._valid_until = max(self._valid_until, valid_until)

    def close(self, reason: str) -> None:
        """Accept nothing more, such as during a hand-over. What was accepted before is still acknowledged."""
        self._closed = reason

    def reopen(self) -> None:
        """Accept messages and changes again."""
        self._closed = None

    def end(self, reason: str) -> None:
        """Neither accept nor acknowledge from now on: the mastership has ended."""
        self._ended = self._ended or reason

    async def opened(self) -> None:
        """Wait until messages can be accepted; for ever once the mastership has ended."""
        while self.refusal() is not None:  # noqa: ASYNC110 - once in a hand-over
            await trio.sleep(_LOOK_S)

    async def closed(self) -> None:
        """Wait until no message can be accepted."""
        while self.refusal() is None:  # noqa: ASYNC110 - once, when a broker stops
            await trio.sleep(_LOOK_S)

    def refusal(self) -> str | None:
        """Return why nothing can be accepted now, or None."""
        return self.expiry() or self._closed

    def check(self) -> None:
        """Raise Fenced if nothing can be accepted now."""
        reason = self.refusal()
        if reason is not None:
            raise Fenced(reason)

    def expiry(self) -> str | None:
        """Return why nothing can be acknowledged any more, or None."""
        if self._ended is None and self._valid_until != inf and self._clock() >= self._valid_until:
            self._ended = "the lease on being master has ended, and another broker may be the master now"
        return self._ended

    @contextmanager
    def change(self) -> Iterator[None]:
        """Count a change of a table as under way within the context."""
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1

    async def settled(self) -> None:
        """Wait until no change is under way."""
        while self._changes:  # noqa: ASYNC110 - once in a hand-over
            await trio.sleep(_LOOK_AT_CHANGES_S)


_FILE_ROUNDS: Final = 2
"""The file that the start found is allocated first, and may then have no room for this put."""


class PutLock:
    """Mutual exclusion of appends, first come, first served.

    Not a `trio.Lock`: an append that need not wait (`call_now`) sets and clears a flag, which takes a tenth of a
    microsecond, and that matters at a hundred thousand puts a second.

    Args:
        fence: once it is closed, the end of the log no longer moves.
        options: live.
    """

    __slots__ = ("_fence", "_held_since", "_options", "_waiting", "is_held")

    def __init__(self, fence: Fence, options: StoreConfig) -> None:
        self._fence = fence
        self._options = options
        self.is_held = False
        """Whether an append is under way; other tasks see it set only while that append waits."""
        self._held_since: float | None = None
        self._waiting = trio.lowlevel.ParkingLot()

    def release(self) -> None:
        """Release the lock, or pass it to the task that has waited longest."""
        if self._waiting:
            self._waiting.unpark()  # stays held, now by the woken task
        else:
            self.is_held = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock within the context. A cancelled wait changes nothing."""
        if self.is_held:
            await self._waiting.park()
        else:
            self.is_held = True
        self._held_since = trio.current_time()
        try:
            yield
        finally:
            self._held_since = None
            self.release()

    @property
    def held_s(self) -> float:
        """How long the append under way has held the lock, which is while it waits for a file; 0.0 without one."""
        return 0.0 if self._held_since is None else trio.current_time() - self._held_since

    @property
    def is_busy(self) -> bool:
        """Whether an append waits so long that clients' puts are refused (RocketMQ: isOSPageCacheBusy)."""
        return self.held_s > self._options.os_page_cache_busy_timeout

    def call_now(self, work: Callable[..., T], *arguments: object) -> T:
        """Call `work` under the lock, which must be free; the caller has checked the fence. No task waits meanwhile."""
        assert not self.is_held
        self.is_held = True
        try:
            return work(*arguments)
        finally:
            self.is_held = False

    async def call(self, files: MessageStore, size: int, work: Callable[[], T]) -> T:
        """Call `work` under the lock once `size` bytes can be appended, and return its result.

        No other task runs between that call and the return.

        Raises:
            DiskFull, FileNotMade, StoreClosed: a log file was needed and could not be made; `work`
                was not called.
            Fenced: this broker may not append now; `work` was not called.
        """
        self._fence.check()
        if not self.is_held and not files.needs_new_file(size):
            return self.call_now(work)
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
            self._fence.check()
            return work()


@dataclass(eq=False, repr=False)
class OwnPuts:
    """Puts records that the broker composed. No caller waits for their sync, since recovery can derive them."""

    _store: MessageStore
    _lock: PutLock
    _fence: Fence
    wrote: Callable[[], None]

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
