"""What a broker has in every role: what it keeps when its role changes, and the services and request processors that
are built over its open storage.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import trio

from reput_broker.access.control import Access, AccessControl
from reput_broker.access.processor import UsersProcessor
from reput_broker.compose.open_files import OpenFiles
from reput_broker.compose.storage import Storage
from reput_broker.config.model import BrokerConfig
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.groups.group_state import GroupAccess, GroupState
from reput_broker.ha.election.elector import Elector
from reput_broker.namesrv.processor import NameServerProcessor
from reput_broker.namesrv.registration import OwnBroker
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.health import Health, StoreHealth
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import GroupSources, MetricsSources
from reput_broker.observe.statistics import Statistics
from reput_broker.processors.client import ClientProcessor, GroupMembersProcessor, GroupOverviewProcessor, LockProcessor
from reput_broker.processors.offset import GroupOffsetsProcessor, OffsetProcessor
from reput_broker.processors.operations import Operations, PromotionProcessor
from reput_broker.processors.pull import PullProcessor
from reput_broker.processors.query import FetchProcessor, QueryProcessor
from reput_broker.processors.runtime_info import RuntimeInfoProcessor
from reput_broker.processors.settings import ColdQuotaProcessor, GroupSettingsProcessor, TopicProcessor
from reput_broker.processors.spans import Spans
from reput_broker.put.held_pulls import HELD_BYTES, FilterCheck
from reput_broker.put.put_lock import Fence
from reput_broker.put.put_path import PutPath
from reput_broker.remoting.request import Client, Handler
from reput_broker.server.connection import DEFERRED_REQUEST_BYTES
from reput_broker.server.gate import Gate
from reput_broker.server.handling import RequestHandling
from reput_broker.server.listener import Server
from reput_broker.tables.topic_access import TopicAccess
from reput_broker.tenure.core import Core, RoleDuties, Surroundings, TenureSource
from reput_broker.upkeep.clean_service import CleanFilesService


@dataclass(slots=True)
class BrokerBase:
    """What a broker has in every role."""

    config: BrokerConfig
    surroundings: Surroundings
    sources: MetricsSources
    tenures: TenureSource
    waits_for_room: bool
    """Whether a start waits while the disk is full, instead of raising."""
    operations: Operations
    history: History
    """The figures of the past days."""
    cold_quotas: ColdQuotas
    """How much groups may read from the disk."""
    access: Access = None
    """What checks the requests, in every role."""
    routes: RouteInfoManager = field(default_factory=lambda: RouteInfoManager(None, trio.current_time))
    """What other brokers have registered with this one."""
    stop_wanted: trio.Event = field(default_factory=trio.Event)
    open_files: OpenFiles = field(init=False)
    address: tuple[str, int] = ("", 0)
    """Where clients on this machine reach the broker."""
    listeners: dict[str, socket.socket] = field(default_factory=dict)
    """Bound sockets of the protocol, by name."""
    ha_listener: socket.socket | None = None
    """The bound socket on which slaves are served; None if none are."""
    gate: Gate = field(init=False)
    """What connections pass before their first request."""

    @property
    def elector(self) -> Elector | None:
        """What decides the role, if an engine elects."""
        return self.tenures if isinstance(self.tenures, Elector) else None

    @property
    def health(self) -> Health:
        """What /readyz shows."""
        return self.sources.health


_LOOK_S = 1.0


class HasHandlers(Protocol):
    """What serves requests."""

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""


class HasTasks(Protocol):
    """What runs in the background."""

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the broker does."""


class RoleParts(RoleDuties):
    """What serves requests in one role. `RunningTenure` starts its tasks and calls the rest in the order of this class.

    A role overrides what it needs.
    """

    async def before_serving(self) -> None:
        """Read what requests need, before the listeners open."""

    @property
    def begun(self) -> str | None:
        """What an earlier run began and `complete` completes, in words; None if there is nothing.

        Until then requests that change something are refused.
        """
        return None

    async def complete(self) -> None:
        """Complete what an earlier run began, with the listeners open."""

    def release(self) -> None:
        """Answer requests that wait, because the tenure ends."""

    async def finish(self) -> None:
        """Write what requests left to be written, once none can add more; not before another tenure."""


def handlers_of(parts: Iterable[HasHandlers]) -> dict[int, Handler]:
    """Return the handlers of all parts, by request code."""
    return {code: handle for part in parts for code, handle in part.handlers().items()}


def build_core(base: BrokerBase, storage: Storage, store_health: StoreHealth, fence: Fence) -> Core:
    """Build what the features share, over an open storage.

    Args:
        fence: of this tenure.
    """
    config, sources = base.config, base.sources
    store, tables, counters = storage.store, storage.tables, sources.counters
    groups = GroupState(
        config.groups,
        counters,
        store,
        tables,
        on_commit=tables.offsets_soon.committed,
        on_filters=storage.hold.release_group,
        broker_name=config.broker_name,
        clock_ms=storage.clock_ms,
    )
    sources.store = store
    sources.topics, sources.offsets = tables.topics, tables.offsets
    sources.groups = GroupSources(
        tables.groups,
        groups.online,
        groups.membership.producers,
        groups.progress,
        groups.lag.figures,
        lambda: None if groups.health.is_slave else groups.health.states,
    )
    sources.registered_brokers = lambda: base.routes.registered
    sources.held_pulls_bytes = lambda: storage.hold.held_bytes
    return Core(
        config=config,
        surroundings=base.surroundings,
        clock_ms=storage.clock_ms,
        counters=counters,
        sources=sources,
        store_health=store_health,
        tenures=base.tenures,
        access=base.access,
        cold_quotas=base.cold_quotas,
        store=store,
        tables=tables,
        warm_from=storage.warm_from,
        hold=storage.hold,
        arrivals=storage.arrivals,
        puts=PutPath(config, store, storage.hold, counters, store_health.turn_read_only, fence),
        groups=groups,
        topic_access=TopicAccess(tables.topics, tables.topic_saver, counters),
        group_access=GroupAccess(tables, groups.online),
        filter_check=FilterCheck(config.filters),
        statistics=Statistics(counters, store.stats, storage.clock_ms),
    )


class CommonParts:
    """What a broker has in every role: the services of the log, the consumer groups, and what reads.

    Args:
        role: may be incomplete while this is built.
        routes: what other brokers have registered with this one; they stay when the role changes.
    """

    def __init__(self, core: Core, role: RoleDuties, routes: RouteInfoManager) -> None:
        self._core = core
        self._routes = routes
        core.groups.health.is_slave = role.is_slave
        exporter = core.sources.spans
        self._spans = None if exporter is None else Spans(exporter, core.config.tracing)
        self.own = routes.own = OwnBroker(core.config, core.tables, lambda: core.tenures.current)
        self._clean = CleanFilesService(core, role)
        self._names = NameServerProcessor(
            routes, core.tables.kv_config, core.tables.kv_saver, advertise=core.config.advertise
        )
        access = core.access
        self.processors: tuple[HasHandlers, ...] = (
            PullProcessor(core, role, self._spans),
            ColdQuotaProcessor(core),
            FetchProcessor(core),
            QueryProcessor(core),
            OffsetProcessor(core),
            ClientProcessor(core),
            LockProcessor(core),
            GroupSettingsProcessor(core),
            GroupMembersProcessor(core),
            GroupOffsetsProcessor(core),
            GroupOverviewProcessor(core),
            *((UsersProcessor(access, core.config.cluster),) if isinstance(access, AccessControl) else ()),
            self._names,
            PromotionProcessor(core),
            TopicProcessor(core),
            RuntimeInfoProcessor(core, role, self._clean, _queue_capacities(core.config)),
            core.filter_check,
        )

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the role does."""
        core = self._core
        parts: tuple[HasTasks, ...] = (core.puts, core.tables, core.groups, self._names)
        return (*(task for part in parts for task in part.tasks()), core.hold.run, self._clean.run, core.statistics.run)

    async def show_replication(self, state: Callable[[], tuple[bool, str]]) -> None:
        """Show in /readyz?verbose whether replication works, and why not, until cancelled. It gates nothing."""
        while True:
            self._core.sources.health.set("replication", *state())
            await trio.sleep(_LOOK_S)

    def server(self, handlers: Mapping[int, Handler], base: BrokerBase) -> Server:
        """Return a server for the requests of `handlers`."""
        core = self._core
        puts = core.puts
        handling = RequestHandling(
            handlers if self._spans is None else self._spans.traced(handlers),
            append=puts.appender.append,
            after_puts=puts.dispatch_put_by,
            before_read=puts.reput.dispatch_acknowledged,
            limits=core.config.limits,
            access=core.access,
        )
        return Server(
            core.config,
            handling,
            core.counters,
            connections_max=base.open_files.connections,
            on_gone=self._client_gone,
            gate=base.gate,
        )

    def _client_gone(self, client: Client) -> None:
        self._routes.client_gone(client)
        self._core.hold.drop_client(client)
        self._core.groups.client_gone(client)


def _queue_capacities(config: BrokerConfig) -> dict[str, int]:
    """Return how many requests may wait, for which there is memory; RocketMQ limits the queues of its thread pools."""
    requests = config.limits.buffer_total // DEFERRED_REQUEST_BYTES
    pulls = config.long_polling.memory_max // HELD_BYTES
    capacities = dict.fromkeys(("send", "query", "ack", "EndTransaction"), requests)
    capacities |= dict.fromkeys(("pull", "litePull"), pulls)
    return {f"{pool}ThreadPoolQueueCapacity": capacity for pool, capacity in capacities.items()}
