"""The broker in one role, from opening the store to closing it.

A change of role closes everything and opens it again in the new role, over the same sockets. There is no other way from
one role to another, so that a broker that has changed its role is like one that has just started in it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import structlog
import trio

from reput_broker.compose.election import Leadership
from reput_broker.compose.master import MasterParts
from reput_broker.compose.open_files import OpenFiles
from reput_broker.compose.slave import SlaveParts
from reput_broker.compose.start import FreeSpace, open_or_close, open_when_there_is_room
from reput_broker.compose.storage import Storage, store_options
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.client import Reopen
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.election.engine import LeaseLost
from reput_broker.ha.roles import Tenure, TenureSource
from reput_broker.ha.set_aside import set_store_aside
from reput_broker.observe.figures import refresh_disk_figures
from reput_broker.observe.health import BrokerState, Health, StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.store.results import RecoveryReport
from reput_broker.surroundings import Surroundings

log = structlog.get_logger(__name__)

_CHANGE_GRACE_S = 0.5
"""The time that running requests get at a change of role. What is answered no more has an unknown outcome for its
client, which asks the new master."""


@dataclass(slots=True)
class BrokerBase:
    """What a broker has in every role."""

    config: BrokerConfig
    surroundings: Surroundings
    sources: MetricsSources
    tenures: TenureSource
    waits_for_room: bool
    """Whether a start waits while the disk is full, instead of raising."""
    stop_wanted: trio.Event = field(default_factory=trio.Event)
    open_files: OpenFiles = field(init=False)
    address: tuple[str, int] = ("", 0)
    """Where clients on this machine reach the broker."""
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    """Bound sockets of the protocol, by name."""
    ha_listener: socket.socket | None = None
    """The bound socket on which slaves are served; None if none are."""

    @property
    def elector(self) -> Elector | None:
        """What decides the role, if an engine elects."""
        return self.tenures if isinstance(self.tenures, Elector) else None

    @property
    def health(self) -> Health:
        """What /readyz shows."""
        return self.sources.health


class ServedTenure:
    """One tenure: `run` opens the store, builds the parts and serves; `end` ends it.

    Args:
        reopen: how the store must be opened; None as it is.
    """

    def __init__(self, base: BrokerBase, reopen: Reopen | None = None) -> None:
        self.reopen: Reopen | None = None
        """How the next tenure must open the store; None as it is."""
        self._opens_with = reopen or Reopen()
        self.tenure: Tenure = base.tenures.current
        self.storage: Storage | None = None
        self.parts: MasterParts | SlaveParts | None = None
        self._base = base
        self._store_health = StoreHealth(base.health)
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        self._next_follows = False
        self._epoch = 0
        self._leadership: Leadership | None = None

    def end(self) -> None:
        """Drain and close, because the broker stops. Idempotent."""
        self._next_follows = False
        self._end.set()

    async def run(self, on_ready: Callable[[Tenure, RecoveryReport], None]) -> bool:
        """Serve until `end`, or until the broker's role changes.

        Args:
            on_ready: called when clients can be served.

        Returns:
            Whether another tenure follows.

        Raises:
            StoreError, ConfigFileDamaged, OSError: the store cannot be opened. Nothing in it was changed.
        """
        base = self._base
        base.health.state = BrokerState.RECOVERING
        try:
            report = await self._open_storage()
            async with trio.open_nursery() as nursery:
                parts = self.parts = self._start_parts(nursery)
                await self._prepare(parts)
                await nursery.start(parts.server.run, base.listeners)
                is_read_only = self._opened.store.read_only_reason is not None
                base.health.state = BrokerState.READONLY if is_read_only else BrokerState.RUNNING
                on_ready(self.tenure, report)
                try:
                    await self._end.wait()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._drain(parts)
                nursery.cancel_scope.cancel()
        except LeaseLost as error:
            log.info("lease_lost_before_serving", reason=error.reason)
            self._next_follows = not self._end.is_set()
        finally:
            with trio.CancelScope(shield=True):
                await self._close()
        return self._next_follows

    @property
    def _opened(self) -> Storage:
        assert self.storage is not None, "`run` opens it first"
        return self.storage

    async def _open_storage(self) -> RecoveryReport:
        """Lock and recover the directory and read the tables; the health page answers meanwhile.

        While the disk is too full, the start waits and retries; an embedded broker raises instead.
        """
        base = self._base
        if self._opens_with.set_aside is not None:
            await self._set_aside(self._opens_with.set_aside)
        if base.waits_for_room:
            directories = (base.config.data_dir, *base.config.store.commit_log_dirs)
            space = FreeSpace(directories, base.stop_wanted)
            storage, report = await open_when_there_is_room(
                self._new_storage, space, base.health, base.stop_wanted
            )
        else:
            storage = self._new_storage()
            report = await open_or_close(storage)
        self.storage = storage
        if self.tenure.is_master and (base.ha_listener is not None or storage.epochs.exists):
            self._epoch = await storage.begin_epoch(self.tenure.epoch)
        if self.tenure.is_master and base.elector is not None:
            fence = base.elector.fence
            in_sync = await base.elector.lead(storage.store.max_physical_offset)
            self._leadership = Leadership(base.elector, fence, in_sync)
        base.sources.recovery_duration_s = report.duration_s
        base.sources.recovery_truncated_bytes = report.truncated_bytes
        return report

    async def _set_aside(self, reason: str) -> None:
        config = self._base.config
        log_dirs = config.store.commit_log_dirs or (config.data_dir / "commitlog",)
        stamp = f"{self._base.surroundings.clock_ms()}"
        path = await trio.to_thread.run_sync(set_store_aside, config.data_dir, log_dirs, stamp)
        log.warning(
            "store_set_aside",
            path=str(path),
            reason=reason,
            hint="the log is copied from the master; delete that directory once nothing of it is needed",
        )

    def _new_storage(self) -> Storage:
        base = self._base
        on_event = partial(self._store_health.report, self._token)
        return Storage(
            base.config,
            store_options(
                base.config, base.open_files, base.address, on_event, is_replica=not self.tenure.is_master
            ),
            base.surroundings.clock_ms,
            self._store_health.note_table,
            self._opens_with.cut_at,
        )

    def _start_parts(self, nursery: trio.Nursery) -> MasterParts | SlaveParts:
        base, storage = self._base, self._opened
        connections_max = base.open_files.connections
        common = (storage, base.sources, self._store_health, base.surroundings, base.tenures)
        parts: MasterParts | SlaveParts
        if self.tenure.is_master:
            parts = MasterParts(
                *common,
                connections_max=connections_max,
                epoch=self._epoch,
                ha_listener=base.ha_listener,
                leadership=self._leadership,
            )
        else:
            parts = SlaveParts(*common, connections_max=connections_max, on_reopen=self._reopen)
        for task in parts.tasks():
            nursery.start_soon(task)
        nursery.start_soon(
            refresh_disk_figures, base.sources.disk, base.config, storage.store.oldest_store_timestamp
        )
        nursery.start_soon(self._watch_role)
        return parts

    def _reopen(self, reopen: Reopen) -> None:
        """End this tenure: the slave's log must be changed first, and then followed by the next one."""
        self.reopen = reopen
        self._next_follows = True
        self._end.set()

    async def _watch_role(self) -> None:
        """End this tenure when another role is due. A slave's HAClient follows a change of master by itself."""
        tenures, seen = self._base.tenures, self.tenure
        while not seen.differs_in_role(self.tenure):
            await tenures.changed(seen)
            seen = tenures.current
        log.info("role_changes", before=self.tenure.role, after=seen.role, epoch=seen.epoch)
        self._next_follows = True
        self._end.set()

    async def _prepare(self, parts: MasterParts | SlaveParts) -> None:
        """Complete what an earlier run began, before serving. A stop or another role ends this early."""
        async with trio.open_nursery() as nursery:

            async def give_up(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up, self._base.stop_wanted)
            nursery.start_soon(give_up, self._end)
            await parts.before_serving()
            nursery.cancel_scope.cancel()

    async def _drain(self, parts: MasterParts | SlaveParts) -> None:
        base, server = self._base, parts.server
        base.health.state = BrokerState.DRAINING
        server.stop_accepting(keep_listening=self._next_follows)
        self._opened.hold.release_all()
        await server.drain(_CHANGE_GRACE_S if self._next_follows else base.config.shutdown_grace)
        if not self._next_follows:
            await parts.finish()

    async def _close(self) -> None:
        storage, base = self.storage, self._base
        base.sources.forget_tenure()
        if storage is None:
            return
        started_at = time.monotonic()
        is_flushed = await storage.close()
        if is_flushed is not None and base.health.state is not BrokerState.RECOVERING:
            log.info(
                "tenure_ended" if self._next_follows else "broker_stopped",
                everything_flushed=is_flushed,
                duration_s=round(time.monotonic() - started_at, 3),
            )

    def status(self) -> Mapping[str, object]:
        """Return what /status shows."""
        storage, parts = self.storage, self.parts
        return {
            "role": str(self.tenure.role),
            "broker_id": self.tenure.broker_id,
            "epoch": 0 if storage is None else storage.epochs.last,
            "held_pulls": 0 if storage is None else storage.hold.count,
            **({} if parts is None else parts.status()),
        }
