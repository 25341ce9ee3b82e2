"""A broker that copies its master: what a slave has and a master has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from reput_broker.compose.parts import CommonParts, handlers_of
from reput_broker.compose.storage import Storage
from reput_broker.ha.client import HAClient, Reopen
from reput_broker.ha.roles import TenureSource
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.processors.replica import ReplicaProcessor
from reput_broker.processors.slave_refusals import SlaveRefusals
from reput_broker.surroundings import Surroundings


class SlaveParts:
    """What serves requests as a slave, and the tasks behind it. Start `tasks` before `server`.

    It delivers no delayed messages, checks no transactions and publishes no batches: its master does, and their effects
    arrive in the log.

    Args:
        storage: opened for a slave.
        tenures: its current tenure names the master.
        on_reopen: called if the store must be opened again before the master's log can be copied.
        connections_max: the open files that are left for connections.
    """

    def __init__(
        self,
        storage: Storage,
        sources: MetricsSources,
        store_health: StoreHealth,
        surroundings: Surroundings,
        tenures: TenureSource,
        *,
        on_reopen: Callable[[Reopen], None],
        connections_max: int,
    ) -> None:
        self._tenures = tenures
        self._common = common = CommonParts(
            storage,
            sources,
            store_health,
            surroundings,
            tenures,
            before_delete=_nothing_to_save,
            waiting_from=lambda: storage.store.max_physical_offset,
            more_figures=dict,
        )
        self.groups, self.puts = common.groups, common.puts
        refusals = SlaveRefusals(sources.config.ha, self._master_address)
        config = sources.config
        replica = ReplicaProcessor(config, storage.store, storage.epochs, epoch=0, ha_port=None)
        self.copying = HAClient(
            storage.store,
            storage.epochs,
            config,
            common.puts.lock,
            on_appended=common.puts.wrote,
            tenures=tenures,
            member=config.broker_id,
            on_reopen=on_reopen,
        )
        common.puts.on_flushed = self.copying.flushed
        handlers = refusals.handlers(handlers_of((*common.processors(), replica)))
        self.server = common.server(handlers, connections_max)

    def _master_address(self) -> str | None:
        master = self._tenures.current.master
        return None if master is None else master.address

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker is a slave."""
        return (*self._common.tasks(), self.copying.run)

    async def before_serving(self) -> None:
        """Nothing has to be completed."""

    async def finish(self) -> None:
        """Nothing is left to be written."""

    def status(self) -> dict[str, object]:
        """Return what /status shows."""
        copying = self.copying
        return {
            "master": self._master_address(),
            "replication": copying.state,
            "behind_b": copying.lag_bytes,
        }


async def _nothing_to_save() -> None:
    """A slave keeps nothing that only its log holds."""
