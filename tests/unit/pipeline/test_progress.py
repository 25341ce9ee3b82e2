"""Listeners for streaming queries over a live broker, without Spark; and what a query tells of its filters."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThan

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.progress import GroupProgress, Lag, QueryLag
from reput_pipeline.source.query_metrics import QueryMetrics
from reput_pipeline.source.readers import FilteringReader
from support.pipeline_jobs import spark_schema_of

ENDS = {"version": 2, "topics": {"t": {"broker-a": {"0": 4, "1": 8}}}}


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    found = new_reput_broker(store={"flush": "sync"})
    with Admin(found.address) as admin:
        admin.create_topic("t", queues=2)
    with Producer(found.address, group="p") as producer:
        for queue_id in (0, 1):
            producer.send_batch([Message("t", b"%d" % number) for number in range(10)], queue_id=queue_id)
    return found


def progress(name: str | None, *ends: str | None, **observed: Any) -> Any:
    sources = [SimpleNamespace(endOffset=end, numInputRows=12) for end in ends]
    return SimpleNamespace(
        progress=SimpleNamespace(
            name=name,
            id="i-d",
            batchId=7,
            sources=sources,
            durationMs={"triggerExecution": 250},
            observedMetrics=observed,
        )
    )


def test_lag_is_that_of_all_queues(broker: BackgroundBroker, capsys: pytest.CaptureFixture[str]) -> None:
    found: list[tuple[str, int, Lag]] = []
    listener = QueryLag(broker.address, lambda *lag: found.append(lag))
    listener.onQueryProgress(progress(None, json.dumps(ENDS), '{"another": "source"}', "[3]", None))
    ((query, batch_id, lag),) = found
    assert (query, batch_id) == ("i-d", 7)
    assert (lag.topic, lag.queues, lag.messages) == ("t", 2, 8)
    assert 0 < lag.seconds < 600
    QueryLag(broker.address, query="other").onQueryProgress(progress("mine", json.dumps(ENDS)))
    assert capsys.readouterr().err == ""
    QueryLag(broker.address).onQueryProgress(progress("mine", json.dumps(ENDS)))
    told = capsys.readouterr().err
    assert "query mine, batch 7: 8 messages and " in told
    assert " s behind in 2 queues of t" in told


@pytest.fixture
def metrics(broker: BackgroundBroker) -> Iterator[QueryMetrics]:
    found = QueryMetrics(broker.address, 0, "127.0.0.1")
    yield found
    found.close()


def page(metrics: QueryMetrics) -> dict[str, float]:
    """Return the samples of the driver's page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#") and "_created" not in line)
    return {name: float(value) for name, value in samples}


def test_queries_are_series_of_the_driver(
    broker: BackgroundBroker, metrics: QueryMetrics, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics.onQueryStarted(SimpleNamespace(id="i-d", runId="1", name="mine"))
    metrics.onQueryProgress(progress("mine", json.dumps(ENDS), reput={"rows": 12, "bytes": 345}))
    found = page(metrics)
    age_s = found.pop('reput_query_lag_seconds{query="mine",topic="t"}')
    assert 0 < age_s < 600
    assert found == {
        'reput_query_running{query="mine"}': 1,
        'reput_query_failures_total{query="mine"}': 0,
        'reput_query_messages_total{query="mine"}': 12,
        'reput_query_body_bytes_total{query="mine"}': 345,
        'reput_query_batch_seconds_count{query="mine"}': 1,
        'reput_query_batch_seconds_sum{query="mine"}': 0.25,
        'reput_query_lag_messages{query="mine",topic="t"}': 8,
    }
    with Producer(broker.address, group="p") as producer:
        producer.send(Message("t", b"one more"))
    assert page(metrics)['reput_query_lag_messages{query="mine",topic="t"}'] == 9  # no batch has ended since
    metrics.onQueryTerminated(SimpleNamespace(id="i-d", runId="1", exception="it failed"))
    broker.stop()
    found = page(metrics)
    assert (found['reput_query_running{query="mine"}'], found['reput_query_failures_total{query="mine"}']) == (0, 1)
    assert not [name for name in found if "lag" in name]
    assert "QueryMetrics of 127.0.0.1" in capsys.readouterr().err


def test_the_end_of_an_earlier_run_that_is_told_late_changes_nothing(metrics: QueryMetrics) -> None:
    def is_running() -> float:
        return page(metrics)['reput_query_running{query="mine"}']

    metrics.onQueryStarted(SimpleNamespace(id="i-d", runId="1", name="mine"))
    metrics.onQueryProgress(progress("mine", json.dumps(ENDS)))
    metrics.onQueryStarted(SimpleNamespace(id="i-d", runId="2", name="mine"))
    metrics.onQueryTerminated(SimpleNamespace(id="i-d", runId="1", exception="it failed"))
    assert is_running() == 1
    metrics.onQueryTerminated(SimpleNamespace(id="i-d", runId="2", exception=None))
    assert is_running() == 0
    assert page(metrics)['reput_query_failures_total{query="mine"}'] == 1


def test_each_source_of_a_query_counts_also_if_one_is_of_another_cluster(
    broker: BackgroundBroker, metrics: QueryMetrics, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = json.dumps({"version": 2, "topics": {"u": {"broker-z": {"0": 1}}}})
    behind = json.dumps({"version": 2, "topics": {"t": {"broker-a": {"0": 2, "1": 8}}}})
    event = progress("mine", elsewhere, json.dumps(ENDS))
    GroupProgress(broker.address, "g").onQueryProgress(event)
    with PullConsumer(broker.address, group="g") as consumer:
        assert [consumer.committed("t", queue) for queue in (0, 1)] == [4, 8]
    assert "broker-z" in capsys.readouterr().err
    metrics.onQueryProgress(progress("mine", json.dumps(ENDS), behind))  # one topic twice
    found = page(metrics)
    assert found['reput_query_lag_messages{query="mine",topic="t"}'] == 10
    assert found['reput_query_messages_total{query="mine"}'] == 24
    assert found['reput_query_batch_seconds_count{query="mine"}'] == 1


def test_the_dashboard_names_series_of_the_page(metrics: QueryMetrics) -> None:
    metrics.onQueryStarted(SimpleNamespace(id="i-d", runId="1", name="mine"))
    metrics.onQueryProgress(progress("mine", json.dumps(ENDS), reput={"rows": 12, "bytes": 345}))
    dashboard = Path(__file__).parents[3] / "conf" / "grafana" / "dashboards" / "reput.json"
    named = set(re.findall(r"reput_query_[a-z_]+", dashboard.read_text()))
    assert len(named) == 8
    assert named == {name.partition("{")[0] for name in page(metrics)}


def test_series_are_of_the_wanted_query(broker: BackgroundBroker) -> None:
    metrics = QueryMetrics(broker.address, 0, "127.0.0.1", query="mine")
    try:
        metrics.onQueryStarted(SimpleNamespace(id="an", runId="1", name="other"))
        metrics.onQueryProgress(progress("other", json.dumps(ENDS)))
        metrics.onQueryTerminated(SimpleNamespace(id="an", runId="1", exception="it failed"))
        assert page(metrics) == {}
    finally:
        metrics.close()


def test_a_group_is_committed_and_a_broker_that_is_away_is_logged(
    broker: BackgroundBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    GroupProgress(broker.address, "g", "mine").onQueryProgress(progress("mine", json.dumps(ENDS)))
    with PullConsumer(broker.address, group="g") as consumer:
        assert [consumer.committed("t", queue) for queue in (0, 1)] == [4, 8]
    broker.stop()
    GroupProgress(broker.address, "g").onQueryProgress(progress("mine", json.dumps(ENDS)))
    assert "GroupProgress of 127.0.0.1" in capsys.readouterr().err


def test_what_is_pushed_down_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"nameServer": "127.0.0.1:1", "subscribe": "t"}
    reader = FilteringReader(options, spark_schema_of(parse_source_options(options)))
    first: list[Filter] = [EqualTo(("bodyCRC",), 3)]
    assert reader.pushFilters(first) == first
    assert capsys.readouterr().err == ""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    reader.pushFilters(
        [
            In(("tags",), ("paid", "late")),
            EqualTo(("queueId",), 2),
            GreaterThan(("queueOffset",), 9),
            LessThan(("storeTimestamp",), at),
        ]
    )
    assert capsys.readouterr().err == (
        "reput: pushed down to 127.0.0.1:1: queue 2, tag late or paid, offset from 10 to the last, "
        "store time in ms from the first to 1767225600000\n"
    )
