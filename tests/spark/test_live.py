"""`format("reput")` over a live broker: batches and streams."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from support.waiting import wait_until

TOPIC = "orders"


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    return new_reput_broker(store={"flush": "sync"})


def send(broker: BackgroundBroker, count: int, topic: str = TOPIC, first: int = 0, queues: int = 4) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, queues=queues)
    with Producer(broker.address, group="p") as producer:
        for queue_id in range(queues):
            numbers = [number for number in range(first, first + count) if number % queues == queue_id]
            messages = [
                Message(topic, b"%06d" % number, tag=f"t{number % 3}", keys=[f"k{number}"], properties={"n": "1"})
                for number in numbers
            ]
            if messages:
                producer.send_batch(messages, queue_id=queue_id)


def options(broker: BackgroundBroker, **more: str) -> dict[str, str]:
    return {"nameServer": broker.address, "subscribe": TOPIC, **more}


def batch(spark: Any, broker: BackgroundBroker, **more: str) -> Any:
    return spark.read.format("reput").options(**options(broker, **more)).load()


def bodies(rows: list[Any]) -> list[int]:
    return sorted(int(bytes(row.body)) for row in rows)


def test_a_batch_is_what_was_sent(spark: Any, broker: BackgroundBroker) -> None:
    send(broker, 2000)
    rows = batch(spark, broker, minPartitions="3").collect()
    assert bodies(rows) == list(range(2000))
    assert {row.brokerName for row in rows} == {"broker-a"}
    assert rows[0].properties["n"] == "1"
    one_tag = batch(spark, broker, subExpression="t1 || t2").select("tags").distinct().collect()
    assert sorted(row.tags for row in one_tag) == ["t1", "t2"]
    assert batch(spark, broker).where("tags IN ('t1', 'nobody')").count() == 667
    assert batch(spark, broker).where("queueId = 0 AND queueOffset < 5").count() <= 5
    places = {"startingOffsets": '{"orders":{"0":3}}', "endingOffsets": '{"orders":{"0":7,"1":0,"2":0,"3":0}}'}
    assert [row.queueOffset for row in batch(spark, broker, **places).orderBy("queueOffset").collect()] == [3, 4, 5, 6]


WRONG = [
    ({"subscribe": "nobody"}, "topic 'nobody' is not in"),
    ({"startingOffsets": '{"orders":{"9":3}}'}, "option startingOffsets: names queue orders/9"),
    ({"startingOffsets": '{"orders":{"0":3000}}'}, "offset 3000 is beyond its end"),
    ({"startingTimestamp": "4000000000000"}, "option startingTimestamp: .* has no message stored at"),
    ({"nameServer": "127.0.0.1:1", "fetchOffset.numRetries": "0"}, "cannot connect to 127.0.0.1:1"),
]


@pytest.mark.parametrize(("more", "words"), WRONG)
def test_what_cannot_be_answered_says_why(
    spark: Any, broker: BackgroundBroker, more: dict[str, str], words: str
) -> None:
    send(broker, 10)
    with pytest.raises(Exception, match=words):
        batch(spark, broker, **more).collect()


class Query:
    """A stream into a Parquet directory, run again and again from one checkpoint until nothing is left."""

    def __init__(self, spark: Any, directory: Path, given: dict[str, str]) -> None:
        self.spark = spark
        self.directory = directory
        self.options = given

    def run(self) -> list[int]:
        """Run to the end of what is there; return the rows of each batch that had any."""
        from reput_pipeline.source.query_metrics import observed

        source = self.spark.readStream.format("reput").options(**self.options)
        query = (
            observed(source.load())
            .writeStream.format("parquet")
            .option("path", str(self.directory / "out"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def rows(self) -> list[int]:
        return bodies(self.spark.read.parquet(str(self.directory / "out")).collect())


def test_a_stream_takes_so_many_at_a_time_and_goes_on_where_it_was(
    spark: Any, broker: BackgroundBroker, tmp_path: Path
) -> None:
    send(broker, 100)
    query = Query(
        spark, tmp_path, options(broker, startingOffsets="earliest", maxOffsetsPerTrigger="40", groupId="spark")
    )
    taken = query.run()
    assert sum(taken) == 100
    assert all(count <= 44 for count in taken)
    assert len(taken) >= 3
    send(broker, 30, first=100)
    assert sum(query.run()) == 30
    assert query.rows() == list(range(130))
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    saved = json.loads(offsets[-1].read_text().splitlines()[-1])
    assert saved["version"] == 2
    assert sum(saved["topics"][TOPIC]["broker-a"].values()) == 130
    with PullConsumer(broker.address, group="spark") as consumer:
        published = [consumer.committed(TOPIC, queue) or 0 for queue in range(4)]
    assert 60 <= sum(published) <= 130  # a batch behind


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"subscribe": "nobody"}, ("NoSuchTopic", "topic 'nobody' is not in ")),
        ({"endingOffsets": "latest"}, ("OptionError", "option endingOffsets: a stream has no end")),
        ({"startingOffsets": '{"orders":{"0":99}}'}, ("DataLost", "queue orders/broker-a/0: offset 99 ")),
    ],
)
def test_the_error_of_a_stream_has_its_cause_in_one_line(
    spark: Any, broker: BackgroundBroker, tmp_path: Path, more: dict[str, str], cause: tuple[str, str]
) -> None:
    from reput_pipeline.spark.errors import cause_in

    send(broker, 10)
    with pytest.raises(Exception, match="STREAM_FAILED") as failed:
        Query(spark, tmp_path, options(broker, **more)).run()
    assert "Traceback" not in str(failed.value)
    found = cause_in(failed.value)
    assert found is not None
    assert found.name == cause[0]
    assert found.text.startswith(cause[1])


def test_new_topics_and_queues_are_found_by_pattern(spark: Any, broker: BackgroundBroker, tmp_path: Path) -> None:
    send(broker, 10, "log-a", queues=1)
    given = {"nameServer": broker.address, "subscribePattern": "log-.*", "startingOffsets": "earliest"}
    query = Query(spark, tmp_path, given)
    assert sum(query.run()) == 10
    assert query.run() == []
    send(broker, 5, "log-b", first=10)
    send(broker, 20, "log-a", first=15, queues=4)
    assert sum(query.run()) == 25
    assert query.rows() == list(range(35))


def test_a_topic_that_is_created_again_is_data_lost(spark: Any, broker: BackgroundBroker, tmp_path: Path) -> None:
    send(broker, 50)
    query = Query(spark, tmp_path, options(broker, startingOffsets="earliest"))
    assert sum(query.run()) == 50
    with Admin(broker.address) as admin:
        admin.delete_topic(TOPIC)
    with pytest.raises(Exception, match="topic 'orders' is not in"):
        query.run()
    send(broker, 80, first=100)
    with pytest.raises(Exception, match="its topic was deleted and created again; what followed message"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert sum(query.run()) == 80
    assert query.rows() == [*range(50), *range(100, 180)]


def test_the_last_batch_is_committed_and_listeners_tell_how_far_a_query_is(
    spark: Any, broker: BackgroundBroker, tmp_path: Path
) -> None:
    from reput_pipeline.source.progress import GroupProgress, Lag, QueryLag
    from reput_pipeline.source.query_metrics import QueryMetrics

    def committed(group: str) -> int:
        with PullConsumer(broker.address, group=group) as consumer:
            return sum(consumer.committed(TOPIC, queue) or 0 for queue in range(4))

    def page() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10) as response:
            return str(response.read(), "utf-8")

    send(broker, 20)
    query = Query(spark, tmp_path, options(broker, startingOffsets="earliest", groupId="own", maxOffsetsPerTrigger="8"))
    lags: list[Lag] = []
    listeners = [
        GroupProgress(broker.address, "watched"),
        QueryLag(broker.address, lambda _query, _batch, lag: lags.append(lag)),
        metrics := QueryMetrics(broker.address, 0, "127.0.0.1"),
    ]
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        query.run()
        assert committed("own") == 20, "the source does so itself"
        wait_until(lambda: bool(lags) and lags[-1].messages == 0 and committed("watched") == 20)
        wait_until(lambda: re.search(r"reput_query_messages_total\{.*\} 20\.0", page()) is not None)
        assert re.search(rf"reput_query_body_bytes_total\{{.*\}} {20 * 6}\.0", page())
        assert re.search(r"reput_query_batch_seconds_count\{.*\} 3\.0", page())
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
        metrics.close()
    assert committed("watched") == 20
    assert [(lag.queues, lag.messages) for lag in lags[:3]] == [(4, 12), (4, 4), (4, 0)]
    assert min(lag.seconds for lag in lags[:2]) > 0
    assert lags[2].seconds == 0
