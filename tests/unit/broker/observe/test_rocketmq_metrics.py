"""The series of /metrics/rocketmq, by the names of RocketMQ 5.3's Prometheus exporter."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.groups.client_table import ClientChannel
from reput_broker.observe.counters import PULL_WAIT_CODE
from reput_broker.observe.exposition import TEXT
from reput_broker.observe.health import BrokerState
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.pages import MetricsPages
from reput_broker.observe.rocketmq_catalogue import ROCKETMQ_METRICS, common_labels
from reput_protocol.codes import LanguageCode, RequestCode, ResponseCode
from reput_protocol.commands.group import ConsumerData
from support.scrapes import Page, a_few_figures, check, fake_store, read, value

BROKER = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
STORE = {**BROKER, "storage_type": "local", "storage_medium": "disk"}
EXPORTED = (
    "processor_watermark", "broker_permission", "topic_number", "consumer_group_number", "messages_in_total",
    "throughput_in_total", "messages_out_total", "throughput_out_total", "message_size",
    "topic_create_execution_time_milliseconds", "consumer_group_create_execution_time_milliseconds",
    "producer_connections", "consumer_connections", "consumer_lag_messages", "consumer_inflight_messages",
    "consumer_ready_messages", "consumer_lag_latency_milliseconds", "send_to_dlq_messages_total",
    "commit_messages_total", "rollback_messages_total", "half_messages", "rpc_latency_milliseconds",
    "storage_size_bytes", "storage_flush_behind_bytes", "storage_dispatch_behind_bytes",
    "storage_message_reserve_time_milliseconds", "timing_messages", "timer_enqueue_lag",
    "timer_dequeue_latency_milliseconds", "timer_enqueue_total", "timer_dequeue_total",
    "delay_message_latency_seconds", "finish_message_latency_milliseconds",
)  # fmt: skip
"""What RocketMQ exports, but for consumer_queueing_latency_milliseconds, timer_enqueue_latency_milliseconds,
timer_dequeue_lag, timer_message_snapshot, and what POP and RocksDB have."""


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[MetricsSources]:
    with a_few_figures(tmp_path) as found:
        yield found


def rendered(sources: MetricsSources) -> str:
    pages = MetricsPages(ROCKETMQ_METRICS, sources, common_labels(sources.config))
    return trio.run(pages.render, TEXT).decode()


def page_of(sources: MetricsSources) -> Page:
    return read(rendered(sources))


def busy(sources: MetricsSources) -> None:
    """Let a little of everything happen."""
    counters, groups = sources.counters, sources.groups
    assert groups is not None
    assert sources.delays is not None
    counters.topics["orders"].count_in(4, 4 * 2000)
    counters.topics["orders"].count_in(2, 200, "ordered")
    counters.topics["orders"].count_in(1, 600_000, "delayed")
    counters.topics["%RETRY%billing"].count_in(1, 500)
    counters.groups["orders", "billing"].count_out(3, 6000)
    counters.retry.dead_letters["billing", "orders"] += 1
    counters.retry.committed("orders", 7.5)
    counters.retry.transactions["orders", "rollback"] += 2
    sources.delays.stats.note_sent_ahead("orders", 120.0)
    sources.delays.stats.delivered["orders"] += 3
    send = counters.requests[0, RequestCode.SEND_MESSAGE_V2]
    for seconds, code in ((0.002, 0), (0.004, 0), (0.5, ResponseCode.SYSTEM_ERROR)):
        send.begin()
        send.done(code, seconds)
    counters.requests[0, RequestCode.UPDATE_AND_CREATE_TOPIC].done(0, 0.05)
    java = ClientChannel(object(), "a", LanguageCode.JAVA, 479, 0.0)  # type: ignore[arg-type]
    groups.online.register(java, ConsumerData("billing"), 0.0)
    groups.producers.register("shop", java, 0.0)
    groups.progress.pulled("billing", "orders", 2, 70, 85, "peer")
    groups.lag.seconds["billing", "orders"] = 12.5


def test_the_page_has_rocketmqs_names(sources: MetricsSources) -> None:
    assert set(ROCKETMQ_METRICS) == {f"rocketmq_{name}" for name in EXPORTED}
    busy(sources)
    assert check(rendered(sources), ROCKETMQ_METRICS, "rocketmq_") == set(ROCKETMQ_METRICS)


def test_messages_by_type(sources: MetricsSources) -> None:
    busy(sources)
    page = page_of(sources)
    for kind, messages, size in (("normal", 4, 8000), ("fifo", 2, 200), ("delay", 1, 600_000)):
        labels = {**BROKER, "topic": "orders", "message_type": kind, "is_system": "false"}
        assert value(page, "rocketmq_messages_in_total", **labels) == messages
        assert value(page, "rocketmq_throughput_in_total", **labels) == size
        assert value(page, "rocketmq_message_size_sum", **labels) == size
    labels = {**BROKER, "topic": "orders", "message_type": "delay", "is_system": "false"}
    assert value(page, "rocketmq_message_size_bucket", **labels, le="524288.0") == 0
    assert value(page, "rocketmq_message_size_bucket", **labels, le="1.048576e+06") == 1
    out = {**BROKER, "topic": "orders", "consumer_group": "billing", "is_retry": "false", "is_system": "false"}
    assert value(page, "rocketmq_messages_out_total", **out) == 3
    assert value(page, "rocketmq_throughput_out_total", **out) == 6000


def test_groups(sources: MetricsSources) -> None:
    busy(sources)
    page = page_of(sources)
    labels = {**BROKER, "consumer_group": "billing", "topic": "orders", "is_retry": "false", "is_system": "false"}
    assert value(page, "rocketmq_consumer_lag_messages", **labels) == 30
    assert value(page, "rocketmq_consumer_lag_latency_milliseconds", **labels) == 12_500
    assert value(page, "rocketmq_consumer_inflight_messages", **labels) == 15
    assert value(page, "rocketmq_consumer_ready_messages", **labels) == 15
    client = {**BROKER, "language": "java", "version": "479", "protocol_type": "remoting"}
    assert value(page, "rocketmq_producer_connections", **client) == 1
    client |= {"consumer_group": "billing", "consume_mode": "push", "is_system": "false"}
    assert value(page, "rocketmq_consumer_connections", **client) == 1
    assert value(
        page,
        "rocketmq_send_to_dlq_messages_total",
        **BROKER, consumer_group="billing", topic="orders", is_system="false",
    ) == 1  # fmt: skip


def test_requests(sources: MetricsSources) -> None:
    busy(sources)
    pull, waiting = (sources.counters.requests[0, code] for code in (RequestCode.PULL_MESSAGE, PULL_WAIT_CODE))
    for traffic in (pull, waiting, pull):  # one is held
        traffic.begin()
    page = page_of(sources)
    send = {
        **BROKER, "protocol_type": "remoting", "request_code": "send_message_v2", "response_code": "success",
        "is_long_polling": "false", "result": "success",
    }  # fmt: skip
    assert value(page, "rocketmq_rpc_latency_milliseconds_bucket", **send, le="3.0") == 1
    assert value(page, "rocketmq_rpc_latency_milliseconds_bucket", **send, le="5.0") == 2
    assert value(page, "rocketmq_rpc_latency_milliseconds_sum", **send) == pytest.approx(6.0)
    send |= {"response_code": "system_error", "result": "process_request_failed"}
    assert value(page, "rocketmq_rpc_latency_milliseconds_count", **send) == 1
    assert value(page, "rocketmq_processor_watermark", **BROKER, processor="pull") == 1
    name = "rocketmq_topic_create_execution_time_milliseconds"
    assert value(page, f"{name}_bucket", **BROKER, le="100.0") == 1
    assert value(page, f"{name}_sum", **BROKER) == 50


def test_transactions_delays_and_the_store(sources: MetricsSources) -> None:
    busy(sources)
    page = page_of(sources)
    assert value(page, "rocketmq_commit_messages_total", **BROKER, topic="orders") == 1
    assert value(page, "rocketmq_rollback_messages_total", **BROKER, topic="orders") == 2
    name = "rocketmq_finish_message_latency_milliseconds"
    assert value(page, f"{name}_bucket", **BROKER, topic="orders", le="5000.0") == 0
    assert value(page, f"{name}_bucket", **BROKER, topic="orders", le="60000.0") == 1
    assert value(page, "rocketmq_timing_messages", **STORE, topic="orders") == 1
    assert value(page, "rocketmq_timer_enqueue_total", **STORE, topic="orders") == 1
    assert value(page, "rocketmq_timer_dequeue_total", **STORE, topic="orders") == 3
    assert value(page, "rocketmq_delay_message_latency_seconds_sum", **STORE, topic="orders") == 120
    assert value(page, "rocketmq_storage_flush_behind_bytes", **STORE) == 5


def test_the_permission_shows_whether_messages_are_accepted(sources: MetricsSources) -> None:
    for state, permission in ((BrokerState.RUNNING, 6), (BrokerState.READONLY, 4), (BrokerState.DRAINING, 4)):
        sources.health.state = state
        assert value(page_of(sources), "rocketmq_broker_permission", **BROKER) == permission


def test_the_limit_of_series_holds(sources: MetricsSources) -> None:
    sources.config = BrokerConfig(metrics={"max_series": 200})
    sources.store = fake_store()
    assert sources.offsets is not None
    for number in range(200):
        sources.counters.topics[f"t{number}"].count_in(1, 1)
        sources.offsets.commit(f"g{number}", "orders", 0, 1)
    of_names = [labels for _, labels in page_of(sources) if "topic" in dict(labels)]
    assert 100 < len(of_names) <= 200


def test_a_broker_that_is_recovering_has_a_page(sources: MetricsSources) -> None:
    sources.forget_tenure()
    page = page_of(sources)
    assert value(page, "rocketmq_topic_number", **BROKER) == 0
    assert value(page, "rocketmq_broker_permission", **BROKER) == 4
