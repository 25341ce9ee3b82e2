"""A broker that copies its master: what a slave has and a master has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio
from typing_extensions import override

from reput_broker.access.control import AccessControl
from reput_broker.compose.base import BrokerBase
from reput_broker.compose.parts import CommonParts, RoleParts, build_core, handlers_of
from reput_broker.compose.storage import Storage
from reput_broker.ha.client import HAClient
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.master_proof import MasterClient, proving
from reput_broker.ha.replica_state import HAStatusProcessor, ReplicaStateProcessor
from reput_broker.ha.role_refusals import SlaveRefusals
from reput_broker.ha.service import MasterLog
from reput_broker.ha.slave_synchronize import SlaveSynchronize
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import ReplicationFigures, SlaveFigures
from reput_broker.put.fence import Fence
from reput_broker.tenure.roles import Master, Role
from reput_protocol.commands.ha import HAClientRuntimeInfo, HARuntimeInfo


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
