"""Waiting for free disk space at a start: the storage is opened again once there may be enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
import trio

from reput_broker.compose.storage import Storage
from reput_broker.observe.figures import free_and_used
from reput_broker.observe.health import Health
from reput_broker.store.errors import DiskFull, FlushFailed
from reput_broker.store.file_io import is_no_space
from reput_broker.store.results import RecoveryReport
from reput_broker.tables.offset_journal import JournalWriteFailed

log = structlog.get_logger(__name__)

_LOOK_S = 5.0
_PAUSE_MAX_S = 600.0
_GROWTH_BYTES = 1 << 20


async def open_when_there_is_room(
    make: Callable[[], Storage], free_space: FreeSpace, health: Health, stop_wanted: trio.Event
) -> tuple[Storage, RecoveryReport]:
    """Open a storage. If the disk is too full for it, wait and retry with another one.

    Meanwhile the broker is alive and not ready, and its health names the reason. A storage that cannot be opened is
    closed again.

    Raises:
        StoreError, ConfigFileDamaged, JournalWriteFailed, OSError: as `Storage.open`; the disk is
            full only if the broker is to stop.
    """
    logged = ""
    while True:
        began_at = trio.current_time()
        storage = make()
        try:
            report = await open_or_close(storage)
        except (DiskFull, FlushFailed, JournalWriteFailed, OSError) as error:
            if not _is_full(error) or stop_wanted.is_set():
                raise
            health.set("disk_space", False, f"the start waits for room: {error}", gates=True)
            if str(error) != logged:
                logged = str(error)
                log.error(
                    "start_waits_for_room", detail=logged, hint="free disk space; the broker tries again"
                )
            needed_bytes = error.needed_bytes if isinstance(error, DiskFull) else 0
            await free_space.wait(needed_bytes, trio.current_time() - began_at)
            if stop_wanted.is_set():
                raise
        else:
            if logged:
                health.set("disk_space", True)
            return storage, report


async def open_or_close(storage: Storage) -> RecoveryReport:
    """Open a storage; close it again if that fails. Raises as `Storage.open`."""
    try:
        return await storage.open()
    except BaseException:
        with trio.CancelScope(shield=True):
            await storage.close()
        raise


def _is_full(error: DiskFull | FlushFailed | JournalWriteFailed | OSError) -> bool:
    if isinstance(error, JournalWriteFailed):
        return error.disk_full
    return isinstance(error, DiskFull) or is_no_space(error)


class FreeSpace:
    """Waits for free space between the attempts of a start, because each recovers the store from the beginning.

    Args:
        directories: those that the start writes to.
        stop_wanted: ends every wait.
    """

    def __init__(self, directories: Sequence[Path], stop_wanted: trio.Event) -> None:
        self._directories = tuple(directories)
        self._stop_wanted = stop_wanted
        self._pause_s = _LOOK_S

    async def wait(self, needed_bytes: int, attempt_s: float) -> None:
        """Return when another attempt may succeed, or when the broker is to stop.

        An attempt may succeed once a disk has the needed bytes free and at least 1 MiB more than now, but the wait is
        at least as long as the last attempt. Free space does not show a quota, so another attempt follows without it:
        after 5 s, then after twice as long each time, up to 10 minutes.

        Args:
            needed_bytes: what the last attempt requested from the disk; 0 if that is unknown.
            attempt_s: how long the last attempt took.
        """
        before = await self._free_bytes()
        began_at = trio.current_time()
        pause_s, self._pause_s = max(self._pause_s, attempt_s), min(2 * self._pause_s, _PAUSE_MAX_S)
        while (left_s := began_at + pause_s - trio.current_time()) > 0:
            with trio.move_on_after(min(_LOOK_S, left_s)):
                await self._stop_wanted.wait()
                return
            if trio.current_time() - began_at < attempt_s:
                continue
            free = await self._free_bytes()
            if any(
                now >= max(needed_bytes, then + _GROWTH_BYTES) for now, then in zip(free, before, strict=True)
            ):
                return

    async def _free_bytes(self) -> list[int]:
        return await trio.to_thread.run_sync(_free_bytes_of, self._directories)


def _free_bytes_of(directories: Sequence[Path]) -> list[int]:
    found = []
    for directory in directories:
        try:
            found.append(free_and_used(directory)[0])
        except OSError:  # missing or unreachable
            found.append(0)
    return found
