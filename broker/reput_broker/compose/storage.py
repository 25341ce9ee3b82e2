"""The content of the data directory: what a start opens, in which order, and what the end saves and closes.

While the disk is too full, a start waits, and opens it again once there may be enough room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from reput_broker.compose.open_files import OpenFiles
from reput_broker.config.model import BrokerConfig
from reput_broker.delay.state import open_delay_state
from reput_broker.ha.epochs import EpochFile
from reput_broker.ha.reopen import Reopen, set_store_aside
from reput_broker.observe.figures import free_and_used
from reput_broker.observe.health import Health
from reput_broker.pop.order_info import OrderInfos
from reput_broker.pop.positions import expect_positions, pops_since, recover_positions, take_back_positions
from reput_broker.put.held_pulls import Arrivals, PullRequestHoldService
from reput_broker.staging.batches import StagingState
from reput_broker.store.base.errors import DiskFull, FlushFailed, directory_refusals
from reput_broker.store.base.file_io import is_no_space, sync_directory
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import RecoveryReport
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFile
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.tables import Tables
from reput_broker.transactions.op_queue import recover_transactions
from reput_protocol.errors import ReputError
from reput_protocol.names import revive_topic
from reput_protocol.record.message_id import Host

log = structlog.get_logger(__name__)


class Storage:
    """The store, the tables, the delayed messages and the half queue of one broker.

    The constructor reads nothing. `tables` and `staging` are set by `open`; `delays`, `half_queue` and `orders` too,
    but not of a slave's store.

    Args:
        options: of the store.
        on_saved: called with a table's name after each save, and with the error if the save failed.
    """

    def __init__(
        self,
        config: BrokerConfig,
        options: StoreOptions,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        self.clock_ms = clock_ms
        self.hold = PullRequestHoldService(config.long_polling)
        self.arrivals = Arrivals()
        self.store = MessageStore(options, clock_ms=clock_ms, listener=self.hold, dispatchers=[self.arrivals])
        self.warm_from = 0
        """Log offset from which recovery has read the log, so that the page cache holds it."""
        self._config = config
        self._on_saved = on_saved
        self._to_close: list[Callable[[], None]] = []

    async def open(self) -> RecoveryReport:
        """Lock and recover the directory and read the tables, in a worker thread; first do what a slave noted.

        Raises:
            StoreError, ConfigFileDamaged, JournalWriteFailed, OSError: something is unusable. Call `close`
                nevertheless.
        """
        with directory_refusals(self._config.data_dir):
            return await self._open()

    async def _open(self) -> RecoveryReport:
        reopen = await trio.to_thread.run_sync(self._prepare)
        report = await trio.to_thread.run_sync(partial(self.store.open, truncate_to=reopen.truncate_to))
        self.warm_from = report.checked_from
        # The path of an open store goes through its directory handle, so another directory that replaces this one
        # is not written to.
        data_dir = self.store.options.data_dir
        self.tables = Tables(data_dir / "config", self._config, self.clock_ms, self._on_saved)
        self.staging = StagingState(data_dir, self.clock_ms, self._on_saved)
        self.epochs = EpochFile(data_dir / "epochFileCheckpoint")
        self._to_close.append(self.tables.close)
        await trio.to_thread.run_sync(self._load, reopen)
        return report

    def _prepare(self) -> Reopen:
        """Move the log aside if a slave has noted that; return what is left of the note."""
        config = self._config
        reopen = Reopen.noted(config.data_dir)
        if reopen.aside is None:
            return reopen
        log_dirs = config.store.commit_log_dirs or (config.data_dir / "commitlog",)
        path = set_store_aside(config.data_dir, log_dirs, reopen.aside)
        reopen.done(config.data_dir)
        log.warning(
            "store_set_aside",
            path=str(path),
            reason=reopen.reason,
            hint="the log is copied from the master; delete that directory once nothing of it is needed",
        )
        return Reopen()

    async def begin_epoch(self, number: int) -> int:
        """Begin an epoch of the log, as master; return its number.

        Args:
            number: from an election; 0 for the one after the last.

        Raises:
            EpochBehind, DiskFull, OSError: it could not begin.
        """
        begin = partial(self.epochs.begin, self.store.max_physical_offset, self.store.min_physical_offset, number)
        return (await trio.to_thread.run_sync(begin)).number

    def _load(self, reopen: Reopen) -> None:
        if reopen.truncate_to is not None:
            self._forget_progress()
        self.tables.load()
        if reopen.truncate_to is not None:
            self.tables.offsets.limit(self.store.max_offset_in_queue)
            save_now(self.tables.offsets)
            reopen.done(self._config.data_dir)
        self.epochs.load()
        self.tables.read("sinkBatches", self.staging.batches)
        revive = revive_topic(self._config.cluster)
        if self.store.options.is_replica:
            expect_positions(self.store, self.tables, revive)
            return  # the master knows the topics, delivers delayed messages and decides transactions
        self.tables.adopt_queues(self.store.queues(), self._last_stored_ms)
        recover_positions(self.store, self.tables, revive)
        topics = self.tables.topics.all()
        self.delays = open_delay_state(self._config, self.store, topics, self.clock_ms)
        self._to_close.append(self._finish_delays)
        self.half_queue = recover_transactions(
            self._config.transactions, self.store, self.tables.offsets, self.clock_ms
        )
        self.orders = OrderInfos(self.store.options.data_dir / "config" / "consumerOrderInfo.json", self.clock_ms)
        self.tables.read("consumerOrderInfo", self.orders)

    async def take_back_pops(self, truncate_to: int) -> None:
        """Move groups back over the pops whose check points are beyond where the log is to end.

        Raises:
            StoreDamaged: a record cannot be read.
            JournalWriteFailed: there is no room.
        """
        pops = await trio.to_thread.run_sync(pops_since, self.store, revive_topic(self._config.cluster), truncate_to)
        take_back_positions(self.tables, pops)

    def _last_stored_ms(self, topic: str, queue_id: int) -> int:
        return self.store.store_timestamp(topic, queue_id, self.store.max_offset_in_queue(topic, queue_id) - 1)

    def _forget_progress(self) -> None:
        """Remove the files that say what was delivered or committed: it may be in the part that is gone.

        Then the log alone decides, unless the master's files replace them.
        """
        config = self.store.options.data_dir / "config"
        for name in ("delayOffset.json", "masterTimer.json", "sinkBatches.json"):
            ConfigFile(config / name).remove()
        (config / "timercheck").unlink(missing_ok=True)
        if config.is_dir():
            sync_directory(config)

    async def close(self) -> bool | None:
        """Save and close what was opened, in a worker thread. Failures are logged, and the rest is still done.

        Returns whether everything is flushed; None if the store was not open.
        """
        return await trio.to_thread.run_sync(self._close)

    def _close(self) -> bool | None:
        self.arrivals.end()
        for close in self._to_close:
            close()
        if not self.store.is_open:
            return None
        try:
            return self.store.close()
        except (OSError, ReputError) as error:
            log.error("store_not_closed_in_order", detail=str(error), hint="the next start recovers the store")
            return False

    def _finish_delays(self) -> None:
        try:
            self.delays.finish()
        except (OSError, ReputError) as error:
            log.error("delay_progress_not_saved", detail=str(error), hint="the next start reads more of the log")


def store_options(
    config: BrokerConfig,
    files: OpenFiles,
    address: tuple[str, int],
    on_event: Callable[[str, Any], None],
    *,
    is_replica: bool,
) -> StoreOptions:
    """Return the options of the store.

    Args:
        address: where clients reach the broker.
        on_event: called with the store's events and their facts, from any thread.
        is_replica: whether a slave opens it.
    """
    store = config.store
    return StoreOptions(
        config.data_dir,
        commit_log_file_size=store.commit_log_file_size,
        commit_log_dirs=store.commit_log_dirs,
        read_only_commit_log_dirs=store.read_only_commit_log_dirs,
        warm_mapped_file=store.warm_mapped_file,
        reads_ahead=lambda: store.read_ahead,
        transient_store_pool=store.transient_store_pool,
        transient_store_pool_size=store.transient_store_pool_size,
        fast_fail_if_no_buffer=store.fast_fail_if_no_buffer,
        consume_queue_entries=store.consume_queue_entries,
        consume_queue_ext=store.consume_queue_ext,
        consume_queue_ext_file_size=store.consume_queue_ext_file_size,
        flush_sync=store.flush == "sync",
        message_bytes_max=store.message_size_max,
        record_crc=store.record_crc,
        index_enabled=store.index,
        index_slots=store.index_slots,
        index_entries=store.index_entries,
        queue_files_open_max=files.queue_files,
        log_files_open_max=files.log_files,
        index_files_open_max=files.index_files,
        host=_store_host(config.advertise, address),
        is_replica=is_replica,
        on_event=on_event,
    )


def _store_host(advertise: str | None, address: tuple[str, int]) -> Host:
    """Return the address that records name as their store: the advertised one if it is IPv4."""
    for text in (advertise, f"{address[0]}:{address[1]}"):
        try:
            host = Host.parse(text or "")
        except ValueError:
            continue
        if not host.is_ipv6:
            return host
    return Host("127.0.0.1", address[1])


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
                log.error("start_waits_for_room", detail=logged, hint="free disk space; the broker tries again")
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
            if any(now >= max(needed_bytes, then + _GROWTH_BYTES) for now, then in zip(free, before, strict=True)):
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
