"""Turning what the broker counted into series when it is scraped.

`MetricsCollector` is an ordinary prometheus_client collector; nothing here runs between scrapes. It walks in small
pieces (`families`), so that other tasks run in between: twenty thousand series take a tenth of a second.

Series of topics, groups and queues are counted against `metrics.max_series`. Topics and groups come first; what does
not fit, mostly queues, is left out and counted in `reput_metrics_dropped_series`.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING

from prometheus_client import GC_COLLECTOR, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import (
    PROTOCOLS,
    PULL_WAIT_CODE,
    UNKNOWN_CODE,
    Counters,
    Histogram,
    TopicTraffic,
    topic_kind,
)
from reput_broker.observe.delivery_metrics import (
    DelaySources,
    GroupSources,
    OpenTransactions,
    delay_families,
    group_families,
    retry_families,
)
from reput_broker.observe.families import Budget, Labels, by_one, one, pieces
from reput_broker.observe.figures import DiskFigures
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.log import dropped_events
from reput_broker.observe.replication_metrics import ReplicationSource, replication_families
from reput_broker.store.retention import DiskLevel
from reput_protocol import kernel
from reput_protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from reput_broker.store.message_store import MessageStore
    from reput_broker.tables.offsets import ConsumerOffsetManager
    from reput_broker.tables.topics import TopicConfigManager

_FIXED_OPS = (RequestCode.PUT_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE)


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
    replication: ReplicationSource | None = None
    held_pulls_bytes: Callable[[], int] = lambda: 0
    registered_brokers: Callable[[], int] = lambda: 0
    recovery_duration_s: float = 0.0
    recovery_truncated_bytes: int = 0
    config_reload_ok: bool = True
    config_reload_time_s: float = field(default_factory=time.time)

    def forget_tenure(self) -> None:
        """Forget what is being closed."""
        self.topics = self.offsets = self.store = self.groups = None
        self.open_transactions = self.delays = self.replication = None
        self.held_pulls_bytes = lambda: 0


class MetricsCollector(Collector):
    """All series of one broker."""

    def __init__(self, sources: MetricsSources) -> None:
        self.sources = sources
        self._process = ProcessCollector(registry=None)
        self.version = broker_version()
        self._build = (
            self.version,
            platform.python_version(),
            os.environ.get("REPUT_BUILD_COMMIT", "unknown"),
            kernel.FORM,
        )

    def collect(self) -> Iterable[Metric]:
        """Return every family once, whole (prometheus_client's interface)."""
        merged: dict[str, Metric] = {}
        for family in self.families():
            known = merged.setdefault(family.name, family)
            if known is not family:
                known.samples += family.samples
        return merged.values()

    def families(self) -> Iterator[Metric]:
        """Walk over the families; a long one comes in several consecutive pieces of the same name.

        Other tasks may run between two pieces; their changes may or may not be included.
        """
        budget = Budget(self.sources.config.metrics.max_series)
        yield from self._process.collect()
        yield from GC_COLLECTOR.collect()
        yield from self._build_and_state()
        yield from self._traffic(budget)
        yield from self._requests()
        yield from self._connections()
        yield from self._groups(budget)
        yield from retry_families(
            self.sources.counters.retry, self.sources.open_transactions, self.sources.offsets, budget
        )
        yield from delay_families(self.sources.delays, self.sources.topics, budget)
        yield from replication_families(self.sources.replication)
        yield from self._queues(budget)
        yield from self._store()
        yield from self._limits(budget)

    def _build_and_state(self) -> Iterator[Metric]:
        health, counters = self.sources.health, self.sources.counters
        yield one("reput_build_info", 1, self._build)
        yield one("reput_start_time_seconds", health.started_at_s)
        yield one("reput_ready", int(health.ready))
        yield from pieces("reput_state", (((state,), int(state is health.state)) for state in BrokerState))
        yield one("reput_event_loop_delay_seconds", counters.loop_delay_seconds)

    def _traffic(self, budget: Budget) -> Iterator[Metric]:
        counters = self.sources.counters
        topics = self._topics_shown(budget)
        groups = {
            (topic, group): traffic
            for (topic, group), traffic in list(counters.groups.items())
            if budget.take(2)
        }
        yield from pieces(
            "reput_messages_in_total",
            (
                ((topic, kind), count)
                for topic, traffic in topics.items()
                for kind, count in traffic.messages_in.items()
            ),
        )
        yield from pieces(
            "reput_messages_out_total",
            (
                ((topic, group, topic_kind(topic)), traffic.messages_out)
                for (topic, group), traffic in groups.items()
            ),
        )
        yield from pieces("reput_bytes_in_total", (((topic,), t.bytes_in) for topic, t in topics.items()))
        yield from pieces(
            "reput_duplicates_rejected_total", (((topic,), t.duplicates) for topic, t in topics.items())
        )
        yield from pieces("reput_bytes_out_total", ((names, t.bytes_out) for names, t in groups.items()))
        yield from pieces(
            "reput_message_size_bytes", (((topic,), t.message_bytes) for topic, t in topics.items())
        )
        yield from pieces("reput_produce_duration_seconds", by_one(counters.produce_seconds))
        yield from pieces(
            "reput_deliver_latency_seconds", (((topic,), t.deliver_seconds) for topic, t in topics.items())
        )
        yield from pieces("reput_messages_rejected_total", by_one(counters.rejected))
        yield from pieces("reput_replies_total", by_one(counters.replies))

    def _topics_shown(self, budget: Budget) -> dict[str, TopicTraffic]:
        """Return the traffic of every topic within the budget, including topics without any."""
        counters, table = self.sources.counters, self.sources.topics
        shown = dict(counters.topics)
        if table is not None:
            for topic in table.all():
                if topic not in shown and not table.is_system(topic):
                    shown[topic] = TopicTraffic(topic_kind(topic))
        return {topic: traffic for topic, traffic in shown.items() if budget.take(_topic_series(traffic))}

    def _requests(self) -> Iterator[Metric]:
        requests = dict(self.sources.counters.requests)
        fixed = [(protocol, op.name.lower()) for protocol in PROTOCOLS.values() for op in _FIXED_OPS]
        totals: dict[Labels, int] = {(*names, "ok"): 0 for names in fixed}
        durations: dict[Labels, Histogram] = {}
        inflight: dict[Labels, int] = dict.fromkeys(fixed, 0)
        for (header_type, code), traffic in requests.items():
            names = (PROTOCOLS.get(header_type, "unknown"), op_name(code))
            for response_code, count in list(traffic.codes.items()):
                labels = (*names, response_name(response_code))
                totals[labels] = totals.get(labels, 0) + count
            durations[names] = traffic.duration_seconds
            inflight[names] = traffic.inflight
        yield from pieces("reput_requests_total", totals.items())
        yield from pieces("reput_request_duration_seconds", durations.items())
        yield from pieces("reput_requests_inflight", inflight.items())

    def _connections(self) -> Iterator[Metric]:
        counters = self.sources.counters
        listeners = counters.listeners.items()
        yield from pieces(
            "reput_connections",
            (((name, role), count) for name, t in listeners for role, count in t.open_by_role.items()),
        )
        yield from pieces("reput_connections_opened_total", (((name,), t.opened) for name, t in listeners))
        yield from pieces(
            "reput_connections_closed_total",
            (((name, reason), count) for name, t in listeners for reason, count in t.closed.items()),
        )
        yield from pieces("reput_protocol_errors_total", counters.protocol_errors.items())
        yield from pieces(
            "reput_network_bytes_total",
            (
                ((name, direction), count)
                for name, t in listeners
                for direction, count in (("in", t.bytes_in), ("out", t.bytes_out))
            ),
        )

        yield one("reput_registered_brokers", self.sources.registered_brokers())
        servers = counters.name_servers.items()
        yield from pieces(
            "reput_name_server_registered", (((name,), int(t.is_registered)) for name, t in servers)
        )
        yield from pieces(
            "reput_name_server_registrations_total",
            (((name, result), count) for name, t in servers for result, count in t.registrations.items()),
        )

    def _groups(self, budget: Budget) -> Iterator[Metric]:
        sources = self.sources
        return group_families(sources.groups, sources.offsets, sources.store, sources.counters, budget)

    def _queues(self, budget: Budget) -> Iterator[Metric]:
        store, offsets = self.sources.store, self.sources.offsets
        committed = [
            (group, topic, queue_id)
            for group, topic, queues in (() if offsets is None else offsets.items())
            for queue_id in queues
        ]
        # The offsets of groups have priority over the bounds of queues.
        shown_commits = [place for place in committed if budget.take(2)]
        queues = [] if store is None else [queue for queue in sorted(store.queues()) if budget.take(2)]
        if store is None:
            shown_commits = []
        else:
            yield from pieces(
                "reput_queue_start_offset",
                (((topic, str(q)), store.min_offset_in_queue(topic, q)) for topic, q in queues),
            )
            yield from pieces(
                "reput_queue_end_offset",
                (((topic, str(q)), store.max_offset_in_queue(topic, q)) for topic, q in queues),
            )
        yield from pieces("reput_consumer_committed_offset", self._committed(shown_commits, lag=False))
        yield from pieces("reput_consumer_lag_messages", self._committed(shown_commits, lag=True))

    def _committed(self, places: list[tuple[str, str, int]], *, lag: bool) -> Iterator[tuple[Labels, int]]:
        store, offsets = self.sources.store, self.sources.offsets
        for group, topic, queue_id in places:
            offset = None if offsets is None else offsets.query(group, topic, queue_id)
            if offset is not None and store is not None:
                value = max(0, store.max_offset_in_queue(topic, queue_id) - offset) if lag else offset
                yield (group, topic, str(queue_id)), value

    def _store(self) -> Iterator[Metric]:
        sources, counters, disk = self.sources, self.sources.counters, self.sources.disk
        store = sources.store
        yield from pieces("reput_storage_size_bytes", by_one(disk.size_bytes))
        free, used = {"data": disk.free_bytes}, {"data": disk.used_ratio}
        if disk.log_free_bytes is not None:
            free["commitlog"], used["commitlog"] = disk.log_free_bytes, disk.log_used_ratio
        yield from pieces("reput_disk_free_bytes", by_one(free))
        yield from pieces("reput_disk_used_ratio", by_one(used))
        yield from pieces(
            "reput_disk_watermark_state", (((level,), int(level is disk.level)) for level in DiskLevel)
        )
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
        yield from pieces("reput_flush_duration_seconds", by_one(counters.flush_seconds))
        yield one("reput_flush_batch_messages", counters.flush_batch_messages)
        yield from pieces("reput_flush_errors_total", by_one(counters.flush_errors))
        yield from pieces("reput_segments_deleted_total", counters.segments_deleted.items())
        yield from pieces("reput_segments_deleted_bytes_total", by_one(counters.deleted_bytes))
        yield one("reput_recovery_duration_seconds", sources.recovery_duration_s)
        yield one("reput_recovery_truncated_bytes", sources.recovery_truncated_bytes)

    def _limits(self, budget: Budget) -> Iterator[Metric]:
        sources, counters = self.sources, self.sources.counters
        yield from pieces("reput_backpressure_seconds_total", by_one(counters.backpressure_seconds))
        yield from pieces("reput_memory_buffered_bytes", by_one(counters.buffered_bytes))
        yield one("reput_held_pulls_bytes", sources.held_pulls_bytes())
        yield one("reput_held_pulls_limit_bytes", sources.config.long_polling.memory_max)
        yield one("reput_log_events_dropped_total", dropped_events())
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


def _topic_series(traffic: TopicTraffic) -> int:
    histograms = (traffic.message_bytes, traffic.deliver_seconds)
    return len(traffic.messages_in) + 2 + sum(len(h.buckets) + 2 for h in histograms)
