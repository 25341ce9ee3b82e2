"""Turning what the broker counted into series when it is scraped. Nothing here runs between scrapes.

Series of topics, groups and queues are counted against `metrics.max_series`. Those of queues are left out first, then
the histograms of topics; `reput_metrics_dropped_series` says how many.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, TypeAlias

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import (
    DELIVER_SECONDS,
    MESSAGE_BYTES,
    PROTOCOLS,
    PULL_WAIT_CODE,
    UNKNOWN_CODE,
    Counters,
    Histogram,
    TopicTraffic,
    merged,
    topic_kind,
)
from reput_broker.observe.delivery_metrics import (
    DelaySources,
    GroupSources,
    OpenTransactions,
    PopSources,
    QueueBounds,
    delay_families,
    group_families,
    pop_families,
    retry_families,
)
from reput_broker.observe.exposition import Budget, Family, Labels, by_label, one
from reput_broker.observe.figures import DiskFigures
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.log import dropped_events
from reput_broker.observe.replication_metrics import ReplicationSource, replication_families
from reput_broker.observe.span_exporter import SPAN_RESULTS, SpanExporter
from reput_broker.store.retention import DiskLevel
from reput_protocol import kernel
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.names import is_system_group

if TYPE_CHECKING:
    from reput_broker.access.tls import ServerTls
    from reput_broker.store.message_store import MessageStore
    from reput_broker.tables.offsets import ConsumerOffsetManager
    from reput_broker.tables.topics import TopicConfigManager

_SERIES_OF_TOPIC = 2  # and one for each kind
_HISTOGRAM_SERIES_OF_TOPIC = len(MESSAGE_BYTES) + len(DELIVER_SECONDS) + 2 * 3
_SERIES_OF_CONSUMED = 2
_SERIES_OF_QUEUE = 2
_FIXED_OPS = (RequestCode.PUT_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE)

_Committed: TypeAlias = tuple[str, str, int, Mapping[int, int]]
"""Group, topic, queue, and the offsets of the group in the topic by queue."""


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


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
    open_transactions: OpenTransactions | None = None
    delays: DelaySources | None = None
    pop: PopSources | None = None
    replication: ReplicationSource | None = None
    spans: SpanExporter | None = None
    """Takes spans, if the configuration names a receiver for them."""
    tls: ServerTls | None = None
    """The certificates, if the configuration names some."""
    held_pulls_bytes: Callable[[], int] = lambda: 0
    registered_brokers: Callable[[], int] = lambda: 0
    recovery_duration_s: float = 0.0
    recovery_truncated_bytes: int = 0
    config_reload_ok: bool = True
    config_reload_time_s: float = field(default_factory=time.time)

    def forget_tenure(self) -> None:
        """Forget what is being closed."""
        self.topics = self.offsets = self.store = self.groups = None
        self.open_transactions = self.delays = self.pop = self.replication = None
        self.held_pulls_bytes = lambda: 0


class BrokerMetrics:
    """All series of one broker, as /metrics shows them. Nothing is looked up in files."""

    def __init__(self, sources: MetricsSources) -> None:
        self.sources = sources
        self.version = broker_version()
        self._build = (
            self.version,
            platform.python_version(),
            os.environ.get("REPUT_BUILD_COMMIT", "unknown"),
            kernel.FORM,
        )

    def families(self) -> Iterator[Family]:
        """Walk over the families, each once; the values of one are read before the next is asked for.

        Other tasks may run meanwhile; their changes may or may not be included. What comes first has priority where
        `metrics.max_series` leaves something out.
        """
        sources = self.sources
        counters, budget = sources.counters, Budget(sources.config.metrics.max_series)
        yield from self._build_and_state()
        yield from self._requests()
        yield from self._connections()
        topics = self._topics(budget)
        yield from self._traffic(topics, budget)
        bounds = QueueBounds(lambda: sources.store)
        yield from group_families(sources.groups, sources.offsets, bounds, counters, budget)
        yield from retry_families(counters.retry, sources.open_transactions, sources.offsets, budget)
        yield from delay_families(sources.delays, sources.topics, budget)
        yield from pop_families(sources.pop, budget)
        yield from replication_families(sources.replication)
        yield from self._store()
        yield from self._topic_histograms(topics, budget)
        yield from self._queues(bounds, budget)
        yield from self._limits(budget)
        yield from self._tls()

    def _build_and_state(self) -> Iterator[Family]:
        health, counters = self.sources.health, self.sources.counters
        yield one("reput_build_info", 1, self._build)
        yield one("reput_start_time_seconds", health.started_at_s)
        yield one("reput_ready", int(health.ready))
        yield "reput_state", (((state,), int(state is health.state)) for state in BrokerState)
        yield one("reput_event_loop_delay_seconds", counters.loop_delay_seconds)

    def _topics(self, budget: Budget) -> Sequence[tuple[str, TopicTraffic]]:
        """Return the traffic of every topic within the budget: those with traffic come first."""
        counters, table = self.sources.counters, self.sources.topics
        found = dict(counters.topics)
        if table is not None:
            for topic in table.all():
                if topic not in found and not table.is_system(topic):
                    found[topic] = TopicTraffic(topic_kind(topic))
        return budget.fit(list(found.items()), _SERIES_OF_TOPIC)

    def _traffic(self, topics: Sequence[tuple[str, TopicTraffic]], budget: Budget) -> Iterator[Family]:
        counters = self.sources.counters
        kinds = [(topic, kind, sizes) for topic, traffic in topics for kind, sizes in traffic.sizes.items()]
        yield (
            "reput_messages_in_total",
            (((topic, kind), sizes.count) for topic, kind, sizes in budget.fit(kinds, 1)),
        )
        yield "reput_bytes_in_total", (((topic,), traffic.bytes_in) for topic, traffic in topics)
        yield "reput_duplicates_rejected_total", (((topic,), traffic.duplicates) for topic, traffic in topics)
        groups = budget.fit(list(counters.groups.items()), _SERIES_OF_CONSUMED)
        yield (
            "reput_messages_out_total",
            (((topic, group, topic_kind(topic)), out.messages_out) for (topic, group), out in groups),
        )
        yield "reput_bytes_out_total", ((names, out.bytes_out) for names, out in groups)
        yield by_label("reput_produce_duration_seconds", counters.produce_seconds)
        yield by_label("reput_messages_rejected_total", counters.rejected)
        yield by_label("reput_replies_total", counters.replies)

    def _topic_histograms(
        self, topics: Sequence[tuple[str, TopicTraffic]], budget: Budget
    ) -> Iterator[Family]:
        shown = budget.fit(topics, _HISTOGRAM_SERIES_OF_TOPIC)
        yield (
            "reput_message_size_bytes",
            (((topic,), merged(traffic.sizes.values())) for topic, traffic in shown),
        )
        yield (
            "reput_deliver_latency_seconds",
            (((topic,), traffic.deliver_seconds) for topic, traffic in shown),
        )

    def _requests(self) -> Iterator[Family]:
        requests = dict(self.sources.counters.requests)
        fixed = [(protocol, op.name.lower()) for protocol in PROTOCOLS.values() for op in _FIXED_OPS]
        totals: dict[Labels, int] = {(*names, "ok"): 0 for names in fixed}
        durations: dict[Labels, Histogram] = {}
        inflight: dict[Labels, int] = dict.fromkeys(fixed, 0)
        for (header_type, code), traffic in requests.items():
            names = (PROTOCOLS.get(header_type, "unknown"), op_name(code))
            for response_code, seconds in traffic.answers.items():
                labels = (*names, response_name(response_code))
                totals[labels] = totals.get(labels, 0) + seconds.count
            durations[names] = merged(traffic.answers.values())
            inflight[names] = traffic.inflight
        yield "reput_requests_total", totals.items()
        yield "reput_request_duration_seconds", durations.items()
        yield "reput_requests_inflight", inflight.items()

    def _connections(self) -> Iterator[Family]:
        counters = self.sources.counters
        listeners = counters.listeners.items()
        yield (
            "reput_connections",
            (((name, role), count) for name, t in listeners for role, count in t.open_by_role.items()),
        )
        yield "reput_connections_opened_total", (((name,), t.opened) for name, t in listeners)
        yield (
            "reput_connections_closed_total",
            (((name, reason), count) for name, t in listeners for reason, count in t.closed.items()),
        )
        yield "reput_protocol_errors_total", counters.protocol_errors.items()
        yield by_label("reput_auth_failures_total", counters.auth_failures)
        yield (
            "reput_network_bytes_total",
            (
                ((name, direction), count)
                for name, t in listeners
                for direction, count in (("in", t.bytes_in), ("out", t.bytes_out))
            ),
        )

        yield one("reput_registered_brokers", self.sources.registered_brokers())
        servers = list(counters.name_servers.items())
        yield "reput_name_server_registered", (((name,), int(t.is_registered)) for name, t in servers)
        yield (
            "reput_name_server_registrations_total",
            (((name, result), count) for name, t in servers for result, count in t.registrations.items()),
        )

    def _queues(self, bounds: QueueBounds, budget: Budget) -> Iterator[Family]:
        store, offsets = self.sources.store, self.sources.offsets
        committed: list[_Committed] = []
        queues: list[tuple[str, int]] = []
        if store is not None and offsets is not None:
            committed = [
                (group, topic, queue_id, table)
                for group, topic, table in offsets.items()
                if not is_system_group(group)  # which have no members, and alert no one
                for queue_id in table
            ]
            queues = store.queues()
        # The offsets of groups have priority over the bounds of queues.
        shown = budget.fit(committed, _SERIES_OF_QUEUE)
        yield (
            "reput_consumer_committed_offset",
            (((group, topic, str(at)), table.get(at, 0)) for group, topic, at, table in shown),
        )
        yield (
            "reput_consumer_lag_messages",
            (
                ((group, topic, str(at)), max(0, bounds[topic, at][1] - table.get(at, 0)))
                for group, topic, at, table in shown
            ),
        )
        shown_queues = budget.fit(queues, _SERIES_OF_QUEUE)
        for name, side in (("reput_queue_start_offset", 0), ("reput_queue_end_offset", 1)):
            yield name, (((topic, str(at)), bounds[topic, at][side]) for topic, at in shown_queues)

    def _store(self) -> Iterator[Family]:
        sources, counters, disk = self.sources, self.sources.counters, self.sources.disk
        store = sources.store
        yield by_label("reput_storage_size_bytes", disk.size_bytes)
        free, used = {"data": disk.free_bytes}, {"data": disk.used_ratio}
        if disk.log_free_bytes is not None:
            free["commitlog"], used["commitlog"] = disk.log_free_bytes, disk.log_used_ratio
        yield by_label("reput_disk_free_bytes", free)
        yield by_label("reput_disk_used_ratio", used)
        yield "reput_disk_watermark_state", (((level,), int(level is disk.level)) for level in DiskLevel)
        yield one("reput_storage_refresh_time_seconds", disk.looked_up_at_s)
        if store is not None:
            yield one("reput_storage_start_offset_bytes", store.min_physical_offset)
            yield one("reput_storage_end_offset_bytes", store.max_physical_offset)
            yield one("reput_flush_behind_bytes", store.flush_behind_bytes)
            yield one("reput_commit_behind_bytes", store.commit_behind_bytes)
            yield one("reput_log_file_waits_total", store.file_waits)
            yield one("reput_dispatch_behind_bytes", store.dispatch_behind_bytes)
        oldest_ms = disk.oldest_store_timestamp_ms
        age_ms = max(0, sources.clock_ms() - oldest_ms) if oldest_ms >= 0 else 0
        yield one("reput_oldest_message_seconds", age_ms / 1000)
        yield by_label("reput_flush_duration_seconds", counters.flush_seconds)
        yield one("reput_flush_batch_messages", counters.flush_batch_messages)
        yield by_label("reput_flush_errors_total", counters.flush_errors)
        yield "reput_segments_deleted_total", counters.segments_deleted.items()
        yield by_label("reput_segments_deleted_bytes_total", counters.deleted_bytes)
        yield one("reput_recovery_duration_seconds", sources.recovery_duration_s)
        yield one("reput_recovery_truncated_bytes", sources.recovery_truncated_bytes)
        yield one("reput_recovery_damaged_records", 0 if sources.offsets is None else sources.offsets.damaged)

    def _tls(self) -> Iterator[Family]:
        listeners, tls = self.sources.counters.listeners.items(), self.sources.tls
        yield (
            "reput_tls_handshakes_total",
            (((name, result), count) for name, t in listeners for result, count in t.handshakes.items()),
        )
        yield by_label("reput_tls_certificate_end_time_seconds", {} if tls is None else tls.end_times_s)
        yield one("reput_tls_reload_success", int(tls is None or tls.reload_ok))

    def _limits(self, budget: Budget) -> Iterator[Family]:
        sources, counters = self.sources, self.sources.counters
        yield by_label("reput_backpressure_seconds_total", counters.backpressure_seconds)
        yield by_label("reput_memory_buffered_bytes", counters.buffered_bytes)
        yield one("reput_held_pulls_bytes", sources.held_pulls_bytes())
        yield one("reput_held_pulls_limit_bytes", sources.config.long_polling.memory_max)
        yield one("reput_quota_throttled_total", counters.pulls_throttled, ("client",))
        yield one("reput_log_events_dropped_total", dropped_events())
        none = dict.fromkeys(SPAN_RESULTS, 0)
        yield by_label("reput_spans_total", none if sources.spans is None else sources.spans.counts)
        yield one("reput_config_reload_success", int(sources.config_reload_ok))
        yield one("reput_config_reload_time_seconds", sources.config_reload_time_s)
        yield one("reput_metrics_dropped_series", budget.dropped)


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


def broker_version() -> str:
    """Return the version of the installed distribution; `unknown` if it is not installed."""
    try:
        return metadata.version("reput")
    except metadata.PackageNotFoundError:
        return "unknown"
