"""Where the numbers of the metrics come from, and what several metrics of one scrape share.

Nothing here runs between scrapes. Series of topics, groups and queues are counted against `metrics.max_series`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import (
    ACK_RESULTS,
    CHECK_RESULTS,
    DELIVER_SECONDS,
    MESSAGE_BYTES,
    PULL_WAIT_CODE,
    REBALANCE_REASONS,
    TRANSACTION_RESULTS,
    UNKNOWN_CODE,
    Counters,
    DelayStats,
    GroupTraffic,
    Histogram,
    ProxyCounters,
    ScheduleStats,
    TopicTraffic,
    topic_kind,
)
from reput_broker.observe.figures import DiskFigures
from reput_broker.observe.health import Health
from reput_broker.observe.span_exporter import SpanExporter
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

if TYPE_CHECKING:
    from reput_broker.groups.consumer_groups import ConsumerGroups
    from reput_broker.groups.lag import GroupProgress, LagFigures
    from reput_broker.groups.membership import ProducerGroups
    from reput_broker.remoting.tls import ServerTls
    from reput_broker.store.message_store import MessageStore
    from reput_broker.tables.offsets import ConsumerOffsetManager
    from reput_broker.tables.subscription_groups import SubscriptionGroupManager
    from reput_broker.tables.topics import TopicConfigManager

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = int | float | Histogram
Rows: TypeAlias = Iterator[tuple[Labels, Value]]
GroupTopics: TypeAlias = Sequence[tuple[str, str, Mapping[int, int]]]
"""Group, topic, and committed offset by queue."""
_T = TypeVar("_T")


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class GroupSources:
    """Where the numbers of groups come from."""

    settings: SubscriptionGroupManager
    online: ConsumerGroups
    producers: ProducerGroups
    progress: GroupProgress
    lag: LagFigures
    states: Callable[[], Mapping[str, str] | None]
    """Returns the states of groups when they were decided last; None at a slave, which decides none."""


@dataclass(slots=True)
class DelaySources:
    """Where the numbers of delayed messages come from."""

    stats: DelayStats
    due_s: Callable[[], float]
    """Returns how late the most overdue message is, in seconds."""
    timers_behind: Callable[[], int]
    """Returns how many messages with a deliver time are not in the timer wheel yet."""


@dataclass(slots=True)
class ScheduleSources:
    """Where the numbers of schedules come from."""

    stats: ScheduleStats
    states: Callable[[], Iterable[tuple[str, str]]]
    """Returns the name and the state of each schedule."""
    late_s: Callable[[], float]
    """Returns how late the most overdue message is, in seconds."""


@dataclass(slots=True)
class PopSources:
    """Where the numbers of popped messages come from."""

    in_flight: Callable[[], Iterator[tuple[Labels, int]]]
    """Yields by group and topic how many messages are popped and neither acknowledged nor redelivered."""
    due_s: Callable[[], float]
    """Returns how long the most overdue check point has been due, in seconds."""


class MasterFigures(NamedTuple):
    """What a master knows of its slaves."""

    connected: int
    in_sync: int
    """Copies that are in sync, the master's own included."""
    wanted: int
    """`ha.in_sync_replicas`."""
    replicated_offset: int
    lag: Mapping[str, tuple[int, float]]
    """Bytes and seconds by slave: its number, or `other` for the furthest behind of RocketMQ's."""


class SlaveFigures(NamedTuple):
    """What a slave knows of itself."""

    has_master: bool
    """Whether it knows which broker is the master."""
    is_connected: bool
    lag_bytes: int
    lag_s: float
    tables_age_s: float
    """Time since its tables were last compared with the master's."""


class ReplicationFigures(NamedTuple):
    """What the metrics show; one of the last two is None."""

    role: str
    epoch: int
    master: MasterFigures | None
    slave: SlaveFigures | None


@dataclass(slots=True)
class MetricsSources:
    """Where the numbers come from. The store, the tables and the services are set while a role is served."""

    config: BrokerConfig
    counters: Counters
    health: Health
    clock_ms: Callable[[], int] = _clock_ms
    """The clock of store times."""
    disk: DiskFigures = field(default_factory=DiskFigures)
    topics: TopicConfigManager | None = None
    offsets: ConsumerOffsetManager | None = None
    store: MessageStore | None = None
    groups: GroupSources | None = None
    open_transactions: Callable[[], Mapping[str, int]] | None = None
    """Returns how many transactions are open, by topic."""
    delays: DelaySources | None = None
    schedules: ScheduleSources | None = None
    pop: PopSources | None = None
    replication: Callable[[], ReplicationFigures] | None = None
    spans: SpanExporter | None = None
    """Takes spans, if the configuration names a receiver for them."""
    tls: ServerTls | None = None
    """The certificates, if the configuration names some."""
    proxy: ProxyCounters | None = None
    """Those of the proxy, if the configuration has one."""
    held_pulls_bytes: Callable[[], int] = lambda: 0
    registered_brokers: Callable[[], int] = lambda: 0
    recovery_duration_s: float = 0.0
    recovery_truncated_bytes: int = 0
    config_reload_ok: bool = True
    config_reload_time_s: float = field(default_factory=time.time)

    def forget_tenure(self) -> None:
        """Forget what is being closed."""
        self.topics = self.offsets = self.store = self.groups = None
        self.open_transactions = self.delays = self.schedules = self.pop = self.replication = None
        self.held_pulls_bytes = lambda: 0


class Budget:
    """How many more series of topics, groups and queues a page may have."""

    def __init__(self, series_max: int) -> None:
        self.left = series_max
        self.dropped = 0

    def fit(self, items: Sequence[_T], series: int) -> Sequence[_T]:
        """Return the first items that fit, with `series` series each; the series of the others count as dropped."""
        fitting = min(len(items), self.left // series)
        self.left -= fitting * series
        self.dropped += (len(items) - fitting) * series
        return items[:fitting]


class BoundsByQueue(dict[tuple[str, int], tuple[int, int]]):
    """First and next offset by topic and queue, each looked up once in a scrape; a closed store has (0, 0)."""

    def __init__(self, store: Callable[[], MessageStore | None]) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, queue: tuple[str, int]) -> tuple[int, int]:
        store = self._store()
        bounds = (0, 0)
        if store is not None:
            bounds = store.min_offset_in_queue(*queue), store.max_offset_in_queue(*queue)
        self[queue] = bounds
        return bounds


class Scrape:
    """One scrape. What several metrics show is computed once; what is asked for first has the budget first.

    Args:
        common: the value of each label that all metrics with it share.
    """

    def __init__(self, sources: MetricsSources, common: Mapping[str, str] | None = None) -> None:
        self.sources = sources
        self.common = common or {}
        self.counters = sources.counters
        self.budget = Budget(sources.config.metrics.max_series)
        self.bounds = BoundsByQueue(lambda: sources.store)
        self._computed: dict[object, Any] = {}

    def once(self, compute: Callable[[Scrape], _T]) -> _T:
        """Return what a function returned when it was first asked for."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        found: _T = self._computed[compute]
        return found

    @cached_property
    def topics(self) -> Sequence[tuple[str, TopicTraffic]]:
        """The traffic of topics; those with traffic come first."""
        table, found = self.sources.topics, dict(self.counters.topics)
        if table is not None:
            for topic in table.all():
                if topic not in found and not table.is_system(topic):
                    found[topic] = TopicTraffic(topic_kind(topic))
        return self.budget.fit(list(found.items()), 2)

    @cached_property
    def topic_histograms(self) -> Sequence[tuple[str, TopicTraffic]]:
        """The topics of which there are histograms."""
        return self.budget.fit(self.topics, len(MESSAGE_BYTES) + len(DELIVER_SECONDS) + 2 * 3)

    @cached_property
    def consumed(self) -> Sequence[tuple[tuple[str, str], GroupTraffic]]:
        """What groups took, by topic and group."""
        return self.budget.fit(list(self.counters.groups.items()), 3)

    @cached_property
    def groups(self) -> Sequence[str]:
        """The groups, each from its beginning."""
        sources, offsets = self.sources.groups, self.sources.offsets
        if sources is None or offsets is None:  # the broker is still recovering
            return ()
        known = (*sources.settings.all(), *offsets.groups(), *(group.name for group in sources.online))
        names = dict.fromkeys(name for name in known if not is_system_group(name))
        return self.budget.fit(list(names), 3 + len(REBALANCE_REASONS) + len(ACK_RESULTS))

    @cached_property
    def group_topics(self) -> GroupTopics:
        """The topics in which groups have offsets."""
        sources = self.sources
        if sources.groups is None or sources.offsets is None:
            return ()
        # Groups of the system have no members, and alert no one.
        return self.budget.fit([of for of in sources.offsets.items() if not is_system_group(of[0])], 3)

    @cached_property
    def retried(self) -> Sequence[tuple[str, str]]:
        """The group and topic of what is or can be sent back."""
        counts, offsets = self.counters.retry, self.sources.offsets
        consumed = (
            (group, topic)
            for group, topic, _ in (() if offsets is None else offsets.items())
            if not is_system_group(group)
            and not is_system_topic(topic)
            and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        )
        return self.budget.fit(list(dict.fromkeys((*consumed, *counts.retries, *counts.dead_letters))), 2)

    @cached_property
    def open_transactions(self) -> Mapping[str, int]:
        """How many transactions are open, by topic."""
        found = self.sources.open_transactions
        return {} if found is None else dict(found())

    @cached_property
    def transaction_topics(self) -> Sequence[str]:
        """The topics with transactions: from their first half message on."""
        counts = self.counters.retry
        topics = (*self.open_transactions, *(topic for topic, _ in (*counts.transactions, *counts.checks)))
        return self.budget.fit(list(dict.fromkeys(topics)), 1 + len(TRANSACTION_RESULTS) + len(CHECK_RESULTS))

    @property
    def delays(self) -> DelayStats:
        """The numbers of delayed messages."""
        return DelayStats() if self.sources.delays is None else self.sources.delays.stats

    @cached_property
    def delay_topics(self) -> Sequence[str]:
        """The topics with delayed messages; a deleted one only while messages wait for it."""
        table, waiting = self.sources.topics, self.delays.waiting
        known = [
            topic
            for topic in self.delays.topics()
            if waiting[topic] > 0 or table is None or table.get(topic) is not None
        ]
        return self.budget.fit(known, 3)

    @property
    def schedules(self) -> ScheduleStats:
        """The numbers of schedules."""
        return ScheduleStats() if self.sources.schedules is None else self.sources.schedules.stats

    @cached_property
    def schedule_topics(self) -> Sequence[str]:
        """The topics that schedules have sent to, unless they are deleted."""
        table = self.sources.topics
        known = [topic for topic in sorted(self.schedules.sent) if table is None or table.get(topic) is not None]
        return self.budget.fit(known, 1)

    @cached_property
    def replication(self) -> ReplicationFigures | None:
        """The figures of replication; None while no role is served."""
        source = self.sources.replication
        return None if source is None else source()

    @cached_property
    def committed_queues(self) -> Sequence[tuple[str, str, int, Mapping[int, int]]]:
        """Group, topic, queue, and the offsets of the group in the topic by queue."""
        offsets = self.sources.offsets
        if self.sources.store is None or offsets is None:
            return ()
        found = [
            (group, topic, queue_id, table)
            for group, topic, table in offsets.items()
            if not is_system_group(group)
            for queue_id in table
        ]
        return self.budget.fit(found, 2)

    @cached_property
    def queues(self) -> Sequence[tuple[str, int]]:
        """Topic and queue."""
        store = self.sources.store
        return () if store is None or self.sources.offsets is None else self.budget.fit(store.queues(), 2)

    @property
    def oldest_message_ms(self) -> int:
        """Age of the oldest message; 0 without one."""
        stored_ms = self.sources.disk.oldest_store_timestamp_ms
        return max(0, self.sources.clock_ms() - stored_ms) if stored_ms >= 0 else 0


def in_flight_messages(scrape: Scrape, group_topics: GroupTopics) -> Rows:
    """Yield by group and topic how many messages were pulled and not committed."""
    groups = scrape.sources.groups
    for group, topic, queues in group_topics:
        pulled = {} if groups is None else groups.progress.of_topic(group, topic)
        yield (group, topic), sum(max(0, pulled[at].pull_offset - queues.get(at, 0)) for at in pulled)


def ready_messages(scrape: Scrape, group_topics: GroupTopics) -> Rows:
    """Yield by group and topic how many messages could be pulled now."""
    groups = scrape.sources.groups
    for group, topic, queues in group_topics:
        pulled = {} if groups is None else groups.progress.of_topic(group, topic)
        ready = 0
        for at, committed in queues.items():
            start, end = scrape.bounds[topic, at]
            of_queue = pulled.get(at)
            taken = committed if of_queue is None else max(committed, of_queue.pull_offset)
            ready += max(0, end - max(taken, start))
        yield (group, topic), ready


def op_name(code: int) -> str:
    """Return a request code's `op`: its name in lower case, `pull_wait` for held pulls, `unknown`."""
    if code == PULL_WAIT_CODE:
        return "pull_wait"
    return "unknown" if code == UNKNOWN_CODE else RequestCode(code).name.lower()


def response_name(code: int) -> str:
    """Return a response code's `code`: `ok` for success, else its name in lower case."""
    if code == ResponseCode.SUCCESS:
        return "ok"
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return "other"


@cache
def broker_version() -> str:
    """Return the version of the installed distribution; `unknown` if it is not installed."""
    try:
        return metadata.version("reput")
    except metadata.PackageNotFoundError:
        return "unknown"
