"""The series of /metrics/rocketmq: RocketMQ's names for what the broker counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from reput_broker.observe.counters import (
    ANSWER_SECONDS,
    PULL_WAIT_CODE,
    UNKNOWN_CODE,
    Histogram,
    RequestTraffic,
    TopicTraffic,
    merged,
)
from reput_broker.observe.delivery_metrics import (
    QueueBounds,
    in_flight_messages,
    lag_messages,
    ready_messages,
)
from reput_broker.observe.exposition import Budget, Family, Labels, Value, one
from reput_broker.observe.health import BrokerState
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.processor_load import waiting_requests
from reput_broker.observe.rocketmq_catalogue import CONSUME_MODES, MESSAGE_TYPES
from reput_protocol.codes import LanguageCode, RequestCode, ResponseCode
from reput_protocol.names import RETRY_PREFIX, is_system_group, is_system_topic

if TYPE_CHECKING:
    from reput_broker.groups.client_table import ClientChannel

_CREATE_TOPIC = (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
_CREATE_GROUP = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
)

_SERIES_OF_TOPIC = 2
_HISTOGRAM_SERIES_OF_TOPIC = 9
_SERIES_OF_CONSUMED = 2
_SERIES_OF_PLACE = 4
_SERIES_OF_GROUP = 1
_SERIES_OF_TRANSACTIONS = 3 + 9
_SERIES_OF_DELAYS = 3

_Rows = Iterable[tuple[Labels, Value]]


class RocketMQMetrics:
    """RocketMQ's series of one broker."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        config = sources.config
        self._broker: Labels = (config.cluster, "broker", config.broker_name)
        self._of_store: Labels = (*self._broker, "local", "disk")

    def families(self) -> Iterator[Family]:
        """Walk over the families; see `BrokerMetrics.families`."""
        budget = Budget(self._sources.config.metrics.max_series)
        yield from self._state()
        yield from self._requests()
        yield from self._consumers(budget)
        yield from self._connections(budget)
        yield from self._messages(budget)
        yield from self._transactions(budget)
        yield from self._store()
        yield from self._delays(budget)

    def _one(self, name: str, value: Value) -> Family:
        return one(name, value, self._broker)

    def _with(self, more: Labels, name: str, values: _Rows) -> Family:
        return name, (((*more, *labels), value) for labels, value in values)

    def _state(self) -> Iterator[Family]:
        sources = self._sources
        topics, groups = sources.topics, sources.groups
        writable = sources.health.state is BrokerState.RUNNING
        yield self._one("rocketmq_broker_permission", 6 if writable else 4)
        yield self._one("rocketmq_topic_number", 0 if topics is None else len(topics.all()))
        yield self._one("rocketmq_consumer_group_number", 0 if groups is None else len(groups.settings.all()))

    def _requests(self) -> Iterator[Family]:
        every = [(code, traffic) for (_, code), traffic in self._sources.counters.requests.items()]
        # A held pull counts under the request that was held, too.
        requests = [(code, traffic) for code, traffic in every if code != PULL_WAIT_CODE]
        latencies: dict[Labels, list[Histogram]] = {}
        for code, traffic in requests:
            name = "unknown" if code == UNKNOWN_CODE else RequestCode(code).name.lower()
            for response_code, seconds in traffic.answers.items():
                labels = ("remoting", name, _response_name(response_code), "false", _result(response_code))
                latencies.setdefault(labels, []).append(seconds)
        waiting = waiting_requests(self._sources.counters)
        yield self._with(
            self._broker,
            "rocketmq_processor_watermark",
            (((processor,), count) for processor, count in waiting.items()),
        )
        yield self._with(
            self._broker,
            "rocketmq_rpc_latency_milliseconds",
            ((labels, merged(seconds).in_milliseconds()) for labels, seconds in latencies.items()),
        )
        for name, codes in (
            ("rocketmq_topic_create_execution_time_milliseconds", _CREATE_TOPIC),
            ("rocketmq_consumer_group_create_execution_time_milliseconds", _CREATE_GROUP),
        ):
            yield self._one(name, _durations(requests, codes).in_milliseconds())

    def _connections(self, budget: Budget) -> Iterator[Family]:
        groups = self._sources.groups
        producers: Counter[Labels] = Counter()
        consumers: Counter[Labels] = Counter()
        if groups is not None:
            for _, channels in groups.producers.items():  # noqa: PERF102 - it is no dictionary
                producers.update((*_language(channel), "remoting") for channel in channels)
            online = budget.fit(list(groups.online), _SERIES_OF_GROUP)
            for group in online:
                mode = CONSUME_MODES[group.consume_type]
                more = (mode, "remoting", _boolean(is_system_group(group.name)))
                consumers.update((group.name, *_language(channel), *more) for channel in group.members)
        yield self._with(self._broker, "rocketmq_producer_connections", producers.items())
        yield self._with(self._broker, "rocketmq_consumer_connections", consumers.items())

    def _consumers(self, budget: Budget) -> Iterator[Family]:
        sources = self._sources
        groups, offsets, bounds = sources.groups, sources.offsets, QueueBounds(lambda: sources.store)
        if groups is None or offsets is None:
            return
        places = budget.fit(list(offsets.items()), _SERIES_OF_PLACE)

        def with_flags(values: _Rows) -> _Rows:
            for (group, topic), value in values:
                yield (*self._broker, group, topic, *_flags(group, topic)), value

        seconds = groups.lag.seconds
        yield "rocketmq_consumer_lag_messages", with_flags(lag_messages(places, bounds))
        yield (
            "rocketmq_consumer_lag_latency_milliseconds",
            with_flags(
                ((group, topic), round(seconds.get((group, topic), 0.0) * 1000)) for group, topic, _ in places
            ),
        )
        yield (
            "rocketmq_consumer_inflight_messages",
            with_flags(in_flight_messages(places, groups.progress)),
        )
        yield (
            "rocketmq_consumer_ready_messages",
            with_flags(ready_messages(places, groups.progress, bounds)),
        )
        dead = sources.counters.retry.dead_letters
        yield self._with(
            self._broker,
            "rocketmq_send_to_dlq_messages_total",
            (
                ((group, topic, _boolean(is_system_group(group))), count)
                for (group, topic), count in budget.fit(list(dead.items()), 1)
            ),
        )

    def _messages(self, budget: Budget) -> Iterator[Family]:
        counters = self._sources.counters
        sizes = [
            (labels, histogram)
            for topic, traffic in counters.topics.items()
            for labels, histogram in _sizes(topic, traffic)
        ]
        shown = budget.fit(sizes, _SERIES_OF_TOPIC)
        yield self._with(
            self._broker, "rocketmq_messages_in_total", ((labels, size.count) for labels, size in shown)
        )
        yield self._with(
            self._broker,
            "rocketmq_throughput_in_total",
            ((labels, int(size.total)) for labels, size in shown),
        )
        groups = budget.fit(list(counters.groups.items()), _SERIES_OF_CONSUMED)
        yield self._with(
            self._broker,
            "rocketmq_messages_out_total",
            (((topic, group, *_flags(group, topic)), out.messages_out) for (topic, group), out in groups),
        )
        yield self._with(
            self._broker,
            "rocketmq_throughput_out_total",
            (((topic, group, *_flags(group, topic)), out.bytes_out) for (topic, group), out in groups),
        )
        yield self._with(self._broker, "rocketmq_message_size", budget.fit(shown, _HISTOGRAM_SERIES_OF_TOPIC))

    def _transactions(self, budget: Budget) -> Iterator[Family]:
        sources = self._sources
        counts = sources.counters.retry
        open_now = {} if sources.open_transactions is None else dict(sources.open_transactions())
        topics = dict.fromkeys((*open_now, *(topic for topic, _ in counts.transactions)))
        shown = budget.fit(list(topics), _SERIES_OF_TRANSACTIONS)
        for name, values in (
            ("rocketmq_half_messages", (((topic,), open_now.get(topic, 0)) for topic in shown)),
            (
                "rocketmq_commit_messages_total",
                (((topic,), counts.transactions[topic, "commit"]) for topic in shown),
            ),
            (
                "rocketmq_rollback_messages_total",
                (((topic,), counts.transactions[topic, "rollback"]) for topic in shown),
            ),
        ):
            yield self._with(self._broker, name, values)
        finished = [
            (topic, counts.finish_seconds[topic]) for topic in shown if topic in counts.finish_seconds
        ]
        yield self._with(
            self._broker,
            "rocketmq_finish_message_latency_milliseconds",
            (((topic,), seconds.in_milliseconds()) for topic, seconds in finished),
        )

    def _store(self) -> Iterator[Family]:
        sources = self._sources
        store, disk = sources.store, sources.disk
        oldest_ms = disk.oldest_store_timestamp_ms
        age_ms = max(0, sources.clock_ms() - oldest_ms) if oldest_ms >= 0 else 0
        flush, dispatch = (0, 0) if store is None else (store.flush_behind_bytes, store.dispatch_behind_bytes)
        for name, value in (
            ("rocketmq_storage_size_bytes", sum(disk.size_bytes.values())),
            ("rocketmq_storage_flush_behind_bytes", flush),
            ("rocketmq_storage_dispatch_behind_bytes", dispatch),
            ("rocketmq_storage_message_reserve_time_milliseconds", age_ms),
        ):
            yield one(name, value, self._of_store)

    def _delays(self, budget: Budget) -> Iterator[Family]:
        delays = self._sources.delays
        if delays is None:
            return
        stats = delays.stats
        accepted = [
            (topic, traffic.sizes["delayed"].count)
            for topic, traffic in self._sources.counters.topics.items()
            if "delayed" in traffic.sizes
        ]
        topics = budget.fit(stats.topics(), _SERIES_OF_DELAYS)
        yield self._with(
            self._of_store,
            "rocketmq_timing_messages",
            (((topic,), max(0, stats.waiting[topic])) for topic in topics),
        )
        yield one("rocketmq_timer_enqueue_lag", delays.timers_behind(), self._of_store)
        yield one("rocketmq_timer_dequeue_latency_milliseconds", round(delays.due_s() * 1000), self._of_store)
        yield self._with(
            self._of_store,
            "rocketmq_timer_enqueue_total",
            (((topic,), count) for topic, count in budget.fit(accepted, 1)),
        )
        yield self._with(
            self._of_store,
            "rocketmq_timer_dequeue_total",
            (((topic,), stats.delivered[topic]) for topic in topics),
        )
        ahead = budget.fit(list(stats.ahead_seconds.items()), _HISTOGRAM_SERIES_OF_TOPIC)
        yield self._with(
            self._of_store,
            "rocketmq_delay_message_latency_seconds",
            (((topic,), seconds) for topic, seconds in ahead),
        )


def _sizes(topic: str, traffic: TopicTraffic) -> list[tuple[Labels, Histogram]]:
    by_type: dict[str, list[Histogram]] = {}
    for kind, histogram in list(traffic.sizes.items()):
        by_type.setdefault(MESSAGE_TYPES.get(kind, "normal"), []).append(histogram)
    system = _boolean(is_system_topic(topic))
    return [((topic, name, system), merged(histograms)) for name, histograms in by_type.items()]


def _durations(requests: Sequence[tuple[int, RequestTraffic]], codes: Sequence[RequestCode]) -> Histogram:
    found = [times for code, traffic in requests if code in codes for times in traffic.answers.values()]
    return merged(found or [Histogram(ANSWER_SECONDS)])


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return "other"


def _result(code: int) -> str:
    return "process_request_failed" if code == ResponseCode.SYSTEM_ERROR else "success"


def _language(channel: ClientChannel) -> tuple[str, str]:
    try:
        return LanguageCode(channel.language).name.lower(), str(channel.version)
    except ValueError:
        return "other", str(channel.version)


@lru_cache(maxsize=4096)  # each comes several times on a page
def _flags(group: str, topic: str) -> tuple[str, str]:
    return _boolean(topic.startswith(RETRY_PREFIX)), _boolean(
        is_system_topic(topic) or is_system_group(group)
    )


def _boolean(value: bool) -> str:
    return "true" if value else "false"
