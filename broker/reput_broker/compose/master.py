"""A broker that takes messages: what a master has and a slave has not."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.opening import Access
from reput_broker.compose.delay import DelayParts
from reput_broker.compose.election import Leadership
from reput_broker.compose.parts import CommonParts, Processor, handlers_of
from reput_broker.compose.pop import PopParts
from reput_broker.compose.retry import RetryParts
from reput_broker.compose.storage import Storage
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.groups.reply_push import ReplyPusher
from reput_broker.ha.admission import Group, SlaveAdmission
from reput_broker.ha.copies import Copies
from reput_broker.ha.election.elector import slave_id
from reput_broker.ha.election.group_copies import GroupCopies
from reput_broker.ha.master_proof import proving
from reput_broker.ha.progress import ReplicationProgress
from reput_broker.ha.roles import TenureSource
from reput_broker.ha.service import HAService
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.replication_metrics import MasterFigures, ReplicationFigures
from reput_broker.processors.ha_status import HAStatusProcessor
from reput_broker.processors.put import PutProcessor
from reput_broker.processors.put_once import PutOnce
from reput_broker.processors.replica import ReplicaProcessor
from reput_broker.processors.reply import ReplyProcessor
from reput_broker.processors.send import SendProcessor
from reput_broker.processors.slave_refusals import fenced
from reput_broker.processors.table_sync import TableSyncProcessor
from reput_broker.put.fence import Fence
from reput_broker.retry.deduplication import Deduplication
from reput_broker.server.acceptor import Acceptor
from reput_broker.server.gate import Gate
from reput_broker.server.listener import address_of
from reput_broker.staging.parts import StagingParts
from reput_broker.surroundings import Surroundings
from reput_protocol.commands.ha import HAConnectionRuntimeInfo, HARuntimeInfo
from reput_protocol.names import reply_topic, revive_topic


class MasterParts:
    """What serves requests as a master, and the tasks behind it. Start `tasks` before `server`.

    Args:
        storage: opened for a master.
        tenures: the current one is what routes show of this broker.
        routes: what other brokers have registered.
        gate: what connections pass before their first request.
        connections_max: the open files that are left for connections.
        epoch: of the log in this tenure; 0 if no slave can copy it.
        ha_listener: a bound socket on which slaves are served; None if none are.
        leadership: of an elected master; None without an election.
    """

    def __init__(
        self,
        storage: Storage,
        sources: MetricsSources,
        store_health: StoreHealth,
        surroundings: Surroundings,
        tenures: TenureSource,
        routes: RouteInfoManager,
        gate: Gate,
        access: Access,
        cold_quotas: ColdQuotas,
        *,
        connections_max: int,
        epoch: int,
        ha_listener: socket.socket | None,
        leadership: Leadership | None = None,
    ) -> None:
        config, counters = sources.config, sources.counters
        self._common = common = CommonParts(
            storage,
            sources,
            store_health,
            surroundings,
            tenures,
            routes,
            gate,
            access,
            cold_quotas,
            before_delete=lambda: self.staging.before_delete(),
            needed_from=lambda: self.staging.needed_from(),
            waiting_from=storage.schedule.waiting_from,
            more_figures=storage.schedule.figures,
            fence=Fence() if leadership is None else leadership.fence,
            ids_to_pull_from=self._slave_ids,
        )
        self._admission = self._admission_of(access, epoch) if isinstance(access, AccessControl) else None
        common.statistics.timer_totals = storage.schedule.timer_totals
        self._is_elected = leadership is not None
        self.groups, self.puts = common.groups, common.puts
        self.overview = common.overview
        self.own = common.own
        self._tenures = tenures
        self.slaves: HAService | None = None
        self._ha_listener = ha_listener
        self._gate = gate
        if ha_listener is not None:
            self.own.ha_port = address_of(ha_listener)[1]
            self.slaves = (
                self._serve_log(epoch) if leadership is None else self._serve_group(epoch, leadership)
            )
        self.staging = StagingParts(
            config.sink,
            storage.store,
            storage.staging,
            storage.tables,
            common.topic_access,
            common.puts.appender,
            common.puts.flush,
            common.puts.transfer,
            counters,
        )
        self.delay = DelayParts(config, storage, common.puts)
        self.retry = RetryParts(
            config,
            storage,
            common.puts,
            self.delay.delay_hook,
            common.groups,
            common.topic_access,
            common.group_access,
            counters.retry,
        )
        self.pop = PopParts(
            config,
            storage,
            common.puts,
            self.delay.delay_hook,
            common.groups,
            common.topic_access,
            common.group_access,
            routes,
            common.filter_check,
            counters,
        )
        sources.pop = self.pop.sources()
        sources.open_transactions = lambda: storage.half_queue.transactions.open_by_topic
        sources.delays = self.delay.sources()
        processors = (
            *common.processors(),
            *self._writing_processors(),
            self.delay,
            self.retry,
            self.pop,
            self.staging,
            ReplicaProcessor(
                config,
                storage.store,
                storage.epochs,
                routes.members,
                epoch=epoch,
                ha_port=None if ha_listener is None else address_of(ha_listener)[1],
                admission=self._admission,
                on_fitness=_nothing if leadership is None else leadership.in_sync.fitness,
            ),
        )
        self._epoch = epoch
        self._progress = ReplicationProgress(
            lambda: storage.store.max_physical_offset,
            lambda: () if self.slaves is None else self.slaves.slaves,
            config.ha,
            None if leadership is None else lambda: leadership.in_sync.recorded,
        )
        sources.replication = self._figures
        handlers = handlers_of((*processors, HAStatusProcessor(self._ha_status)))
        if leadership is not None:
            leadership.fence.who_may_lead = routes.members.who_may_lead
            handlers = fenced(handlers, leadership.fence)
        sync = TableSyncProcessor(
            storage.store,
            storage.tables,
            storage.schedule,
            self.staging.batches_version,
            handlers,
            storage.clock_ms,
            revive_topic=revive_topic(config.cluster),
        )
        handlers = {**handlers, **sync.handlers()}
        if self._admission is not None:
            handlers = proving(handlers, (config.cluster, config.broker_name))
        self.server = common.server(handlers, connections_max)

    def _admission_of(self, access: AccessControl, epoch: int) -> SlaveAdmission:
        config = self._common.config

        def addresses() -> tuple[str, ...]:
            advertised = config.advertise
            return (self.own.ha_address(advertised),) if advertised else ()

        return SlaveAdmission(
            access,
            Group(config.cluster, config.broker_name, epoch),
            addresses,
            needs_mutual_proof=config.ha.mutual_proof,
        )

    def _serve_log(self, epoch: int) -> HAService:
        """Return the service for slaves, whose reports answer the puts that wait for copies."""
        common, transfer = self._common, self._common.puts.transfer
        store, config = common.storage.store, common.config
        service = HAService(
            store,
            config.ha,
            epoch=epoch,
            on_ack=lambda _: transfer.advance(),
            admit=None if self._admission is None else self._admission.admit,
        )
        is_sync = config.store.flush == "sync"
        transfer.serve(Copies(service, store, config.ha, is_sync=is_sync), service.wake)
        return service

    def _serve_group(self, epoch: int, leadership: Leadership) -> HAService:
        """Return the service for the members of a group, whose reports move the confirm offset."""
        common, puts, elector = self._common, self._common.puts, leadership.elector
        elector.before_taking_over(None)
        store, config = common.storage.store, common.config

        def confirmed() -> None:
            puts.reput.catch_up()
            puts.transfer.advance()

        copies = GroupCopies(
            leadership.in_sync,
            store,
            config.ha,
            elector.now,
            is_sync=config.store.flush == "sync",
            on_confirmed=confirmed,
        )

        def appended() -> None:
            service.wake()
            copies.moved()

        service = HAService(
            store,
            config.ha,
            epoch=epoch,
            on_ack=copies.acknowledged,
            on_gone=copies.gone,
            admit=None if self._admission is None else self._admission.admit,
        )
        puts.transfer.serve(copies, appended)
        puts.on_flushed = copies.moved
        elector.on_set_change(copies.moved)
        return service

    def _slave_ids(self) -> list[int]:
        """Return the announced ids of the slaves that are connected; RocketMQ's do not say theirs."""
        numbers = () if self.slaves is None else [slave.member for slave in self.slaves.slaves]
        announced = slave_id if self._is_elected else int
        return [announced(number) for number in numbers if number is not None]

    async def _run_slaves(self) -> None:
        """Serve slaves. The socket stays open for the next tenure."""
        if self.slaves is None or self._ha_listener is None:
            return
        self._ha_listener.listen()
        with Acceptor(self._ha_listener) as acceptor:
            async with trio.open_nursery() as nursery:
                while True:
                    nursery.start_soon(self._serve_slave, self.slaves, *await acceptor.accept_stream())

    async def _serve_slave(self, slaves: HAService, stream: trio.SocketStream, peer: tuple[str, int]) -> None:
        admitted = await self._gate.admit_stream(stream, peer)
        if admitted is not None:
            await slaves.serve(admitted, f"{peer[0]}:{peer[1]}")

    def _writing_processors(self) -> tuple[Processor, ...]:
        common, storage, puts = self._common, self._common.storage, self._common.puts
        config, counters, access = common.config, common.counters, common.topic_access
        store, clock_ms = storage.store, storage.clock_ms
        deduplication = Deduplication(
            store,
            dispatch=puts.reput.catch_up,
            clock_ms=clock_ms,
            window_s=lambda: config.dedup.window,
        )
        once = PutOnce(deduplication, puts.appender)
        requesters = common.groups.requesters
        return (
            PutProcessor(store, access, counters, once, puts.transfer),
            SendProcessor(
                store,
                access,
                self.retry.redirects,
                once,
                self.retry.back_once,
                self.retry.claims,
                requesters,
                puts.transfer,
                cluster=config.cluster,
                broker_name=config.broker_name,
                default_ack=puts.default_ack,
            ),
            ReplyProcessor(
                store,
                access,
                puts.appender,
                ReplyPusher(requesters, config.limits),
                config.replies,
                counters,
                reply_topic=reply_topic(config.cluster),
                default_ack=puts.default_ack,
                local_ack=puts.local_ack,
                clock_ms=clock_ms,
            ),
        )

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker is the master."""
        return (
            *self._common.tasks(),
            *self.staging.tasks(),
            *self.retry.tasks(),
            *self.delay.tasks(),
            *self.pop.tasks(),
            self._run_slaves,
            self._progress.run,
            partial(self._common.show_replication, self._replication_health),
        )

    async def before_serving(self) -> None:
        """Read which batches of sinks are committed."""
        await self.staging.recover()

    @property
    def begun(self) -> str | None:
        """What an earlier run began and `complete` completes, in words; None if there is nothing."""
        return self.staging.begun

    async def complete(self) -> None:
        """Publish the rest of a batch that was being published. Slaves can copy meanwhile."""
        await self.staging.complete_begun()

    async def finish(self) -> None:
        """Write what requests left to be written. Call it once no request can add more.

        What cannot be written any more, because another broker is or may be the master, is found again as after a
        crash.
        """
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self.puts.fence.closed()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            await self.retry.finish()
            nursery.cancel_scope.cancel()

    def status(self) -> dict[str, object]:
        """Return what /status shows."""
        return {
            "delayed": self.delay.status(),
            "transactions": self.retry.status(),
            "slaves": [slave._asdict() for slave in self._progress.slaves()],
        }

    def _replication_health(self) -> tuple[bool, str]:
        figures = self._figures().master
        if figures is None or figures.in_sync >= figures.wanted:
            return True, ""
        return False, f"copies in sync: {figures.in_sync}, ha.in_sync_replicas: {figures.wanted}"

    def _figures(self) -> ReplicationFigures:
        config, slaves = self._common.config.ha, self._progress.slaves()
        lag = {
            "other" if slave.member is None else str(slave.member): (slave.lag_bytes, slave.lag_s)
            for slave in slaves
        }
        figures = MasterFigures(
            len(slaves),
            self._progress.copies_in_sync,
            config.in_sync_replicas,
            self.puts.transfer.position,
            lag,
        )
        return ReplicationFigures(self._tenures.current.role, self._epoch, figures, None)

    def _ha_status(self) -> HARuntimeInfo:
        slaves = self._progress.slaves()
        return HARuntimeInfo(
            True,
            self._common.storage.store.max_physical_offset,
            self._progress.copies_in_sync - 1,
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


def _nothing(_member: int, _is_fit: bool) -> None:
    """Without an election no other broker takes over."""
