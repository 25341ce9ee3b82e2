"""POP consumption of one broker: its services, its request processors and its figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio

from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.metrics import PopSources
from reput_broker.pop.ack import AckProcessor
from reput_broker.pop.assignment import AssignmentProcessor, TopicQueues
from reput_broker.pop.order_info import FreeQueues, OrderInfos
from reput_broker.pop.peek import PeekProcessor
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PopPositions
from reput_broker.pop.processor import PopProcessor
from reput_broker.pop.queues import PopQueues
from reput_broker.pop.revive_log import ReviveLog
from reput_broker.pop.revive_service import PopReviveService
from reput_broker.pop.state import InFlightMessages, PopState
from reput_broker.remoting.client import RemotingClient
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tenure import Core
from reput_protocol.errors import ReputError
from reput_protocol.names import revive_topic

log = structlog.get_logger(__name__)


class PopFeature:
    """POP consumption of a master.

    Args:
        orders: of groups that pop in order, as read at the start.
        routes: what other brokers have registered with this one.
    """

    def __init__(
        self,
        core: Core,
        delays: DelayState,
        orders: OrderInfos,
        delay_redirects: DelayRedirects,
        routes: RouteInfoManager,
    ) -> None:
        config, store = core.config, core.store
        topic = revive_topic(config.cluster)
        self._core = core
        self._orders_saver = TableSaver(orders)
        positions = PopPositions(
            store,
            core.tables.offsets,
            core.groups.resets,
            on_commit=core.tables.offsets_soon.committed,
            on_reset=orders.clear,
        )
        polling = PopPolling(core.hold)
        self._state = state = PopState(
            queues=PopQueues(core, positions),
            positions=positions,
            orders=orders,
            in_flight=InFlightMessages(core.clock_ms()),
            revive_log=ReviveLog(core, delay_redirects),
            polling=polling,
            free_queues=FreeQueues(orders, polling, core.clock_ms),
        )
        core.arrivals.follow(positions.dispatched)
        core.arrivals.follow(polling.dispatched)
        core.groups.when_forgotten(self._forget)
        reader = RecordReader(store, core.warm_from)
        self._revive = PopReviveService(core, topic, delays.timers, reader, state.in_flight)
        core.arrivals.watch(topic, self._revive.arrived)
        self._assignment = AssignmentProcessor(
            TopicQueues(
                routes,
                config.name_servers,
                partial(RemotingClient, tls=config.tls, credentials=config.access.credentials()),
            ),
            core.tables.request_modes,
            core.tables.mode_saver,
            core.groups.membership,
        )
        self.processors = (
            PopProcessor(core, state),
            AckProcessor(core, state),
            PeekProcessor(core, state),
            self._assignment,
        )
        core.sources.pop = PopSources(state.in_flight.by_place, self._revive.take_behind_s)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (
            self._revive.run,
            self._state.free_queues.run,
            self._save_orders,
            *self._assignment.tasks(),
        )

    async def _save_orders(self) -> None:
        """Save the table of ordered queues as often as the offsets."""
        while True:
            await trio.sleep(self._core.config.offsets.flush_interval)
            try:
                await self._orders_saver.save()
            except (ReputError, OSError) as error:
                log.warning(
                    "table_not_saved",
                    table="consumerOrderInfo",
                    detail=str(error),
                    hint="check the disk; the save is retried",
                )

    # -- forgetting ----------------------------------------------------------------------------------------

    def _forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        state = self._state
        for table in (state.positions, state.orders, state.in_flight, self._core.tables.request_modes):
            table.forget(group=group, topic=topic)
