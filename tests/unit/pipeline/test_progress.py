"""Listeners for streaming queries over a live broker, without Spark; and what a query tells of its filters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThan

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.progress import GroupProgress, Lag, QueryLag
from reput_pipeline.source.readers import FilteringReader
from support.pipeline_schemas import spark_schema_of

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


def progress(name: str | None, *ends: str | None) -> Any:
    sources = [SimpleNamespace(endOffset=end) for end in ends]
    return SimpleNamespace(progress=SimpleNamespace(name=name, id="i-d", batchId=7, sources=sources))


def test_lag_is_that_of_all_queues(broker: BackgroundBroker, capsys: pytest.CaptureFixture[str]) -> None:
    lags: list[Lag] = []
    listener = QueryLag(broker.address, lags.append)
    listener.onQueryProgress(progress(None, json.dumps(ENDS), '{"another": "source"}', "[3]", None))
    (lag,) = lags
    assert (lag.query, lag.batch_id, lag.queues) == ("i-d", 7, 2)
    assert (lag.messages_average, lag.messages_most) == (4.0, 6)
    assert 0 < lag.seconds_average <= lag.seconds_most < 600
    QueryLag(broker.address, query="other").onQueryProgress(progress("mine", json.dumps(ENDS)))
    assert capsys.readouterr().err == ""
    QueryLag(broker.address).onQueryProgress(progress("mine", json.dumps(ENDS)))
    assert (
        "query mine, batch 7: behind in 2 queues by 4.0 messages on average and 6 at most"
        in capsys.readouterr().err
    )


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
