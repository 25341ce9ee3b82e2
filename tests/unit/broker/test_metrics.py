import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from reput_broker.config.model import BrokerConfig
from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.lag import LagFigures
from reput_broker.groups.progress import GroupProgress
from reput_broker.observe.counters import Counters, DelayStats, NameServerTraffic
from reput_broker.observe.delivery_metrics import DelaySources, GroupSources
from reput_broker.observe.families import METRICS
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.metrics import MetricsCollector, MetricsSources
from reput_broker.observe.pages import render_page
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import ConsumerData
from tenures import REPLICATION


class FakeStore:
    """Four queues of one topic, messages 10 to 99 in each."""

    flush_behind_bytes = 5
    commit_behind_bytes = 3
    file_waits = 2
    dispatch_behind_bytes = 6
    min_physical_offset = 1000
    max_physical_offset = 9000

    def __init__(self, queues: int = 4) -> None:
        self._queues = [("orders", queue_id) for queue_id in range(queues)]

    def queues(self) -> list[tuple[str, int]]:
        return self._queues

    def min_offset_in_queue(self, _topic: str, _queue_id: int, /) -> int:
        return 10

    def max_offset_in_queue(self, _topic: str, _queue_id: int, /) -> int:
        return 100


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[MetricsSources]:
    topics = TopicConfigManager(tmp_path / "topics.json", clock_ms=lambda: 0)
    topics.load()
    topics.create_on_send("orders")
    topics.create_on_send("silent")
    offsets = ConsumerOffsetManager(tmp_path / "consumerOffset.json", clock_ms=lambda: 0)
    offsets.load()
    offsets.commit("billing", "orders", 2, 70)
    settings = SubscriptionGroupManager(tmp_path / "subscriptionGroup.json", clock_ms=lambda: 0)
    settings.load()
    settings.find_or_create("idle")
    groups = GroupSources(settings, ConsumerGroups(), GroupProgress(), LagFigures())
    delays = DelayStats()
    delays.waiting["orders"] += 1
    counters = Counters()
    counters.name_servers["names:9876"] = NameServerTraffic()
    yield MetricsSources(
        BrokerConfig(),
        counters,
        Health(),
        topics=topics,
        offsets=offsets,
        store=FakeStore(),
        groups=groups,
        delays=DelaySources(delays, lambda: 0.0),
        replication=lambda: REPLICATION,
    )
    offsets.close()


Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def page_of(sources: MetricsSources) -> Page:
    text = generate_latest(MetricsCollector(sources)).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(text)
        for sample in family.samples
    }


def value(page: Page, name: str, **labels: str) -> float:
    return page[name, frozenset(labels.items())]


def rendered(sources: MetricsSources, accept: str = "") -> tuple[str, str]:
    page, content_type = trio.run(render_page, MetricsCollector(sources), accept)
    return page.decode(), content_type


def test_every_metric_of_the_table_is_on_the_page_with_its_type_and_help(sources: MetricsSources) -> None:
    sources.counters.group("orders", "billing").count_out(1, 1)
    sources.counters.request(0, RequestCode.PULL_MESSAGE).begin()
    sources.counters.retry.transactions["orders", "commit"] += 1
    families = {family.name: family for family in MetricsCollector(sources).collect()}
    for spec in METRICS.values():
        family = families[spec.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (spec.type, spec.help)
        assert family.samples, spec.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(spec.labels), spec.name
    assert all(
        name in METRICS or f"{name}_total" in METRICS for name in families if name.startswith("reput_")
    )


def test_delayed_messages_are_shown_by_topic_and_by_what_became_of_them(sources: MetricsSources) -> None:
    assert sources.delays is not None
    sources.delays.due_s = lambda: 2.5
    stats = sources.delays.stats
    stats.waiting.update(orders=2, gone=1, negative=-3)
    stats.delivered.update(orders=7, gone_too=1)
    stats.cancelled["orders"] += 4
    stats.dropped["lost"] += 2
    for seconds in (0.0, 0.02, 0.02, 90.0):
        stats.error_seconds.observe(seconds)
    page = page_of(sources)
    assert value(page, "reput_delayed_messages", topic="orders") == 3
    assert value(page, "reput_delayed_messages", topic="gone") == 1, "messages wait for it"
    assert value(page, "reput_delayed_delivered_total", topic="orders") == 7
    assert value(page, "reput_delayed_cancelled_total", topic="orders") == 4
    assert value(page, "reput_delayed_dropped_total", reason="lost") == 2
    assert value(page, "reput_delayed_dropped_total", reason="refused") == 0
    assert value(page, "reput_delayed_due_seconds") == 2.5
    assert value(page, "reput_delay_error_seconds_bucket", le="0.05") == 3
    assert value(page, "reput_delay_error_seconds_count") == 4
    shown = {dict(labels)["topic"] for name, labels in page if name == "reput_delayed_delivered_total"}
    assert shown == {"orders", "gone"}, "of topics that are gone only those for which messages wait"


def test_names_follow_the_rules() -> None:
    units = ("_seconds", "_bytes", "_messages", "_ratio", "_info", "_series", "_offset")
    for spec in METRICS.values():
        assert re.fullmatch(r"reput_[a-z_]+", spec.name)
        assert spec.name.endswith("_total") == (spec.type == "counter"), spec.name
        assert not re.search(r"milli|percent|_ms\b", spec.name)
        assert spec.help.endswith(".")
        if spec.type == "histogram":
            assert spec.name.endswith(units), spec.name


def test_known_labels_exist_with_zero_before_anything_happens() -> None:
    page = page_of(MetricsSources(BrokerConfig(), Counters(), Health()))
    assert value(page, "reput_messages_rejected_total", reason="too_large") == 0
    assert value(page, "reput_flush_errors_total", part="commitlog") == 0
    assert value(page, "reput_connections_closed_total", listener="main", reason="slow_reader") == 0
    assert value(page, "reput_produce_duration_seconds_count", ack="flushed") == 0
    assert value(page, "reput_requests_total", protocol="msgpack", op="put_message", code="ok") == 0
    assert value(page, "reput_backpressure_seconds_total", cause="memory") == 0


def test_a_topic_without_traffic_is_there_with_zero(sources: MetricsSources) -> None:
    page = page_of(sources)
    assert value(page, "reput_messages_in_total", topic="silent", kind="normal") == 0
    assert not any(dict(labels).get("topic") == "TBW102" for _, labels in page)


def test_counters_are_shown(sources: MetricsSources) -> None:
    counters = sources.counters
    counters.topic("orders").count_in(64, 64_000)
    counters.topic("%RETRY%billing").count_in(1, 10)
    counters.group("orders", "billing").count_out(32, 32_000)
    counters.produce_seconds["flushed"].observe(0.002)
    request = counters.request(0x4D, RequestCode.PUT_MESSAGE)
    request.begin()
    request.begin()
    request.done(ResponseCode.TOPIC_NOT_EXIST, 0.01)
    sources.health.state = BrokerState.RUNNING
    page = page_of(sources)
    assert value(page, "reput_messages_in_total", topic="orders", kind="normal") == 64
    assert value(page, "reput_messages_in_total", topic="%RETRY%billing", kind="retry") == 1
    assert value(page, "reput_bytes_in_total", topic="orders") == 64_000
    assert value(page, "reput_messages_out_total", topic="orders", group="billing", kind="normal") == 32
    assert value(page, "reput_message_size_bytes_bucket", topic="orders", le="256.0") == 0
    assert value(page, "reput_message_size_bytes_bucket", topic="orders", le="1024.0") == 64
    assert value(page, "reput_message_size_bytes_sum", topic="orders") == 64_000
    assert value(page, "reput_produce_duration_seconds_bucket", ack="flushed", le="0.001") == 0
    assert value(page, "reput_produce_duration_seconds_bucket", ack="flushed", le="0.0025") == 1
    assert value(page, "reput_produce_duration_seconds_bucket", ack="flushed", le="+Inf") == 1
    assert (
        value(page, "reput_requests_total", protocol="msgpack", op="put_message", code="topic_not_exist") == 1
    )
    assert value(page, "reput_requests_inflight", protocol="msgpack", op="put_message") == 1
    assert value(page, "reput_ready") == 1
    assert value(page, "reput_state", state="running") == 1
    assert value(page, "reput_state", state="recovering") == 0


def test_lag_is_what_the_group_has_not_committed(sources: MetricsSources) -> None:
    page = page_of(sources)
    assert value(page, "reput_consumer_committed_offset", group="billing", topic="orders", queue="2") == 70
    assert value(page, "reput_consumer_lag_messages", group="billing", topic="orders", queue="2") == 30
    assert value(page, "reput_queue_start_offset", topic="orders", queue="0") == 10
    assert value(page, "reput_queue_end_offset", topic="orders", queue="0") == 100
    assert value(page, "reput_storage_start_offset_bytes") == 1000
    assert value(page, "reput_dispatch_behind_bytes") == 6


def test_the_age_of_the_oldest_message_grows_between_two_looks(sources: MetricsSources) -> None:
    assert value(page_of(sources), "reput_oldest_message_seconds") == 0, "nobody has looked, or there is none"
    now_ms = 1_000_000
    sources.clock_ms = lambda: now_ms
    sources.disk.oldest_store_timestamp_ms = 400_000
    assert value(page_of(sources), "reput_oldest_message_seconds") == 600
    now_ms += 500
    assert value(page_of(sources), "reput_oldest_message_seconds") == 600.5
    now_ms = 0
    assert value(page_of(sources), "reput_oldest_message_seconds") == 0, "the clock was set back"


def test_queues_are_left_out_first_and_counted(sources: MetricsSources) -> None:
    sources.config = BrokerConfig(metrics={"max_series": 100})
    sources.store = FakeStore(queues=1000)
    page = page_of(sources)
    queues = [labels for name, labels in page if name == "reput_queue_end_offset"]
    assert 0 < len(queues) < 50
    assert value(page, "reput_messages_in_total", topic="orders", kind="normal") == 0
    assert value(page, "reput_consumer_lag_messages", group="billing", topic="orders", queue="2") == 30
    assert value(page, "reput_metrics_dropped_series") == 2 * (1000 - len(queues))


def test_the_page_in_pieces_is_the_page_in_one(sources: MetricsSources) -> None:
    sources.store = FakeStore(queues=1000)
    for number in range(100):
        sources.counters.topic(f"t{number}").count_in(1, 1)
    text, content_type = rendered(sources)
    assert content_type.startswith("text/plain; version=0.0.4")
    whole = {
        family.name: sorted(map(str, family.samples))
        for family in parse_text(generate_latest(MetricsCollector(sources)).decode())
        if family.name.startswith("reput_")
    }
    pieces = {
        family.name: sorted(map(str, family.samples))
        for family in parse_text(text)
        if family.name.startswith("reput_")
    }
    assert pieces == whole
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))


def test_openmetrics_for_those_who_ask(sources: MetricsSources) -> None:
    sources.store = FakeStore(queues=1000)
    text, content_type = rendered(sources, "application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    names = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {name.removesuffix("_total") for name in METRICS} - names <= {
        "reput_messages_out",
        "reput_bytes_out",
        "reput_request_duration_seconds",
    }


def test_a_large_page_does_not_block_the_loop(sources: MetricsSources) -> None:
    sources.store = FakeStore(queues=9000)
    turns = 0
    longest_s = 0.0

    async def others() -> None:
        nonlocal turns, longest_s
        while True:
            started_at = time.perf_counter()
            await trio.lowlevel.checkpoint()
            turns += 1
            longest_s = max(longest_s, time.perf_counter() - started_at)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            page, _ = await render_page(MetricsCollector(sources), "")
            assert page.count(b"\n") > 18_000
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns > 70  # 18,000 samples in pieces of 256


def test_a_group_has_its_series_from_its_beginning(sources: MetricsSources) -> None:
    page = page_of(sources)
    for group in ("idle", "billing"):
        assert value(page, "reput_consumer_members", group=group) == 0
        assert value(page, "reput_subscription_conflicts_total", group=group) == 0
        for reason in ("join", "leave", "timeout", "topic_change"):
            assert value(page, "reput_rebalances_total", group=group, reason=reason) == 0
    assert not any("CID_RMQ_SYS_TRANS" in str(labels) for _, labels in page)


def test_a_group_s_members_changes_and_progress(sources: MetricsSources) -> None:
    groups, counters = sources.groups, sources.counters
    assert groups is not None
    for client_id in ("a", "b", "b"):  # b has reconnected, and its first connection has not ended yet
        channel = ClientChannel(object(), client_id, 0, 0, 0.0)  # type: ignore[arg-type]
        groups.online.register(channel, ConsumerData("billing"), 0.0)
    counters.note_rebalance("billing", "join")
    counters.note_subscription_conflict("billing")
    groups.progress.pulled("billing", "orders", 2, 85, "peer")
    groups.lag.seconds["billing", "orders"] = 12.5
    groups.lag.looked_up_at_s = 1_700_000_000.0
    page = page_of(sources)
    assert value(page, "reput_consumer_members", group="billing") == 2
    assert value(page, "reput_rebalances_total", group="billing", reason="join") == 1
    assert value(page, "reput_subscription_conflicts_total", group="billing") == 1
    assert value(page, "reput_consumer_lag_seconds", group="billing", topic="orders") == 12.5
    assert value(page, "reput_consumer_lag_refresh_time_seconds") == 1_700_000_000
    assert value(page, "reput_consumer_inflight_messages", group="billing", topic="orders") == 15
    assert value(page, "reput_consumer_ready_messages", group="billing", topic="orders") == 15
    counters.forget_group("billing")
    assert value(page_of(sources), "reput_rebalances_total", group="billing", reason="join") == 0


def test_replies(sources: MetricsSources) -> None:
    assert value(page_of(sources), "reput_replies_total", result="no_requester") == 0
    sources.counters.replies["delivered"] += 3
    page = page_of(sources)
    for result, number in {"delivered": 3, "no_requester": 0, "not_taken": 0}.items():
        assert value(page, "reput_replies_total", result=result) == number


def test_retries_dead_letters_and_transactions(sources: MetricsSources) -> None:
    """A group's series are there with 0 from its first offset on, so that an alert sees the first dead letter."""
    before = page_of(sources)
    assert value(before, "reput_dead_letters_total", group="billing", topic="orders") == 0
    assert value(before, "reput_retries_total", group="billing", topic="orders") == 0
    counts = sources.counters.retry
    counts.retries["billing", "orders"] += 3
    counts.dead_letters["billing", "orders"] += 1
    counts.transactions["orders", "commit"] += 2
    counts.checks["orders", "no_producer"] += 4
    sources.open_transactions = lambda: {"orders": 5}
    page = page_of(sources)
    assert value(page, "reput_retries_total", group="billing", topic="orders") == 3
    assert value(page, "reput_dead_letters_total", group="billing", topic="orders") == 1
    assert value(page, "reput_transactions_open", topic="orders") == 5
    results = {"commit": 2, "rollback": 0, "timeout": 0}
    for result, number in results.items():
        assert value(page, "reput_transactions_total", topic="orders", result=result) == number
    answers = {"commit": 0, "rollback": 0, "unknown": 0, "no_producer": 4}
    for result, number in answers.items():
        assert value(page, "reput_transaction_checks_total", topic="orders", result=result) == number
    sources.counters.forget_topic("orders")
    sources.open_transactions = dict
    assert not [name for name, _ in page_of(sources) if name.startswith("reput_transaction")]
