"""A broker that copies its master: what a slave has and a master has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.opening import Access
from reput_broker.compose.parts import CommonParts, handlers_of
from reput_broker.compose.storage import Storage
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.ha.client import HAClient
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.master_proof import MasterClient, proving
from reput_broker.ha.progress import MasterLog
from reput_broker.ha.roles import Master, Role, TenureSource
from reput_broker.ha.synchronize import SlaveSynchronize
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.replication_metrics import ReplicationFigures, SlaveFigures
from reput_broker.processors.ha_status import HAStatusProcessor
from reput_broker.processors.replica import ReplicaProcessor
from reput_broker.processors.slave_refusals import SlaveRefusals
from reput_broker.put.fence import Fence
from reput_broker.server.gate import Gate
from reput_broker.surroundings import Surroundings
from reput_protocol.commands.ha import HAClientRuntimeInfo, HARuntimeInfo


class SlaveParts:
    """What serves requests as a slave, and the tasks behind it. Start `tasks` before `server`.

    It delivers no delayed messages, checks no transactions and publishes no batches: its master does, and their effects
    arrive in the log.

    Args:
        storage: opened for a slave.
        tenures: its current tenure names the master.
        routes: what other brokers have registered.
        on_reopen: see `HAClient`.
        connections_max: the open files that are left for connections.
    """

    begun: Final[str | None] = None
    """A slave completes nothing that an earlier run began."""

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
        on_reopen: Callable[[int | None, str], Awaitable[None]],
        connections_max: int,
    ) -> None:
        self._tenures = tenures
        if sources.config.election.is_on or isinstance(tenures, Elector):
            storage.store.confirm_offset = 0  # until the master says more
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
            before_delete=_nothing_to_save,
            needed_from=lambda: None,
            # What the master keeps, messages that wait for their time among it, a new master needs.
            waiting_from=lambda: self.tables.master_min_offset,
            more_figures=dict,
            follows=lambda: self.copying.is_connected,
            fence=Fence(),
            ids_to_pull_from=lambda: [tenures.current.broker_id],
        )
        self.groups, self.puts = common.groups, common.puts
        self.overview = common.overview
        self.own = common.own
        self.master_log = MasterLog(lambda: storage.store.max_physical_offset)
        self.tables = SlaveSynchronize(
            storage.store,
            storage.tables,
            self.master_log,
            self._accepted,
            self._forget_topic,
            partial(MasterClient, config=sources.config),
        )
        refusals = SlaveRefusals(
            sources.config.ha,
            self._master_address,
            routes.members.who_may_lead,
            has_offsets=lambda: self.tables.has_offsets,
            is_confirmed=lambda: storage.store.is_confirmed,
        )
        config = sources.config
        replica = ReplicaProcessor(
            config, storage.store, storage.epochs, routes.members, epoch=0, ha_port=None
        )
        self.copying = HAClient(
            storage.store,
            storage.epochs,
            config,
            common.puts.lock,
            self.master_log,
            on_appended=common.puts.wrote,
            on_confirmed=common.puts.reput.wake,
            tenures=tenures,
            member=config.broker_id,
            members=routes.members,
            on_reopen=on_reopen,
        )
        common.puts.on_flushed = self.copying.flushed
        common.own.lost_master = lambda: self.copying.lost_master
        if isinstance(tenures, Elector):
            tenures.before_taking_over(self.tables.complete)
        status = HAStatusProcessor(self._ha_status, storage.store.set_master_flushed_offset)
        handlers = refusals.handlers(handlers_of((*common.processors(), replica, status)))
        if isinstance(access, AccessControl):
            handlers = proving(handlers, (config.cluster, config.broker_name))
        self.server = common.server(handlers, connections_max)
        sources.replication = self._figures

    def _accepted(self) -> Master | None:
        """Return the master once its history is that of this log: the tables of another would not fit."""
        return self._tenures.current.master if self.copying.is_connected else None

    def _forget_topic(self, topic: str) -> None:
        common = self._common
        common.counters.forget_topic(topic)
        common.groups.forget_topic(topic)
        common.storage.hold.release_topic(topic)

    def _master_address(self) -> str | None:
        master = self._tenures.current.master
        return None if master is None else master.address

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker is a slave."""
        return (
            *self._common.tasks(),
            self.copying.run,
            self.tables.run,
            partial(self._common.show_replication, lambda: (self.copying.is_connected, self.copying.state)),
        )

    async def before_serving(self) -> None:
        """Nothing has to be read."""

    async def complete(self) -> None:
        """Nothing has to be completed."""

    async def finish(self) -> None:
        """Nothing is left to be written."""

    def status(self) -> dict[str, object]:
        """Return what /status shows."""
        return {
            "master": self._master_address(),
            "replication": self.copying.state,
            "behind_b": self.master_log.lag_bytes,
            "behind_s": round(self.master_log.lag_s, 3),
            "tables_age_s": round(self.tables.age_s, 3),
        }

    def _figures(self) -> ReplicationFigures:
        figures = SlaveFigures(
            self._tenures.current.master is not None,
            self.copying.is_connected,
            self.master_log.lag_bytes,
            self.master_log.lag_s,
            self.tables.age_s,
        )
        return ReplicationFigures(Role.SLAVE, self._common.storage.epochs.last, None, figures)

    def _ha_status(self) -> HARuntimeInfo:
        copying, storage = self.copying, self._common.storage
        received_ms = 0
        if copying.received_at is not None:
            received_ms = storage.clock_ms() - round((trio.current_time() - copying.received_at) * 1000)
        client = HAClientRuntimeInfo(
            self._master_address() or "",
            0,
            storage.store.max_physical_offset,
            received_ms,
            received_ms,
            self.master_log.end,
            copying.is_connected,
        )
        return HARuntimeInfo(client=client)


async def _nothing_to_save() -> None:
    """A slave keeps nothing that only its log holds."""
