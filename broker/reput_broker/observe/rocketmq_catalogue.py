"""The metrics of /metrics/rocketmq, a row each, as RocketMQ 5.3's Prometheus exporter names them.

The exporter appends the declared unit to a name (`rocketmq_consumer_lag_latency_milliseconds`); metrics without a
declared unit have none, although some count bytes (`rocketmq_throughput_in_total`, `rocketmq_message_size`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from reput_broker.config.model import BrokerConfig
from reput_broker.observe import counters
from reput_broker.observe.exposition import ANY, Found, LabelValues, MetricSpec, Section, by_name
from reput_broker.observe.health import BrokerState
from reput_broker.observe.metrics import (
    DelaySources,
    GroupTopics,
    Labels,
    Rows,
    Scrape,
    in_flight_messages,
    ready_messages,
)
from reput_protocol.codes import LanguageCode, RequestCode, ResponseCode
from reput_protocol.commands.table import REQUESTS
from reput_protocol.names import RETRY_PREFIX, is_system_group, is_system_topic

if TYPE_CHECKING:
    from reput_broker.groups.client_table import ClientChannel

PROCESSORS = (
    "send", "async_put", "pull", "lite_pull", "ack", "query_message", "client_manager", "heartbeat", "transaction",
    "consumer_manager", "admin", "reply",
)  # fmt: skip
MESSAGE_TYPES = {"normal": "normal", "ordered": "fifo", "delayed": "delay", "transactional": "transaction"}
"""RocketMQ's name of a kind; messages of another kind are `normal`."""
CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
RPC_RESULTS = ("success", "process_request_failed")

_CREATE_TOPIC = (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
_CREATE_GROUP = (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)

_BOOLEANS = ("true", "false")
_TYPES = tuple(dict.fromkeys(MESSAGE_TYPES.values()))
_OF_BROKER: dict[str, LabelValues] = {"cluster": ANY, "node_type": ("broker",), "node_id": ANY}
_OF_STORE = {**_OF_BROKER, "storage_type": ("local",), "storage_medium": ("disk",)}
_OF_LAG = {**_OF_BROKER, "consumer_group": ANY, "topic": ANY, "is_retry": _BOOLEANS, "is_system": _BOOLEANS}
_OF_MESSAGES_IN = {**_OF_BROKER, "topic": ANY, "message_type": _TYPES, "is_system": _BOOLEANS}
_OF_MESSAGES_OUT = {**_OF_BROKER, "topic": ANY, "consumer_group": ANY, "is_retry": _BOOLEANS, "is_system": _BOOLEANS}


def _in_ms(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(bound * 1000 for bound in seconds)


def common_labels(config: BrokerConfig) -> Mapping[str, str]:
    """Return the values of the labels that are the same everywhere on the page of a broker."""
    return {
        "cluster": config.cluster,
        "node_type": "broker",
        "node_id": config.broker_name,
        "storage_type": "local",
        "storage_medium": "disk",
    }


def waiting_requests(counts: counters.Counters) -> dict[str, int]:
    """Return how many requests were read and are not answered yet, without held pulls, by processor."""
    waiting = dict.fromkeys(PROCESSORS, 0)
    held = 0
    for (_, code), traffic in counts.requests.items():
        if code == counters.PULL_WAIT_CODE:  # a held pull counts under the request that was held, too
            held += traffic.inflight
        else:
            row = REQUESTS.get(code)  # of an unknown code there is none
            waiting["admin" if row is None else row.pool] += traffic.inflight
    waiting["pull"] = max(0, waiting["pull"] - held)
    return waiting


def _requests(scrape: Scrape) -> Sequence[tuple[int, counters.RequestTraffic]]:
    """Return the requests by code. A held pull counts under the request that was held, too."""
    every = scrape.counters.requests.items()
    return [(code, traffic) for (_, code), traffic in every if code != counters.PULL_WAIT_CODE]


def _latencies(scrape: Scrape) -> Rows:
    latencies: dict[Labels, list[counters.Histogram]] = {}
    for code, traffic in scrape.once(_requests):
        name = "unknown" if code == counters.UNKNOWN_CODE else RequestCode(code).name.lower()
        for response_code, seconds in traffic.answers.items():
            labels = ("remoting", name, _response_name(response_code), "false", _result(response_code))
            latencies.setdefault(labels, []).append(seconds)
    return ((labels, counters.merged(seconds).in_milliseconds()) for labels, seconds in latencies.items())


def _durations(scrape: Scrape, codes: Sequence[RequestCode]) -> counters.Histogram:
    requests = scrape.once(_requests)
    found = [times for code, traffic in requests if code in codes for times in traffic.answers.values()]
    return counters.merged(found or [counters.Histogram(counters.ANSWER_SECONDS)]).in_milliseconds()


def _producers(scrape: Scrape) -> Mapping[Labels, int]:
    found: Counter[Labels] = Counter()
    if (groups := scrape.sources.groups) is not None:
        for _, channels in groups.producers.items():  # noqa: PERF102 - it is no dictionary
            found.update((*_language(channel), "remoting") for channel in channels)
    return found


def _online(scrape: Scrape) -> Mapping[Labels, int]:
    found: Counter[Labels] = Counter()
    groups = scrape.sources.groups
    for group in () if groups is None else scrape.budget.fit(list(groups.online), 1):
        more = (CONSUME_MODES[group.consume_type], "remoting", _boolean(is_system_group(group.name)))
        found.update((group.name, *_language(channel), *more) for channel in group.members)
    return found


def _with_flags(rows: Rows) -> Rows:
    return (((*names, *_flags(*names)), value) for names, value in rows)


def _group_topics(scrape: Scrape) -> GroupTopics:
    sources = scrape.sources
    if sources.groups is None or sources.offsets is None:
        return ()
    return scrape.budget.fit(list(sources.offsets.items()), 4)


def _lag_messages(scrape: Scrape) -> Rows:
    bounds = scrape.bounds
    for group, topic, queues in scrape.once(_group_topics):
        yield (group, topic), sum(max(0, bounds[topic, at][1] - offset) for at, offset in queues.items())


def _lag_latencies(scrape: Scrape) -> Rows:
    seconds = {} if scrape.sources.groups is None else scrape.sources.groups.lag.seconds
    for group, topic, _ in scrape.once(_group_topics):
        yield (group, topic), round(seconds.get((group, topic), 0.0) * 1000)


def _dead_letters(scrape: Scrape) -> Rows:
    found = scrape.budget.fit(list(scrape.counters.retry.dead_letters.items()), 1)
    return (((group, topic, _boolean(is_system_group(group))), count) for (group, topic), count in found)


def _finished(scrape: Scrape) -> Mapping[str, counters.Histogram]:
    found = scrape.counters.retry.finish_seconds
    topics = [topic for topic in scrape.once(_transaction_topics) if topic in found]
    return {topic: found[topic].in_milliseconds() for topic in topics}


def _of_delays(read: Callable[[Scrape, DelaySources], Found]) -> Callable[[Scrape], Found]:
    """Return a reading of delayed messages; there are none before a role is served."""
    return lambda scrape: None if (found := scrape.sources.delays) is None else read(scrape, found)


def _delay_topics(scrape: Scrape) -> Sequence[str]:
    return scrape.budget.fit(scrape.delays.topics(), 3)


def _accepted_timers(scrape: Scrape) -> Mapping[str, int]:
    topics = scrape.counters.topics.items()
    accepted = [(topic, of.sizes["delayed"].count) for topic, of in topics if "delayed" in of.sizes]
    return dict(scrape.budget.fit(accepted, 1))


def _message_sizes(scrape: Scrape) -> Sequence[tuple[Labels, counters.Histogram]]:
    found = [of for topic, traffic in scrape.counters.topics.items() for of in _sizes(topic, traffic)]
    return scrape.budget.fit(found, 2)


def _transaction_topics(scrape: Scrape) -> Sequence[str]:
    topics = dict.fromkeys((*scrape.open_transactions, *(of for of, _ in scrape.counters.retry.transactions)))
    return scrape.budget.fit(list(topics), 3 + 9)


def _sizes(topic: str, traffic: counters.TopicTraffic) -> list[tuple[Labels, counters.Histogram]]:
    by_type: dict[str, list[counters.Histogram]] = {}
    for kind, histogram in list(traffic.sizes.items()):
        by_type.setdefault(MESSAGE_TYPES.get(kind, "normal"), []).append(histogram)
    system = _boolean(is_system_topic(topic))
    return [((topic, name, system), counters.merged(histograms)) for name, histograms in by_type.items()]


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
    return _boolean(topic.startswith(RETRY_PREFIX)), _boolean(is_system_topic(topic) or is_system_group(group))


def _boolean(value: bool) -> str:
    return "true" if value else "false"


_broker = Section("Broker")
_broker.gauge(
    "rocketmq_processor_watermark",
    "Requests read, without a response yet.",
    lambda s: waiting_requests(s.counters),
    **_OF_BROKER,
    processor=PROCESSORS,
)
_broker.gauge(
    "rocketmq_broker_permission",
    "6, or 4 while no messages are accepted.",
    lambda s: 6 if s.sources.health.state is BrokerState.RUNNING else 4,
    **_OF_BROKER,
)
_broker.gauge(
    "rocketmq_topic_number",
    "Topics.",
    lambda s: 0 if s.sources.topics is None else len(s.sources.topics.all()),
    **_OF_BROKER,
)
_broker.gauge(
    "rocketmq_consumer_group_number",
    "Consumer groups.",
    lambda s: 0 if s.sources.groups is None else len(s.sources.groups.settings.all()),
    **_OF_BROKER,
)
_broker.histogram(
    "rocketmq_topic_create_execution_time_milliseconds",
    "Time to create or change a topic.",
    _in_ms(counters.ROCKETMQ_CREATE_SECONDS),
    lambda s: _durations(s, _CREATE_TOPIC),
    **_OF_BROKER,
)
_broker.histogram(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    "Time to create or change a consumer group.",
    _in_ms(counters.ROCKETMQ_CREATE_SECONDS),
    lambda s: _durations(s, _CREATE_GROUP),
    **_OF_BROKER,
)
_broker.histogram(
    "rocketmq_rpc_latency_milliseconds",
    "Time to respond to requests; that of a held pull includes its wait.",
    _in_ms(counters.ROCKETMQ_RPC_SECONDS),
    _latencies,
    **_OF_BROKER,
    protocol_type=("remoting",),
    request_code=ANY,
    response_code=ANY,
    is_long_polling=("false",),
    result=RPC_RESULTS,
)
_broker.gauge(
    "rocketmq_producer_connections",
    "Producers; version is RocketMQ's number of it.",
    _producers,
    **_OF_BROKER,
    language=ANY,
    version=ANY,
    protocol_type=("remoting",),
)
_broker.gauge(
    "rocketmq_consumer_connections",
    "Consumers; version is RocketMQ's number of it.",
    _online,
    **_OF_BROKER,
    consumer_group=ANY,
    language=ANY,
    version=ANY,
    consume_mode=tuple(CONSUME_MODES.values()),
    protocol_type=("remoting",),
    is_system=_BOOLEANS,
)

_messages = Section("Messages")
_messages.counter(
    "rocketmq_messages_in_total",
    "Messages accepted.",
    lambda s: ((labels, size.count) for labels, size in s.once(_message_sizes)),
    **_OF_MESSAGES_IN,
)
_messages.counter(
    "rocketmq_throughput_in_total",
    "Bytes of messages accepted.",
    lambda s: ((labels, int(size.total)) for labels, size in s.once(_message_sizes)),
    **_OF_MESSAGES_IN,
)
_messages.histogram(
    "rocketmq_message_size",
    "Size of messages in bytes.",
    counters.ROCKETMQ_MESSAGE_BYTES,
    lambda s: s.budget.fit(s.once(_message_sizes), 9),
    **_OF_MESSAGES_IN,
)
_messages.counter(
    "rocketmq_messages_out_total",
    "Messages delivered.",
    lambda s: (((topic, group, *_flags(group, topic)), out.messages_out) for (topic, group), out in s.consumed),
    **_OF_MESSAGES_OUT,
)
_messages.counter(
    "rocketmq_throughput_out_total",
    "Bytes of messages delivered.",
    lambda s: (((topic, group, *_flags(group, topic)), out.bytes_out) for (topic, group), out in s.consumed),
    **_OF_MESSAGES_OUT,
)

_consumers = Section("Consumer groups")
_consumers.gauge(
    "rocketmq_consumer_lag_messages",
    "Messages that are not committed.",
    lambda s: _with_flags(_lag_messages(s)),
    **_OF_LAG,
)
_consumers.gauge(
    "rocketmq_consumer_lag_latency_milliseconds",
    "Age of the oldest message that is not committed.",
    lambda s: _with_flags(_lag_latencies(s)),
    **_OF_LAG,
)
_consumers.gauge(
    "rocketmq_consumer_inflight_messages",
    "Messages pulled and not committed.",
    lambda s: _with_flags(in_flight_messages(s, s.once(_group_topics))),
    **_OF_LAG,
)
_consumers.gauge(
    "rocketmq_consumer_ready_messages",
    "Messages that could be pulled now.",
    lambda s: _with_flags(ready_messages(s, s.once(_group_topics))),
    **_OF_LAG,
)
_consumers.counter(
    "rocketmq_send_to_dlq_messages_total",
    "Messages that became dead letters.",
    _dead_letters,
    **_OF_BROKER,
    consumer_group=ANY,
    topic=ANY,
    is_system=_BOOLEANS,
)

_transactions = Section("Transactions")
_transactions.gauge(
    "rocketmq_half_messages",
    "Half messages not decided.",
    lambda s: {topic: s.open_transactions.get(topic, 0) for topic in s.once(_transaction_topics)},
    **_OF_BROKER,
    topic=ANY,
)
_transactions.counter(
    "rocketmq_commit_messages_total",
    "Transactions committed.",
    lambda s: {topic: s.counters.retry.transactions[topic, "commit"] for topic in s.once(_transaction_topics)},
    **_OF_BROKER,
    topic=ANY,
)
_transactions.counter(
    "rocketmq_rollback_messages_total",
    "Transactions rolled back.",
    lambda s: {topic: s.counters.retry.transactions[topic, "rollback"] for topic in s.once(_transaction_topics)},
    **_OF_BROKER,
    topic=ANY,
)
_transactions.histogram(
    "rocketmq_finish_message_latency_milliseconds",
    "From a half message to its commit. RocketMQ's buckets have the same times, in seconds.",
    _in_ms(counters.FINISH_SECONDS),
    _finished,
    **_OF_BROKER,
    topic=ANY,
)

_store = Section("Store")
_store.gauge(
    "rocketmq_storage_size_bytes",
    "Bytes of the store on disk.",
    lambda s: sum(s.sources.disk.size_bytes.values()),
    **_OF_STORE,
)
_store.gauge(
    "rocketmq_storage_flush_behind_bytes",
    "Bytes written and not synced yet.",
    lambda s: 0 if s.sources.store is None else s.sources.store.flush_behind_bytes,
    **_OF_STORE,
)
_store.gauge(
    "rocketmq_storage_dispatch_behind_bytes",
    "Bytes in the log and not in the queues yet.",
    lambda s: 0 if s.sources.store is None else s.sources.store.dispatch_behind_bytes,
    **_OF_STORE,
)
_store.gauge(
    "rocketmq_storage_message_reserve_time_milliseconds",
    "Age of the oldest message.",
    lambda s: s.oldest_message_ms,
    **_OF_STORE,
)

_timers = Section("Delayed messages")
_timers.gauge(
    "rocketmq_timing_messages",
    "Delayed messages that wait.",
    _of_delays(lambda s, of: {topic: max(0, of.stats.waiting[topic]) for topic in s.once(_delay_topics)}),
    **_OF_STORE,
    topic=ANY,
)
_timers.gauge(
    "rocketmq_timer_enqueue_lag",
    "Delayed messages that are not in the timer wheel yet.",
    _of_delays(lambda _, of: of.timers_behind()),
    **_OF_STORE,
)
_timers.gauge(
    "rocketmq_timer_dequeue_latency_milliseconds",
    "How late the most overdue delayed message is.",
    _of_delays(lambda _, of: round(of.due_s() * 1000)),
    **_OF_STORE,
)
_timers.counter(
    "rocketmq_timer_enqueue_total",
    "Delayed messages accepted.",
    _of_delays(lambda s, _: _accepted_timers(s)),
    **_OF_STORE,
    topic=ANY,
)
_timers.counter(
    "rocketmq_timer_dequeue_total",
    "Delayed messages delivered.",
    _of_delays(lambda s, of: {topic: of.stats.delivered[topic] for topic in s.once(_delay_topics)}),
    **_OF_STORE,
    topic=ANY,
)
_timers.histogram(
    "rocketmq_delay_message_latency_seconds",
    "How far ahead messages with a deliver time were sent.",
    counters.AHEAD_SECONDS,
    _of_delays(lambda s, of: dict(s.budget.fit(list(of.stats.ahead_seconds.items()), 9))),
    **_OF_STORE,
    topic=ANY,
)

ROCKETMQ_METRICS: dict[str, MetricSpec] = by_name((_broker, _messages, _consumers, _transactions, _store, _timers))
