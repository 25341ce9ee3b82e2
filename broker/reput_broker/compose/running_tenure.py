"""The broker in one role, from opening the store to closing it (`run` has the order), and what only a slave has.

A change of role closes everything and opens it again in the new role, over the same sockets. There is no other way from
one role to another, so that a broker that has changed its role is like one that has just started in it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import structlog
import trio
from typing_extensions import override

from reput_broker.access.control import AccessControl
from reput_broker.compose.master import MasterParts
from reput_broker.compose.parts import BrokerBase, CommonParts, RoleParts, build_core, handlers_of
from reput_broker.compose.storage import FreeSpace, Storage, open_or_close, open_when_there_is_room, store_options
from reput_broker.ha.client import HAClient
from reput_broker.ha.election.elector import Elector, Leadership
from reput_broker.ha.election.engine import LeaseLost
from reput_broker.ha.master_proof import MasterClient, proving
from reput_broker.ha.reopen import Reopen
from reput_broker.ha.replica_state import HAStatusProcessor, ReplicaStateProcessor
from reput_broker.ha.role_refusals import NOT_WHILE_COMPLETING, SlaveRefusals, in_every_role, refusal_while_completing
from reput_broker.ha.service import MasterLog
from reput_broker.ha.slave_synchronize import SlaveSynchronize
from reput_broker.observe.figures import refresh_disk_figures
from reput_broker.observe.health import BrokerState, StoreHealth
from reput_broker.observe.history.file import What
from reput_broker.observe.metrics import ReplicationFigures, SlaveFigures
from reput_broker.processors.operations import OperationsProcessor
from reput_broker.processors.runtime_info import HistoryProcessor
from reput_broker.put.put_lock import Fence
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.results import RecoveryReport
from reput_broker.tenure.core import Master, Role, Tenure
from reput_protocol.commands.replica import HAClientRuntimeInfo, HARuntimeInfo
from reput_protocol.errors import ReputError, leaves

log = structlog.get_logger(__name__)
T = TypeVar("T")


class SlaveParts(RoleParts):
    """What serves requests as a slave, and the tasks behind it. Start `tasks` before `server`.

    It delivers no delayed messages, checks no transactions and publishes no batches: its master does, and their effects
    arrive in the log.

    Args:
        storage: opened for a slave.
        on_reopen: see `HAClient`.
    """

    is_slave = True

    def __init__(
        self,
        base: BrokerBase,
        storage: Storage,
        store_health: StoreHealth,
        *,
        on_reopen: Callable[[int | None, str], Awaitable[None]],
    ) -> None:
        tenures, config = base.tenures, base.config
        if config.election.is_on or isinstance(tenures, Elector):
            storage.store.confirm_offset = 0  # until the master says more
        self.core = core = build_core(base, storage, store_health, Fence())
        self._epochs = storage.epochs
        self._common = common = CommonParts(core, self, base.routes)
        self.master_log = MasterLog(lambda: core.store.max_physical_offset)
        self.copying = HAClient(core, self._epochs, self.master_log, base.routes.members, on_reopen=on_reopen)
        self.tables = SlaveSynchronize(
            core.store,
            core.tables,
            self.master_log,
            self._accepted,
            self._forget_topic,
            partial(MasterClient, config=config),
            member=config.broker_id if isinstance(tenures, Elector) else None,
            on_confirmed=self.copying.note_confirmed,
        )
        refusals = SlaveRefusals(
            config.ha,
            self._master_address,
            base.routes.members.who_may_lead,
            has_offsets=lambda: self.tables.has_offsets,
            is_confirmed=lambda: core.store.is_confirmed,
        )
        common.own.lost_master = lambda: self.copying.lost_master
        if isinstance(tenures, Elector):
            tenures.before_taking_over(self.tables.complete)
        handlers = refusals.handlers(
            handlers_of(
                (
                    *common.processors,
                    ReplicaStateProcessor(core, self._epochs, base.routes.members, epoch=0, ha_port=None),
                    HAStatusProcessor(self._ha_status, core.store.set_master_flushed_offset),
                )
            )
        )
        if isinstance(core.access, AccessControl):
            handlers = proving(handlers, (config.cluster, config.broker_name))
        self.server = common.server(handlers, base)
        core.sources.replication = self._figures

    @override
    async def before_delete(self) -> None:
        pass

    @override
    def needed_from(self) -> None:
        return None

    @override
    def waiting_from(self) -> int:
        # What the master keeps, messages that wait for their time among it, a new master needs.
        return self.tables.master_min_offset

    @override
    def runtime_figures(self) -> dict[str, object]:
        return {}

    @override
    def reaches_master(self) -> bool:
        return self.copying.is_connected

    @override
    def ids_to_pull_from(self) -> list[int]:
        return [self.core.tenures.current.broker_id]

    def _accepted(self) -> Master | None:
        """Return the master once its history is that of this log: the tables of another would not fit."""
        return self.core.tenures.current.master if self.copying.is_connected else None

    def _forget_topic(self, topic: str) -> None:
        self.core.groups.forget_topic(topic)
        self.core.hold.release_topic(topic)

    def _master_address(self) -> str | None:
        master = self.core.tenures.current.master
        return None if master is None else master.address

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker is a slave."""
        return (
            *self._common.tasks(),
            self.copying.run,
            self.tables.run,
            partial(self._common.show_replication, lambda: (self.copying.is_connected, self.copying.state)),
        )

    def status(self) -> dict[str, object]:
        """Return what /status shows."""
        return {
            "master": self._master_address(),
            "replication": self.copying.state,
            "is_connected": self.copying.is_connected,
            "behind_bytes": self.master_log.lag_bytes,
            "behind_s": round(self.master_log.lag_s, 3),
            "tables_age_s": round(self.tables.age_s, 3),
        }

    def _figures(self) -> ReplicationFigures:
        figures = SlaveFigures(
            self.core.tenures.current.master is not None,
            self.copying.is_connected,
            self.master_log.lag_bytes,
            self.master_log.lag_s,
            self.tables.age_s,
        )
        return ReplicationFigures(Role.SLAVE, self._epochs.last, None, figures)

    def _ha_status(self) -> HARuntimeInfo:
        copying, core = self.copying, self.core
        received_ms = 0
        if copying.received_at is not None:
            received_ms = core.clock_ms() - round((trio.current_time() - copying.received_at) * 1000)
        client = HAClientRuntimeInfo(
            self._master_address() or "",
            0,
            core.store.max_physical_offset,
            received_ms,
            received_ms,
            self.master_log.end,
            copying.is_connected,
        )
        return HARuntimeInfo(client=client)


_CHANGE_GRACE_S = 0.5
"""The time that running requests get at a change of role. A request that gets no answer has an unknown outcome for its
client, which asks the new master."""


class RunningTenure:
    """One tenure: `run` opens the store, builds the parts and serves; `end` ends it."""

    def __init__(self, base: BrokerBase) -> None:
        self.tenure: Tenure = base.tenures.current
        self.storage: Storage | None = None
        self.parts: MasterParts | SlaveParts | None = None
        self._base = base
        self._store_health = StoreHealth(base.health, is_replica=not self.tenure.is_master)
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
            report = await self._led(self._open_storage)
            async with trio.open_nursery() as nursery:
                parts = self.parts = self._start_parts(nursery)
                serves = await self._unless_ended(parts.before_serving)
                refuse = partial(parts.server.handling.refuse, "completion", NOT_WHILE_COMPLETING)
                if parts.begun is not None:
                    refuse(refusal_while_completing(parts.begun))
                if serves:
                    await nursery.start(parts.server.run, base.listeners)
                try:
                    if serves and await self._unless_ended(parts.complete):
                        if parts.begun is None:
                            refuse(None)
                        is_read_only = self._opened.store.read_only_reason is not None
                        base.health.state = BrokerState.READONLY if is_read_only else BrokerState.RUNNING
                        on_ready(self.tenure, report)
                    await self._end.wait()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._drain(parts)
                nursery.cancel_scope.cancel()
        except* LeaseLost as lost:
            log.info("lease_lost_before_serving", reason=str(leaves(lost)[0]))
        finally:
            with trio.CancelScope(shield=True):
                await self._close()
        return self._next_follows

    @property
    def _is_elected(self) -> bool:
        return self.tenure.is_master and self._base.elector is not None

    async def _led(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what comes before serving. An elected master that cannot gives its lease back, and is a slave again.

        Raises:
            LeaseLost: it has, or the tenure has ended meanwhile; another tenure follows, unless the broker stops.
            StoreError, ConfigFileDamaged, OSError: without an election, or as a slave.
        """
        try:
            return await work()
        except (ReputError, OSError) as error:
            elector, epoch = self._base.elector, self.tenure.epoch
            if not self.tenure.is_master or elector is None:
                raise
            reason = str(error)
            if not isinstance(error, LeaseLost):
                log.error(
                    "elected_and_cannot_lead",
                    epoch=epoch,
                    detail=reason,
                    hint="another member in sync takes over; this one tries again after the length of a lease",
                )
                reason = f"this member was elected and could not lead: {reason}"
                await elector.give_up(epoch, reason)
            self._next_follows = self._next_follows or not self._end.is_set()
            raise LeaseLost(reason) from error

    @property
    def _opened(self) -> Storage:
        assert self.storage is not None, "`run` opens it first"
        return self.storage

    async def _open_storage(self) -> RecoveryReport:
        """Lock and recover the directory and read the tables; the health page answers meanwhile.

        While the disk is too full, the start waits and retries; an embedded broker raises instead, and one that was
        elected too: another member may have room.
        """
        base = self._base
        if base.waits_for_room and not self._is_elected:
            directories = (base.config.data_dir, *base.config.store.commit_log_dirs)
            space = FreeSpace(directories, base.stop_wanted)
            storage, report = await open_when_there_is_room(self._new_storage, space, base.health, base.stop_wanted)
        else:
            storage = self._new_storage()
            report = await open_or_close(storage)
        self.storage = storage
        if base.history.is_kept:
            await base.history.open(storage.store.options.data_dir)
        if self.tenure.is_master and (base.ha_listener is not None or storage.epochs.exists):
            self._epoch = await storage.begin_epoch(self.tenure.epoch)
        if self._is_elected and base.elector is not None:
            end = storage.store.max_physical_offset
            self._leadership = base.elector.lead(self.tenure.epoch, storage.epochs.entries, end)
        epoch = self._epoch or storage.epochs.last
        base.history.note(What.BECAME_MASTER if self.tenure.is_master else What.BECAME_SLAVE, epoch)
        base.sources.recovery_duration_s = report.duration_s
        base.sources.recovery_truncated_bytes = report.truncated_bytes
        return report

    def _new_storage(self) -> Storage:
        base = self._base
        on_event = partial(self._store_health.report, self._token)
        return Storage(
            base.config,
            store_options(base.config, base.open_files, base.address, on_event, is_replica=not self.tenure.is_master),
            base.surroundings.clock_ms,
            self._store_health.note_table,
        )

    def _start_parts(self, nursery: trio.Nursery) -> MasterParts | SlaveParts:
        base, storage = self._base, self._opened
        parts: MasterParts | SlaveParts
        if self.tenure.is_master:
            parts = MasterParts(base, storage, self._store_health, epoch=self._epoch, leadership=self._leadership)
        else:
            parts = SlaveParts(base, storage, self._store_health, on_reopen=self._reopen)
        operations = OperationsProcessor(base.operations, parts.core, lambda: parts.server.connections)
        history = HistoryProcessor(base.history, base.sources)
        parts.server.handling.serve(in_every_role({**operations.handlers(), **history.handlers()}))
        base.operations.intake.apply_to(parts.server.handling.refuse)
        for task in parts.tasks():
            nursery.start_soon(task)
        nursery.start_soon(refresh_disk_figures, base.sources.disk, base.config, storage.store.oldest_store_timestamp)
        nursery.start_soon(self._watch_role)
        return parts

    async def _reopen(self, truncate_to: int | None, reason: str) -> None:
        """Note what to do with the slave's log and end this tenure; the next one does it, then continues to copy."""
        aside = f"{self._base.surroundings.clock_ms()}" if truncate_to is None else None
        if truncate_to is not None:
            try:
                await self._opened.take_back_pops(truncate_to)
            except (ReputError, StoreDamaged, OSError) as error:
                log.warning(
                    "popped_messages_uncertain",
                    detail=str(error),
                    hint="if this broker becomes the master now, groups may miss messages that they had popped "
                    "from it and not acknowledged",
                )
        reopen = Reopen(truncate_to, aside, reason)
        await trio.to_thread.run_sync(reopen.note, self._opened.store.options.data_dir)
        log.warning("store_reopens", truncate_to=truncate_to, set_aside=aside, reason=reason)
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

    async def _unless_ended(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do work that is left from an earlier run; return whether it is done and the tenure continues.

        A stop or another role ends it early. Raises as `_led`.
        """
        ends = (self._base.stop_wanted, self._end)
        async with trio.open_nursery() as nursery:

            async def give_up(event: trio.Event) -> None:
                await event.wait()
                nursery.cancel_scope.cancel()

            for event in ends:
                nursery.start_soon(give_up, event)
            await self._led(work)
            nursery.cancel_scope.cancel()
        return not any(event.is_set() for event in ends)

    async def _drain(self, parts: MasterParts | SlaveParts) -> None:
        base, server = self._base, parts.server
        base.health.state = BrokerState.DRAINING
        server.stop_accepting(keep_listening=self._next_follows)
        self._opened.hold.release_all()
        parts.release()
        with base.routes.kept_without_connections():
            await server.drain(_CHANGE_GRACE_S if self._next_follows else base.config.shutdown_grace)
        if not self._next_follows:
            await parts.finish()

    async def _close(self) -> None:
        storage, base = self.storage, self._base
        base.sources.forget_tenure()
        await base.history.close()
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
