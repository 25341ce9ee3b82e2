"""The services and request processors that a broker has in every role, built over its open storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import trio

from reput_broker.access.control import AccessControl
from reput_broker.access.opening import Access
from reput_broker.compose.storage import Storage
from reput_broker.config.model import BrokerConfig
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.groups.group_access import GroupAccess
from reput_broker.groups.group_state import GroupState
from reput_broker.groups.offset_updates import OffsetSetting
from reput_broker.ha.election.elector import Elector
from reput_broker.namesrv.own_broker import OwnBroker
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.delivery_metrics import GroupSources
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.statistics import Statistics
from reput_broker.processors.admin import AdminProcessor
from reput_broker.processors.client import ClientProcessor
from reput_broker.processors.cold_quotas import ColdQuotaProcessor
from reput_broker.processors.fetch import FetchProcessor
from reput_broker.processors.group_members import GroupMembersProcessor
from reput_broker.processors.group_offsets import GroupOffsetsProcessor
from reput_broker.processors.group_overview import GroupOverviewProcessor
from reput_broker.processors.group_settings import GroupSettingsProcessor
from reput_broker.processors.lock import LockProcessor
from reput_broker.processors.namesrv import NameServerProcessor
from reput_broker.processors.offset import OffsetProcessor
from reput_broker.processors.promotion import PromotionProcessor
from reput_broker.processors.pull import PullProcessor
from reput_broker.processors.query import QueryProcessor
from reput_broker.processors.spans import Spans
from reput_broker.processors.topic import TopicProcessor
from reput_broker.processors.users import UsersProcessor
from reput_broker.pull.filter_check import FilterCheck
from reput_broker.pull.long_polling import HELD_BYTES
from reput_broker.put.fence import Fence
from reput_broker.put.put_path import PutPath
from reput_broker.request import Client, Handler
from reput_broker.roles import TenureSource
from reput_broker.server.connection import DEFERRED_REQUEST_BYTES
from reput_broker.server.dispatch import RequestDispatcher
from reput_broker.server.gate import Gate
from reput_broker.server.listener import Server
from reput_broker.surroundings import Surroundings
from reput_broker.tables.topic_access import TopicAccess
from reput_broker.upkeep.clean_service import CleanFilesService
from reput_protocol.commands.group import SubscriptionGroupConfig

_LOOK_S = 1.0


class Part(Protocol):
    """A part of the broker with background tasks."""

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""


class Processor(Protocol):
    """Handles the requests of one command family."""

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""


def handlers_of(processors: Iterable[Processor]) -> dict[int, Handler]:
    """Return the handlers of all processors, by request code."""
    return {code: handle for processor in processors for code, handle in processor.handlers().items()}


class CommonParts:
    """What a broker has in every role: the services of the log, the consumer groups, and what reads.

    Args:
        storage: open.
        sources: the figures of the parts are added to them.
        tenures: the current one is what routes show of this broker.
        routes: what other brokers have registered; they stay when the role changes.
        gate: what connections pass before their first request.
        access: checks the requests.
        cold_quotas: how much groups may read from the disk.
        before_delete: awaited before files of the log are deleted; an error keeps them.
        needed_from: returns a log offset from which on files are kept in any case; None: none; called in a thread.
        waiting_from: returns a log offset from which on messages are still needed; called in a thread.
        more_figures: returns runtime figures of parts that only one role has.
        follows: of a slave: whether its master runs; None of a master.
        fence: of this tenure.
        ids_to_pull_from: returns the announced ids of the slaves that can be suggested to consumers; none if they are
            not known.
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
        before_delete: Callable[[], Awaitable[None]],
        needed_from: Callable[[], int | None],
        waiting_from: Callable[[], int],
        more_figures: Callable[[], dict[str, object]],
        fence: Fence,
        ids_to_pull_from: Callable[[], Sequence[int]],
        follows: Callable[[], bool] | None = None,
    ) -> None:
        config, counters = sources.config, sources.counters
        store, tables = storage.store, storage.tables
        self.config, self.counters, self.storage = config, counters, storage
        self._access = access
        self._cold_quotas = cold_quotas
        self._health = sources.health
        self._more_figures = lambda: {
            "brokerRole": tenures.current.role,
            "brokerId": tenures.current.broker_id,
            **_queue_capacities(config),
            **more_figures(),
        }
        self._spans = None if sources.spans is None else Spans(sources.spans, config.tracing)
        self._follows = follows
        self._gate = gate
        self._ids_to_pull_from = ids_to_pull_from
        self.puts = PutPath(config, store, storage.hold, counters, store_health.turn_read_only, fence)
        self.groups = GroupState(
            config.groups,
            counters,
            store,
            tables,
            on_commit=tables.offsets_soon.committed,
            on_filters=storage.hold.release_group,
            clock_ms=storage.clock_ms,
        )
        self.topic_access = TopicAccess(tables.topics, tables.topic_saver, counters)
        self.group_access = GroupAccess(tables.groups, self.groups.online, tables.groups_soon.changed)
        self.filter_check = FilterCheck(config.filters)
        self.overview = GroupOverviewProcessor(store, tables, self.groups, clock_ms=storage.clock_ms)
        self.statistics = Statistics(counters, store.stats, storage.clock_ms)
        self._clean = CleanFilesService(
            store,
            config.store,
            surroundings,
            counters,
            sources.disk,
            on_disk=store_health.note_disk,
            before_delete=before_delete,
            needed_from=needed_from,
            waiting_from=waiting_from,
        )
        self.own = OwnBroker(config, tables, lambda: tenures.current)
        self.routes = routes
        routes.own = self.own
        self._names = NameServerProcessor(
            self.routes,
            tables.kv_config,
            tables.kv_saver,
            advertise=config.advertise,
        )
        self._promotion = PromotionProcessor(
            tenures if isinstance(tenures, Elector) else None, lambda: store.max_physical_offset
        )
        self._add_figures(sources)

    def _add_figures(self, sources: MetricsSources) -> None:
        storage, groups = self.storage, self.groups
        sources.store = storage.store
        sources.topics, sources.offsets = storage.tables.topics, storage.tables.offsets
        sources.groups = GroupSources(
            storage.tables.groups,
            groups.online,
            groups.membership.producers,
            groups.progress,
            groups.lag.figures,
        )
        sources.registered_brokers = lambda: self.routes.registered
        sources.held_pulls_bytes = lambda: storage.hold.held_bytes

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the role does."""
        parts: tuple[Part, ...] = (self.puts, self.storage.tables, self.groups, self._names)
        return (
            *(task for part in parts for task in part.tasks()),
            self.storage.hold.run,
            self._clean.run,
            self.statistics.run,
        )

    async def show_replication(self, state: Callable[[], tuple[bool, str]]) -> None:
        """Show in /readyz?verbose whether replication works, and why not, until cancelled. It gates nothing."""
        while True:
            self._health.set("replication", *state())
            await trio.sleep(_LOOK_S)

    def server(self, handlers: Mapping[int, Handler], connections_max: int) -> Server:
        """Return a server for the requests of `handlers`; at most `connections_max` open files are left for it."""
        dispatcher = RequestDispatcher(
            handlers if self._spans is None else self._spans.traced(handlers),
            self.puts.appender.append,
            self.puts.put_by,
            lambda can_wait: self.puts.reput.dispatch_acknowledged(can_wait=can_wait),
            self.config.limits,
            self._access,
        )
        return Server(
            self.config,
            dispatcher,
            self.counters,
            connections_max=connections_max,
            on_gone=self._client_gone,
            gate=self._gate,
        )

    def _client_gone(self, client: Client) -> None:
        self.routes.client_gone(client)
        self.storage.hold.drop_client(client)
        self.groups.client_gone(client)

    def processors(self) -> tuple[Processor, ...]:
        """Return the processors of what any broker answers, and of settings and offsets."""
        return (
            *self._message_processors(),
            *self._group_processors(),
            *self._broker_processors(),
            self.filter_check,
        )

    def _message_processors(self) -> tuple[Processor, ...]:
        config, counters, storage = self.config, self.counters, self.storage
        store, access = storage.store, self.topic_access
        return (
            PullProcessor(
                store,
                access,
                self.group_access,
                self.groups,
                storage.hold,
                config.limits,
                counters,
                self.filter_check,
                config.ha,
                self._follows,
                self._ids_to_pull_from,
                self._spans,
                self._cold_quotas,
                clock_ms=storage.clock_ms,
            ),
            ColdQuotaProcessor(self._cold_quotas, self.group_access),
            FetchProcessor(store, storage.tables.topics, access, broker_name=config.broker_name),
            QueryProcessor(store, self.groups.online),
        )

    def _group_processors(self) -> tuple[Processor, ...]:
        config, storage, groups, access = self.config, self.storage, self.groups, self.group_access
        store, tables, clock_ms = storage.store, storage.tables, storage.clock_ms
        setting = OffsetSetting(
            tables.offsets,
            groups.resets,
            groups.progress,
            groups.online,
            config.groups,
            storage.hold.release_group,
        )
        return (
            OffsetProcessor(store, self.topic_access, access, tables.offsets, groups.commits),
            ClientProcessor(
                groups.membership,
                access,
                _keep_topics if store.options.is_replica else tables.make_retry_topic,
                storage.hold.leave,
            ),
            LockProcessor(groups.locks, groups.membership.clients, access, tables.topics),
            GroupSettingsProcessor(
                tables.groups, tables.group_saver, access, tables.offsets, storage.hold, groups.forget_group
            ),
            GroupMembersProcessor(
                groups.membership,
                tables.groups,
                tables.topics,
                tables.offsets,
                store,
                broker_name=config.broker_name,
                clock_ms=clock_ms,
            ),
            GroupOffsetsProcessor(
                store,
                tables,
                groups,
                self.topic_access,
                access,
                setting,
                broker_name=config.broker_name,
                clock_ms=clock_ms,
                get_tps=self.statistics.group_get_tps,
            ),
            self.overview,
        )

    def _broker_processors(self) -> tuple[Processor, ...]:
        config, storage, store = self.config, self.storage, self.storage.store
        users = (
            (UsersProcessor(self._access, config.cluster),) if isinstance(self._access, AccessControl) else ()
        )
        return (
            *users,
            self._names,
            self._promotion,
            TopicProcessor(
                store,
                storage.tables,
                self.topic_access,
                storage.hold,
                self.counters,
                broker_name=config.broker_name,
                forget=self.groups.forget_topic,
                put_tps=self.statistics.topic_put_tps,
            ),
            AdminProcessor(
                store,
                self._health,
                self.counters,
                self.statistics,
                clean=self._clean.clean_now,
                delete_files=self._clean.delete_now,
                put_lock_ms=lambda: round(1000 * self.puts.lock.held_s),
                more_figures=self._more_figures,
            ),
        )


def _queue_capacities(config: BrokerConfig) -> dict[str, int]:
    """Return how many requests may wait, for which there is memory; RocketMQ limits the queues of its thread pools."""
    requests = config.limits.buffer_total // DEFERRED_REQUEST_BYTES
    pulls = config.long_polling.memory_max // HELD_BYTES
    capacities = dict.fromkeys(("send", "query", "ack", "EndTransaction"), requests)
    capacities |= dict.fromkeys(("pull", "litePull"), pulls)
    return {f"{pool}ThreadPoolQueueCapacity": capacity for pool, capacity in capacities.items()}


def _keep_topics(_group: SubscriptionGroupConfig) -> None:
    """Make no topic: a slave's are its master's."""
