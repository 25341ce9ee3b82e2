"""The metrics of /metrics/rocketmq, as RocketMQ 5.3's Prometheus exporter names them.

The exporter appends the declared unit to a name (`rocketmq_consumer_lag_latency_milliseconds`); metrics without a
declared unit have none, although some count bytes (`rocketmq_throughput_in_total`, `rocketmq_message_size`).
"""

from __future__ import annotations

from reput_broker.observe.catalogue import ANY, LabelValues, MetricSpec, Section, by_name
from reput_broker.observe.counters import (
    AHEAD_SECONDS,
    FINISH_SECONDS,
    ROCKETMQ_CREATE_SECONDS,
    ROCKETMQ_MESSAGE_BYTES,
    ROCKETMQ_RPC_SECONDS,
)

PROCESSORS = (
    "send", "async_put", "pull", "lite_pull", "ack", "query_message", "client_manager", "heartbeat", "transaction",
    "consumer_manager", "admin", "reply",
)  # fmt: skip
MESSAGE_TYPES = {"normal": "normal", "ordered": "fifo", "delayed": "delay", "transactional": "transaction"}
"""RocketMQ's name of a kind; messages of another kind are `normal`."""
CONSUME_MODES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
RPC_RESULTS = ("success", "process_request_failed")

_BOOLEANS = ("true", "false")
_TYPES = tuple(dict.fromkeys(MESSAGE_TYPES.values()))
_OF_BROKER: dict[str, LabelValues] = {"cluster": ANY, "node_type": ("broker",), "node_id": ANY}
_OF_STORE = {**_OF_BROKER, "storage_type": ("local",), "storage_medium": ("disk",)}
_OF_LAG = {**_OF_BROKER, "consumer_group": ANY, "topic": ANY, "is_retry": _BOOLEANS, "is_system": _BOOLEANS}
_OF_MESSAGES_IN = {**_OF_BROKER, "topic": ANY, "message_type": _TYPES, "is_system": _BOOLEANS}
_OF_MESSAGES_OUT = {
    **_OF_BROKER,
    "topic": ANY,
    "consumer_group": ANY,
    "is_retry": _BOOLEANS,
    "is_system": _BOOLEANS,
}


def _in_ms(seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(bound * 1000 for bound in seconds)


_broker = Section("Broker")
_broker.gauge(
    "rocketmq_processor_watermark", "Requests read and not answered yet.", **_OF_BROKER, processor=PROCESSORS
)
_broker.gauge("rocketmq_broker_permission", "6, or 4 while no messages are accepted.", **_OF_BROKER)
_broker.gauge("rocketmq_topic_number", "Topics.", **_OF_BROKER)
_broker.gauge("rocketmq_consumer_group_number", "Consumer groups.", **_OF_BROKER)
_broker.histogram(
    "rocketmq_topic_create_execution_time_milliseconds",
    "Time to create or change a topic.",
    _in_ms(ROCKETMQ_CREATE_SECONDS),
    **_OF_BROKER,
)
_broker.histogram(
    "rocketmq_consumer_group_create_execution_time_milliseconds",
    "Time to create or change a consumer group.",
    _in_ms(ROCKETMQ_CREATE_SECONDS),
    **_OF_BROKER,
)
_broker.histogram(
    "rocketmq_rpc_latency_milliseconds",
    "Time to answer requests; that of a held pull includes its wait.",
    _in_ms(ROCKETMQ_RPC_SECONDS),
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
    **_OF_BROKER,
    language=ANY,
    version=ANY,
    protocol_type=("remoting",),
)
_broker.gauge(
    "rocketmq_consumer_connections",
    "Consumers; version is RocketMQ's number of it.",
    **_OF_BROKER,
    consumer_group=ANY,
    language=ANY,
    version=ANY,
    consume_mode=tuple(CONSUME_MODES.values()),
    protocol_type=("remoting",),
    is_system=_BOOLEANS,
)

_messages = Section("Messages")
_messages.counter("rocketmq_messages_in_total", "Messages accepted.", **_OF_MESSAGES_IN)
_messages.counter("rocketmq_throughput_in_total", "Bytes of messages accepted.", **_OF_MESSAGES_IN)
_messages.histogram(
    "rocketmq_message_size", "Size of messages in bytes.", ROCKETMQ_MESSAGE_BYTES, **_OF_MESSAGES_IN
)
_messages.counter("rocketmq_messages_out_total", "Messages delivered.", **_OF_MESSAGES_OUT)
_messages.counter("rocketmq_throughput_out_total", "Bytes of messages delivered.", **_OF_MESSAGES_OUT)

_consumers = Section("Consumer groups")
_consumers.gauge("rocketmq_consumer_lag_messages", "Messages that are not committed.", **_OF_LAG)
_consumers.gauge(
    "rocketmq_consumer_lag_latency_milliseconds",
    "Age of the oldest message that is not committed.",
    **_OF_LAG,
)
_consumers.gauge("rocketmq_consumer_inflight_messages", "Messages pulled and not committed.", **_OF_LAG)
_consumers.gauge("rocketmq_consumer_ready_messages", "Messages that could be pulled now.", **_OF_LAG)
_consumers.counter(
    "rocketmq_send_to_dlq_messages_total",
    "Messages that became dead letters.",
    **_OF_BROKER,
    consumer_group=ANY,
    topic=ANY,
    is_system=_BOOLEANS,
)

_transactions = Section("Transactions")
_transactions.gauge("rocketmq_half_messages", "Half messages not decided.", **_OF_BROKER, topic=ANY)
_transactions.counter("rocketmq_commit_messages_total", "Transactions committed.", **_OF_BROKER, topic=ANY)
_transactions.counter(
    "rocketmq_rollback_messages_total", "Transactions rolled back.", **_OF_BROKER, topic=ANY
)
_transactions.histogram(
    "rocketmq_finish_message_latency_milliseconds",
    "From a half message to its commit. RocketMQ's buckets have the same times, in seconds.",
    _in_ms(FINISH_SECONDS),
    **_OF_BROKER,
    topic=ANY,
)

_store = Section("Store")
_store.gauge("rocketmq_storage_size_bytes", "Bytes of the store on disk.", **_OF_STORE)
_store.gauge("rocketmq_storage_flush_behind_bytes", "Bytes written and not synced yet.", **_OF_STORE)
_store.gauge(
    "rocketmq_storage_dispatch_behind_bytes", "Bytes in the log and not in the queues yet.", **_OF_STORE
)
_store.gauge("rocketmq_storage_message_reserve_time_milliseconds", "Age of the oldest message.", **_OF_STORE)

_timers = Section("Delayed messages")
_timers.gauge("rocketmq_timing_messages", "Delayed messages that wait.", **_OF_STORE, topic=ANY)
_timers.gauge(
    "rocketmq_timer_enqueue_lag", "Delayed messages that are not in the timer wheel yet.", **_OF_STORE
)
_timers.gauge(
    "rocketmq_timer_dequeue_latency_milliseconds",
    "How late the most overdue delayed message is.",
    **_OF_STORE,
)
_timers.counter("rocketmq_timer_enqueue_total", "Delayed messages accepted.", **_OF_STORE, topic=ANY)
_timers.counter("rocketmq_timer_dequeue_total", "Delayed messages delivered.", **_OF_STORE, topic=ANY)
_timers.histogram(
    "rocketmq_delay_message_latency_seconds",
    "How far ahead messages with a deliver time were sent.",
    AHEAD_SECONDS,
    **_OF_STORE,
    topic=ANY,
)

ROCKETMQ_METRICS: dict[str, MetricSpec] = by_name(
    (_broker, _messages, _consumers, _transactions, _store, _timers)
)
