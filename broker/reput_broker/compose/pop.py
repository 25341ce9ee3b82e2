"""POP consumption of one broker: its services, its request processors and its figures."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from functools import partial

import structlog
import trio

from reput_broker.compose.storage import Storage
from reput_broker.config.model import BrokerConfig
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.delay.record_reader import RecordReader
from reput_broker.groups.group_access import GroupAccess
from reput_broker.groups.group_state import GroupState
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.counters import Counters
from reput_broker.observe.delivery_metrics import PopSources
from reput_broker.pop.in_flight import InFlightMessages
from reput_broker.pop.positions import Place, PopPositions
from reput_broker.pop.revive_log import ReviveLog
from reput_broker.pop.revive_service import PopReviveService
from reput_broker.processors.ack import AckProcessor
from reput_broker.processors.assignment import AssignmentProcessor, TopicQueues
from reput_broker.processors.pop import PopProcessor
from reput_broker.processors.pop_looks import PopLookProcessor
from reput_broker.processors.pop_polling import PopPolling
from reput_broker.processors.pop_queues import PopQueues
from reput_broker.pull.filter_check import FilterCheck
from reput_broker.put.own_puts import OwnPuts
from reput_broker.put.put_path import PutPath
from reput_broker.remoting_client import RemotingClient
from reput_broker.request import Handler
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.topic_access import TopicAccess
from reput_protocol.errors import ReputError
from reput_protocol.names import revive_topic

log = structlog.get_logger(__name__)

_POLL_S = 1.0


class PopParts:
    """POP consumption, over an open storage of a master."""

    def __init__(
        self,
        config: BrokerConfig,
        storage: Storage,
        puts: PutPath,
        delay_hook: DelayHook,
        groups: GroupState,
        topic_access: TopicAccess,
        group_access: GroupAccess,
        routes: RouteInfoManager,
        filter_check: FilterCheck,
        counters: Counters,
    ) -> None:
        store, tables, clock_ms = storage.store, storage.tables, storage.clock_ms
        own_puts = OwnPuts(store, puts.lock, puts.fence, puts.wrote)
        topic = revive_topic(config.cluster)
        self._config = config
        self._clock_ms = clock_ms
        self._modes = tables.request_modes
        self._orders = storage.orders
        self._orders_saver = TableSaver(storage.orders)
        self._in_flight = InFlightMessages(clock_ms())
        self._positions = PopPositions(
            store,
            tables.offsets,
            groups.resets,
            on_commit=tables.offsets_soon.committed,
            on_reset=storage.orders.clear,
        )
        self._polling = PopPolling(storage.hold)
        storage.arrivals.follow(self._positions.dispatched)
        storage.arrivals.follow(self._polling.dispatched)
        groups.when_forgotten(self._forget)
        revive_log = ReviveLog(topic, store, delay_hook, tables, clock_ms)
        self._revive = PopReviveService(
            topic,
            store,
            storage.schedule.timers,
            RecordReader(store, storage.warm_from),
            own_puts,
            tables,
            self._in_flight,
            counters.retry,
            broker_name=config.broker_name,
            clock_ms=clock_ms,
        )
        storage.arrivals.watch(topic, self._revive.arrived)
        self._free_at = [(storage.orders.blocked_until(place), place) for place in storage.orders.blocked()]
        heapq.heapify(self._free_at)
        self._free_changed = trio.Event()
        queues = PopQueues(store, topic_access, group_access, self._positions)
        pop = PopProcessor(
            store,
            queues,
            self._positions,
            storage.orders,
            self._in_flight,
            revive_log,
            own_puts,
            self._polling,
            config.limits,
            counters,
            filter_check,
            is_enabled=lambda: config.delay.timer_wheel,
            broker_name=config.broker_name,
            clock_ms=clock_ms,
        )
        pop.on_blocked = self._blocked
        ack = AckProcessor(
            store,
            topic_access,
            group_access,
            self._positions,
            storage.orders,
            self._in_flight,
            revive_log,
            counters,
            on_block_changed=self._block_changed,
            ack=puts.default_ack,
            clock_ms=clock_ms,
        )
        self._assignment = AssignmentProcessor(
            TopicQueues(
                routes,
                config.name_servers,
                partial(RemotingClient, tls=config.tls, credentials=config.access.credentials()),
            ),
            tables.request_modes,
            tables.mode_saver,
            groups.membership,
        )
        looks = PopLookProcessor(
            store,
            queues,
            group_access,
            self._positions,
            storage.orders,
            self._polling,
            config.limits,
            clock_ms=clock_ms,
        )
        self._processors = (pop, ack, looks, self._assignment)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {code: handle for one in self._processors for code, handle in one.handlers().items()}

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (self._revive.run, self._free_ordered, self._save_orders, *self._assignment.tasks())

    def sources(self) -> PopSources:
        """Return what the metrics show."""
        return PopSources(self._in_flight.by_place, lambda: self._revive.behind_s)

    # -- ordered queues ------------------------------------------------------------------------------------

    def _blocked(self, place: Place, until_ms: int) -> None:
        heapq.heappush(self._free_at, (until_ms, place))
        if self._free_at[0] == (until_ms, place):
            self._free_changed.set()

    def _block_changed(self, place: Place) -> None:
        """Wake pops of a queue that is free now, or at another time."""
        until_ms = self._orders.blocked_until(place)
        if until_ms > self._clock_ms():
            self._blocked(place, until_ms)
        else:
            self._polling.wake_group(place.topic, place.group, place.queue_id)

    async def _free_ordered(self) -> None:
        """Wake pops of queues whose messages have become visible again (RocketMQ: ConsumerOrderInfoLockManager)."""
        while True:
            self._free_changed = trio.Event()
            now_ms = self._clock_ms()
            while self._free_at and self._free_at[0][0] <= now_ms:
                _, place = heapq.heappop(self._free_at)
                if not self._orders.is_blocked(place, None):
                    self._polling.wake_group(place.topic, place.group, place.queue_id)
            wait_s = _POLL_S
            if self._free_at:
                wait_s = min(_POLL_S, max(0.001, (self._free_at[0][0] - now_ms) / 1000))
            with trio.move_on_after(wait_s if self._free_at else float("inf")):
                await self._free_changed.wait()

    async def _save_orders(self) -> None:
        """Save the table of ordered queues as often as the offsets."""
        while True:
            await trio.sleep(self._config.offsets.flush_interval)
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
        for table in (self._positions, self._orders, self._in_flight, self._modes):
            table.forget(group=group, topic=topic)
