"""The page of metrics has every row of the catalogue, with its labels and values."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from prometheus_client import GC_COLLECTOR
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.process_collector import ProcessCollector

from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import TlsConfig
from reput_broker.groups.client_table import ClientChannel
from reput_broker.observe.catalogue import METRICS
from reput_broker.observe.exposition import OPENMETRICS, TEXT
from reput_broker.observe.health import BrokerState
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.pages import MetricsPages
from reput_broker.remoting.tls import ServerTls
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import ConsumerData
from reput_protocol.names import TRANSACTION_CHECK_GROUP
from support.scrapes import Page, a_few_figures, check, fake_store, known_series, read, value


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[MetricsSources]:
    with a_few_figures(tmp_path) as found:
        yield found


def pages_of(sources: MetricsSources) -> MetricsPages:
    return MetricsPages(METRICS, sources, standard=(ProcessCollector(registry=None), GC_COLLECTOR))


def rendered(sources: MetricsSources, content_type: str = TEXT) -> str:
    return trio.run(pages_of(sources).render, content_type).decode()


def page_of(sources: MetricsSources) -> Page:
    return read(rendered(sources))


def test_the_page_has_every_metric_of_the_catalogue(sources: MetricsSources) -> None:
    sources.counters.groups["orders", "billing"].count_out(1, 1)
    sources.counters.requests[0, RequestCode.PULL_MESSAGE].begin()
    sources.counters.retry.transactions["orders", "commit"] += 1
    sources.tls = ServerTls(TlsConfig())
    sources.tls.end_times_s["cert"] = 1.0
    assert check(rendered(sources), METRICS, "reput_") == set(METRICS)


def test_known_labels_exist_with_zero_before_anything_happens(sources: MetricsSources) -> None:
    page = page_of(sources)
    assert known_series(METRICS) <= page.keys()
    assert value(page, "reput_requests_total", protocol="msgpack", op="put_message", code="ok") == 0


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


def test_a_topic_without_traffic_is_there_with_zero(sources: MetricsSources) -> None:
    page = page_of(sources)
    assert value(page, "reput_messages_in_total", topic="silent", kind="normal") == 0
    assert not any(dict(labels).get("topic") == "TBW102" for _, labels in page)


def test_counters_are_shown(sources: MetricsSources) -> None:
    counters = sources.counters
    counters.topics["orders"].count_in(64, 64_000)
    counters.topics["%RETRY%billing"].count_in(1, 10)
    counters.groups["orders", "billing"].count_out(32, 32_000)
    counters.produce_seconds["flushed"].observe(0.002)
    request = counters.requests[0x4D, RequestCode.PUT_MESSAGE]
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
    assert value(page, "reput_requests_total", protocol="msgpack", op="put_message", code="topic_not_exist") == 1
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
    sources.store = fake_store(queues=1000)
    page = page_of(sources)
    queues = [labels for name, labels in page if name == "reput_queue_end_offset"]
    assert 0 < len(queues) < 50
    assert value(page, "reput_messages_in_total", topic="orders", kind="normal") == 0
    assert value(page, "reput_consumer_lag_messages", group="billing", topic="orders", queue="2") == 30
    assert value(page, "reput_metrics_dropped_series") == 2 * (1000 - len(queues))


def test_a_family_has_one_head_however_many_series_it_has(sources: MetricsSources) -> None:
    sources.store = fake_store(queues=1000)
    heads = [line for line in rendered(sources).splitlines() if line.startswith("#")]
    assert len(heads) == len(set(heads))
    assert len(page_of(sources)) > 2000


def test_openmetrics_for_clients_that_ask_for_it(sources: MetricsSources) -> None:
    sources.store = fake_store(queues=1000)
    text = rendered(sources, OPENMETRICS)
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    names = {family.name for family in parse_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {name.removesuffix("_total") for name in METRICS} <= names


@pytest.mark.parametrize("content_type", [TEXT, OPENMETRICS])
def test_hostile_names_stay_label_values(sources: MetricsSources, content_type: str) -> None:
    """Names are checked when they are created; those of tables that another broker wrote are not."""
    names = ['a"} 1\nreput_ready 7\n#', "back\\slash\\", "new\nline", "%s%d{}", "tab\tand é"]
    for name in names:
        sources.counters.topics[name].count_in(1, 10)
    text = rendered(sources, content_type)
    parse = parse_openmetrics if content_type == OPENMETRICS else text_string_to_metric_families
    found = {
        sample.labels["topic"]: sample.value
        for family in parse(text)
        for sample in family.samples
        if sample.name in ("reput_bytes_in_total", "reput_message_size_bytes_sum")
    }
    assert {name: found[name] for name in names} == dict.fromkeys(names, 10.0)
    assert text.count("\nreput_ready ") == 1


def test_a_thousand_topics_and_groups_keep_to_the_limit(sources: MetricsSources) -> None:
    """Series of queues are dropped first, then the histograms of topics; those of topics and groups stay."""
    sources.config = BrokerConfig(metrics={"max_series": 20_000})
    sources.store = fake_store(queues=4000)
    assert sources.offsets is not None
    assert sources.groups is not None
    for number in range(1000):
        sources.counters.topics[f"t{number}"].count_in(1, 1)
        sources.groups.settings.find_or_create(f"g{number}")
        sources.offsets.commit(f"g{number}", f"t{number}", 0, 1)

    def series() -> tuple[Counter[str], int]:
        lines = [line for line in rendered(sources).splitlines() if not line.startswith(("#", "process_", "python_"))]
        (dropped,) = (line for line in lines if line.startswith("reput_metrics_dropped_series "))
        return Counter(re.split("[ {]", line)[0] for line in lines), int(dropped.split()[1])

    shown, dropped = series()
    assert shown.total() < 20_600
    for name in ("reput_messages_in_total", "reput_consumer_members", "reput_consumer_lag_seconds"):
        assert shown[name] >= 1000, name
    assert shown["reput_dead_letters_total"] >= 1000
    assert shown["reput_message_size_bytes_sum"] < 1000
    assert shown["reput_queue_end_offset"] == 0
    sources.config = BrokerConfig(metrics={"max_series": 1_000_000})
    whole, none = series()
    assert none == 0
    assert whole.total() == shown.total() + dropped, "every series that was dropped is counted"


def test_a_large_page_does_not_block_the_loop(sources: MetricsSources) -> None:
    sources.store = fake_store(queues=9000)
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
            page = await pages_of(sources).render(TEXT)
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


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_OF_A_TOOL", TRANSACTION_CHECK_GROUP])
def test_groups_of_our_tools_and_of_the_broker_alert_nobody(sources: MetricsSources, group: str) -> None:
    """They have progress and no members, as a group has that has stopped."""
    assert sources.offsets is not None
    sources.offsets.commit(group, "orders", 2, 7)
    page = page_of(sources)
    assert value(page, "reput_consumer_lag_messages", group="billing", topic="orders", queue="2") == 30
    assert not [name for name, labels in page if group in str(labels)]


def test_a_group_s_members_changes_and_progress(sources: MetricsSources) -> None:
    groups, counters = sources.groups, sources.counters
    assert groups is not None
    for client_id in ("a", "b", "b"):  # b has reconnected, and its first connection has not ended yet
        channel = ClientChannel(object(), client_id, 0, 0, 0.0)  # type: ignore[arg-type]
        groups.online.register(channel, ConsumerData("billing"), 0.0)
    counters.note_rebalance("billing", "join")
    counters.note_subscription_conflict("billing")
    groups.progress.pulled("billing", "orders", 2, 70, 85, "peer")
    counters.note_acks("billing", "ack", 70)
    counters.retry.nacks["billing"] += 2
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
    assert {
        result: value(page, "reput_acks_total", group="billing", result=result)
        for result in ("ack", "nack", "expired", "late")
    } == {"ack": 70, "nack": 2, "expired": 0, "late": 0}
    counters.forget_group("billing")
    assert value(page_of(sources), "reput_acks_total", group="billing", result="ack") == 0
    assert value(page_of(sources), "reput_acks_total", group="billing", result="nack") == 0
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
