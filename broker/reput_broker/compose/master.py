"""A broker that takes messages: what a master has and a slave has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from typing_extensions import override

from reput_broker.access.control import AccessControl
from reput_broker.compose.parts import BrokerBase, CommonParts, HasHandlers, RoleParts, build_core, handlers_of
from reput_broker.compose.storage import Storage
from reput_broker.delay.feature import DelayFeature
from reput_broker.groups.membership import GroupMembersFile
from reput_broker.ha.admission import Group, SlaveAdmission
from reput_broker.ha.election.elector import Leadership, slave_id
from reput_broker.ha.election.in_sync_set import LogCopies, TableCopies, not_announced
from reput_broker.ha.master_proof import prove, proving
from reput_broker.ha.replica_state import HAStatusProcessor, ReplicaStateProcessor, TableSyncProcessor
from reput_broker.ha.role_refusals import fenced, once_confirmed
from reput_broker.ha.service import Copies, HAService, OfferedLog, ReplicationProgress
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MasterFigures, ReplicationFigures
from reput_broker.pop.feature import PopFeature
from reput_broker.processors.send import PutProcessor, SendProcessor
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Handler
from reput_broker.reply.processor import ReplyProcessor
from reput_broker.retry.feature import RetryFeature
from reput_broker.schedule.feature import ScheduleFeature
from reput_broker.send.deduplication import DeduplicatedPuts
from reput_broker.send.send_records import SendRedirects
from reput_broker.server.gate import Acceptor
from reput_broker.server.listener import address_of, listen
from reput_broker.staging.feature import StagingFeature
from reput_broker.transactions.feature import TransactionFeature
from reput_broker.transactions.half_messages import TransactionTable
from reput_protocol.codes import RequestCode
from reput_protocol.commands.replica import HAConnectionRuntimeInfo, HARuntimeInfo, QueryReplicaStateHeader


class MasterParts(RoleParts):
    """What serves requests as a master, and the tasks behind it. Start `tasks` before `server`.

    Args:
        storage: opened for a master.
        epoch: of the log in this tenure; 0 if no slave can copy it.
        leadership: of an elected master; None without an election.
    """

    is_slave = False

    def __init__(
        self,
        base: BrokerBase,
        storage: Storage,
        store_health: StoreHealth,
        *,
        epoch: int,
        leadership: Leadership | None = None,
    ) -> None:
        fence = Fence() if leadership is None else leadership.fence
        self.core = core = build_core(base, storage, store_health, fence)
        self._delays = storage.delays
        self._common = common = CommonParts(core, self, base.routes)
        self._gate = base.gate
        self._ha_listener = base.ha_listener
        self._leadership = leadership
        self._epoch = epoch
        self._members = base.routes.members
        access = core.access
        self._admission = self._admission_of(access) if isinstance(access, AccessControl) else None
        core.statistics.timer_totals = storage.delays.timer_totals
        self.ha_service: HAService | None = None
        self._table_copies: TableCopies | None = None
        ha_port = None
        if base.ha_listener is not None:
            ha_port = common.own.ha_port = address_of(base.ha_listener)[1]
            self.ha_service = self._serve_slaves()
        self.staging = StagingFeature(core, storage.staging)
        self.delay = DelayFeature(core, storage.delays)
        self.schedules = ScheduleFeature(core)
        self.transactions = TransactionFeature(core, storage.half_queue, self.delay.delay_redirects)
        self.retry = RetryFeature(core, self.delay.delay_redirects)
        self.pop = PopFeature(core, storage.delays, storage.orders, self.delay.delay_redirects, base.routes)
        self._replication = ReplicationProgress(
            lambda: core.store.max_physical_offset,
            lambda: () if self.ha_service is None else self.ha_service.slaves,
            core.config.ha,
            None if leadership is None else lambda: leadership.in_sync.recorded,
        )
        core.sources.replication = self._figures
        replica = ReplicaStateProcessor(
            core,
            storage.epochs,
            self._members,
            epoch=epoch,
            ha_port=ha_port,
            admission=self._admission,
            on_member=self._member_asks,
        )
        handlers = handlers_of(
            (
                *common.processors,
                *self._sending_processors(storage.half_queue.transactions),
                *self.delay.processors,
                *self.schedules.processors,
                *self.transactions.processors,
                *self.retry.processors,
                *self.pop.processors,
                self.staging,
                replica,
                HAStatusProcessor(self._ha_status),
            )
        )
        self.server = common.server(self._guarded(handlers), base)

    def _guarded(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """Return the handlers as slaves, members of the group and the lease of the master need them."""
        core, leadership = self.core, self._leadership
        if leadership is not None:
            leadership.fence.who_may_lead = self._members.who_may_lead
            handlers = once_confirmed(fenced(handlers, leadership.fence), lambda: core.store.is_confirmed)
        sync = TableSyncProcessor(core, self._delays, self.staging.batches_version, handlers)
        handlers = {**handlers, **sync.handlers(), RequestCode.AWAIT_TABLE_CHANGES: not_announced}
        names = core.config.cluster, core.config.broker_name
        if self._admission is not None:
            handlers = proving(handlers, names)
        if leadership is None:
            return handlers
        self._table_copies = TableCopies(
            leadership.in_sync,
            core.puts.progress,
            core.config.ha,
            leadership.fence,
            sync.versions,
            partial(prove, group=names),
            epoch=self._epoch,
        )
        leadership.on_set_change.append(self._table_copies.advance)
        return self._table_copies.handlers(handlers)

    @override
    async def before_delete(self) -> None:
        await self.staging.before_delete()

    @override
    def needed_from(self) -> int | None:
        return self.staging.needed_from()

    @override
    def waiting_from(self) -> int:
        return self._delays.waiting_from()

    @override
    def runtime_figures(self) -> dict[str, object]:
        return self._delays.figures()

    @override
    def reaches_master(self) -> bool:
        return False

    @override
    def ids_to_pull_from(self) -> list[int]:
        """Return the announced ids of the slaves that are connected; RocketMQ's do not say theirs."""
        numbers = () if self.ha_service is None else [slave.member for slave in self.ha_service.slaves]
        announced = int if self._leadership is None else slave_id
        return [announced(number) for number in numbers if number is not None]

    # -- replication -------------------------------------------------------------------------------------

    def _member_asks(self, header: QueryReplicaStateHeader) -> None:
        """Note what a member says of itself."""
        if self._leadership is None or self._table_copies is None:
            return
        if header.member is not None and header.is_fit is not None:
            self._leadership.in_sync.fitness(header.member, header.is_fit)
        self._table_copies.introduced(header)

    def _admission_of(self, access: AccessControl) -> SlaveAdmission:
        config = self.core.config

        def addresses() -> tuple[str, ...]:
            advertised = config.advertise
            return (self._common.own.ha_address(advertised),) if advertised else ()

        return SlaveAdmission(
            access,
            Group(config.cluster, config.broker_name, self._epoch),
            addresses,
            needs_mutual_proof=config.ha.mutual_proof,
        )

    def _serve_slaves(self) -> HAService:
        """Return the service for slaves, whose reports say how far the log is replicated, and in a group confirmed."""
        core, leadership = self.core, self._leadership
        progress = core.puts.progress
        admit = None if self._admission is None else self._admission.admit
        service = HAService(OfferedLog(core.store, core.config.ha, progress, self._epoch, admit))
        if leadership is None:
            progress.serve(Copies(service, progress, core.config))
            return service
        copies = LogCopies(leadership.in_sync, progress, core.config, leadership.now)
        progress.serve(copies)
        leadership.on_set_change.append(copies.moved)
        return service

    async def _run_slaves(self) -> None:
        """Serve slaves. The socket stays open for the next tenure."""
        if self.ha_service is None or self._ha_listener is None:
            return
        listen(self._ha_listener)
        with Acceptor(self._ha_listener) as acceptor:
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._serve_slave, self.ha_service, *await acceptor.accept_stream())

    async def _serve_slave(self, slaves: HAService, stream: trio.SocketStream, peer: tuple[str, int]) -> None:
        admitted = await self._gate.admit_stream(stream, peer)
        if admitted is not None:
            await slaves.serve(admitted, f"{peer[0]}:{peer[1]}")

    def _sending_processors(self, transactions: TransactionTable) -> tuple[HasHandlers, ...]:
        core, deduplicated = self.core, DeduplicatedPuts(self.core)
        redirects = SendRedirects(core, transactions, self.delay.delay_redirects)
        return (
            PutProcessor(core, deduplicated),
            SendProcessor(core, deduplicated, redirects, self.retry),
            ReplyProcessor(core),
        )

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker is the master."""
        return (
            *self._common.tasks(),
            *self.staging.tasks(),
            *self.transactions.tasks(),
            *self.delay.tasks(),
            *self.schedules.tasks(),
            *self.pop.tasks(),
            self._run_slaves,
            *(() if self._table_copies is None else (self._table_copies.expire,)),
            *(() if self.ha_service is None else (self._replication.run,)),
            partial(self._common.show_replication, self._replication_health),
        )

    @override
    async def before_serving(self) -> None:
        """Read which batches of sinks are committed, and which members the groups had at the master before."""
        await self.staging.recover()
        core = self.core
        file = GroupMembersFile(core.store.options.data_dir / "config", core.clock_ms)
        # One that is silent for longer is no member.
        age_max_s = core.config.groups.heartbeat_timeout
        core.groups.membership.expect(await trio.to_thread.run_sync(file.take, age_max_s))

    @property
    @override
    def begun(self) -> str | None:
        return self.staging.begun

    @override
    async def complete(self) -> None:
        """Publish the rest of a batch that was being published. Slaves can copy meanwhile."""
        await self.staging.complete_begun()

    @override
    def release(self) -> None:
        """Answer members that wait for changes of tables."""
        if self._table_copies is not None:
            self._table_copies.stop()

    @override
    async def finish(self) -> None:
        """Write the decisions of transactions.

        What cannot be written any more, because another broker is or may be the master, is found again as after a
        crash.
        """
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self.core.puts.fence.closed()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            await self.transactions.finish()
            nursery.cancel_scope.cancel()

    def status(self) -> dict[str, object]:
        """Return what /status shows."""
        return {
            "delayed": self.delay.status(),
            "transactions": self.transactions.status(),
            "slaves": [slave._asdict() for slave in self._replication.slaves()],
            "copies_in_sync": self._replication.copies_in_sync,
            "copies_wanted": self.core.config.ha.in_sync_replicas,
            "replicated_offset": self.core.puts.progress.replicated.offset,
        }

    def _replication_health(self) -> tuple[bool, str]:
        figures = self._figures().master
        if figures is None or figures.in_sync >= figures.wanted:
            return True, ""
        return False, f"copies in sync: {figures.in_sync}, ha.in_sync_replicas: {figures.wanted}"

    def _figures(self) -> ReplicationFigures:
        config, slaves = self.core.config.ha, self._replication.slaves()
        lag = {
            "other" if slave.member is None else str(slave.member): (slave.lag_bytes, slave.lag_s) for slave in slaves
        }
        figures = MasterFigures(
            len(slaves),
            self._replication.copies_in_sync,
            config.in_sync_replicas,
            self.core.puts.progress.replicated.offset,
            lag,
        )
        return ReplicationFigures(self.core.tenures.current.role, self._epoch, figures, None)

    def _ha_status(self) -> HARuntimeInfo:
        slaves = self._replication.slaves()
        return HARuntimeInfo(
            True,
            self.core.store.max_physical_offset,
            self._replication.copies_in_sync - 1,
            [
                HAConnectionRuntimeInfo(
                    slave.peer,
                    slave.acked_offset,
                    slave.lag_bytes,
                    slave.is_in_sync,
                    round(slave.bytes_per_s),
                    slave.next_offset,
                )
                for slave in slaves
            ],
        )
