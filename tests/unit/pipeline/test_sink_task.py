"""Tasks of the sink over a real broker, without Spark."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, PullConsumer
from reput_client.blocking.bulk import StagingProducer
from reput_pipeline.sink.options import SinkColumns, parse_sink_options
from reput_pipeline.sink.rows import BadRows
from reput_pipeline.spark.errors import BatchNotWritten, SinkError, cause_in
from reput_pipeline.spark.option_reader import OptionError
from support.sink_client import published

pa = pytest.importorskip("pyarrow")
task = import_module("reput_pipeline.sink.task")
writers = import_module("reput_pipeline.sink.writers")

COLUMNS = SinkColumns("body", None, None, None, "queueId", None, None, None, None)
SEMANTICS = ("exactly-once", "at-least-once")


def write(broker: BackgroundBroker, topic: str, batch: Any, columns: SinkColumns = COLUMNS, **more: str) -> None:
    """Write one batch, as a query of one task does."""
    given = {"nameServer": broker.address, "topic": topic, **more}
    options = parse_sink_options(given, streaming=False)
    work = task.SinkTask(options, columns)
    if not options.exactly_once:
        work.put(iter([batch]), "q", 0)
        return
    part = work.stage(iter([batch]), f"to-{topic}", 0, 0)
    with StagingProducer(broker.address) as writer:
        writer.commit(f"to-{topic}", 0, [part])


def of_queues(count: int, queues: int) -> Any:
    """Messages that name a queue each and the number of the message in it."""
    rows = [(number % queues, number // queues) for number in range(count)]
    return pa.record_batch(
        {
            "body": pa.array([b"%d/%d" % row for row in rows], pa.binary()),
            "queueId": pa.array([queue for queue, _ in rows], pa.int32()),
        }
    )


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("topic", ["narrow", "new"])
def test_queues_that_a_topic_lacks_are_mapped_to_those_it_has(
    new_reput_broker: Callable[..., BackgroundBroker], semantics: str, topic: str
) -> None:
    """As for a frame that was read from a topic with more queues. The order within each of these is kept."""
    broker = new_reput_broker(store={"flush": "sync"}, topics={"default_queues": 3})
    with Admin(broker.address) as admin:
        admin.create_topic("narrow", queues=3)
    batch = of_queues(24, queues=8)
    write(broker, topic, batch, semantics=semantics, queueMapping="modulo")
    found = published(broker.address, topic)
    assert found.keys() == {0, 1, 2}
    bodies = [body for queue in found.values() for body in queue]
    assert sorted(bodies) == sorted(batch["body"].to_pylist())
    for queue_id, queue in found.items():
        for source in range(8):
            of_source = [body for body in queue if body.startswith(b"%d/" % source)]
            assert of_source == ([b"%d/%d" % (source, n) for n in range(3)] if source % 3 == queue_id else [])


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_queue_that_a_topic_lacks_is_named(new_reput_broker: Callable[..., BackgroundBroker], semantics: str) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        admin.create_topic("narrow", queues=3)
    with pytest.raises(SinkError, match=r"row 3 .* has no queue 3 .* queueMapping=modulo for queue queueId % 3"):
        write(broker, "narrow", of_queues(8, queues=8), semantics=semantics)


def test_queues_of_delayed_messages_are_mapped(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        admin.create_topic("narrow", queues=2)
    batch = of_queues(6, queues=3)
    batch = batch.append_column("deliverAt", pa.array([1] * 6, pa.timestamp("us", "UTC")))  # at once
    columns = replace(COLUMNS, deliver_at="deliverAt")
    write(broker, "narrow", batch, columns, semantics="at-least-once", queueMapping="modulo")
    found: dict[int, list[bytes]] = {}
    give_up_at = time.monotonic() + 30
    while sum(map(len, found.values())) < 6:
        assert time.monotonic() < give_up_at, "they are not delivered"
        found = published(broker.address, "narrow")
    assert {queue: sorted(bodies) for queue, bodies in found.items()} == {
        0: [b"0/0", b"0/1", b"2/0", b"2/1"],
        1: [b"1/0", b"1/1"],
    }


def test_acknowledged_rows_are_not_kept_until_the_end_of_their_partition(
    new_reput_broker: Callable[..., BackgroundBroker],
) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        admin.create_topic("later", queues=1)
    given = {"nameServer": broker.address, "topic": "later", "semantics": "at-least-once"}
    work = task.SinkTask(parse_sink_options(given, streaming=False), replace(COLUMNS, deliver_at="deliverAt"))

    def delayed(count: int) -> Any:
        times = pa.array([1] * count, pa.timestamp("us", "UTC"))
        return of_queues(count, queues=1).append_column("deliverAt", times)

    kept = []

    def batches() -> Iterator[Any]:
        yield delayed(50)
        for posted in list(work._posted):
            posted.result()
        yield delayed(1)
        kept.append(len(work._posted))

    work.put(batches(), "q", 0)
    assert work.messages == 51
    assert kept[0] <= 1


TOO_LARGE = b"x" * 2000
ROWS: list[tuple[dict[str, Any], str]] = [
    ({"body": b"0"}, ""),
    ({"body": None}, "row 1 .* has a null 'body'"),
    ({"body": TOO_LARGE}, r"row 2 .* has a body of 2000 bytes, but the broker accepts at most 1024"),
    ({"body": b"3"}, ""),
    ({"body": b"4", "topic": None}, "row 4 .* has no topic"),
    ({"body": b"5", "topic": "a b"}, "column 'topic': "),
    ({"body": b"6", "topic": "unknown"}, "row 6 .* topic 'unknown' does not exist"),
    ({"body": b"7", "properties": [("a\x01", "b")]}, r"row 7 .* U\+0001"),
    ({"body": b"8", "queueId": 2}, "row 8 .* has no queue 2"),
    ({"body": b"9", "queueId": -1}, "'queueId' has a number below 0"),
    ({"body": b"10", "properties": [("DELAY", "3")]}, "row 10 .* only the broker may set"),
    ({"body": b"11", "keys": "o-42", "queueId": 1}, ""),
]


def batch_of(rows: list[dict[str, Any]]) -> Any:
    kinds = {
        "body": pa.binary(),
        "topic": pa.string(),
        "keys": pa.string(),
        "queueId": pa.int32(),
        "properties": pa.map_(pa.string(), pa.string()),
    }
    return pa.record_batch({name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()})


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_rows_that_cannot_be_messages_go_to_a_topic_of_their_own(
    new_reput_broker: Callable[..., BackgroundBroker], semantics: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One such row ended a stream, and again at every restart."""
    small = {"auto_create": False}
    broker = new_reput_broker(store={"flush": "sync", "message_size_max": 1024}, topics=small)
    with Admin(broker.address) as admin:
        admin.create_topic("good", queues=2)
        admin.create_topic("bad", queues=1)
    columns = SinkColumns("body", "topic", "keys", None, "queueId", "properties", None, None, None)
    batch = batch_of([{"topic": "good", **row} for row, _ in ROWS])
    options = {"nameServer": broker.address, "semantics": semantics}
    with pytest.raises(SinkError):
        task.SinkTask(parse_sink_options(options, streaming=True), columns).put(iter([batch]), "q", 0)
    options |= {"onBadRow": "dead-letter", "deadLetterTopic": "bad"}
    work = task.SinkTask(parse_sink_options(options, streaming=True), columns)
    if semantics == "exactly-once":
        part = work.stage(iter([batch]), "q", 1, 0)
        with StagingProducer(broker.address) as writer:
            writer.commit("q", 1, [part])
    else:
        work.put(iter([batch]), "q", 0)
    assert work.messages == len(ROWS)
    bad = [(row, reason) for row, reason in ROWS if reason]
    assert f"{len(bad)} rows that cannot be messages are sent to topic bad" in capsys.readouterr().err
    good = published(broker.address, "good")
    assert sorted(body for bodies in good.values() for body in bodies) == [b"0", b"11", b"3"]
    assert b"11" in good[1]
    with PullConsumer(broker.address, group="g") as consumer:
        letters = consumer.pull("bad", queue_id=0, offset=0, max_messages=32).messages
    assert len(letters) == len(bad)
    for letter, (row, reason) in zip(letters, bad, strict=True):
        assert re.search(reason, letter.properties["BAD_ROW_REASON"]), letter.properties
        assert letter.body == (row["body"] or b"")[:1024]
        others = json.loads(letter.properties["BAD_ROW_COLUMNS"])
        assert others["topic"] == row.get("topic", "good")
        assert others["queueId"] == row.get("queueId")


@given(st.lists(st.booleans(), max_size=60))
def test_bad_rows_are_separated_from_the_others_in_order(bad: list[bool]) -> None:
    def check(batch: Any, first: int) -> None:
        assert batch["number"].to_pylist() == [*range(first, first + batch.num_rows)]
        if any(batch["bad"].to_pylist()):
            raise SinkError(f"at {first}")

    rows = BadRows(replace(COLUMNS, body="body"), check)
    bodies = [b"%d" % number for number in range(len(bad))]
    numbers = pa.array(range(len(bad)), pa.int32())
    batch = pa.record_batch(
        {"number": numbers, "bad": pa.array(bad, pa.bool_()), "body": pa.array(bodies, pa.binary())}
    )
    parts = list(rows.sift(batch, 0))
    found = [number for part, _ in parts for number in part["number"].to_pylist()]
    assert found == [number for number, is_bad in enumerate(bad) if not is_bad]
    letters = rows.take(1)
    kept = [] if letters is None else letters.body.to_pylist()
    assert kept == [body[:1] for body, is_bad in zip(bodies, bad, strict=True) if is_bad]
    assert rows.take(1) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"onBadRow": "dead-letter"}, "option deadLetterTopic: is missing"),
        ({"deadLetterTopic": "bad"}, "option deadLetterTopic: needs onBadRow=dead-letter"),
        ({"onBadRow": "dead-letter", "deadLetterTopic": "t"}, "is the option topic; name another"),
        ({"onBadRow": "dead-letter", "deadLetterTopic": "a b"}, "option deadLetterTopic: "),
        ({"onBadRow": "skip"}, "it is one of fail, dead-letter"),
    ],
)
def test_wrong_options_for_bad_rows_are_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_sink_options({"nameServer": "127.0.0.1:1", "topic": "t", **options}, streaming=True)


def test_a_batch_whose_staged_rows_are_gone_can_be_written_again(
    new_reput_broker: Callable[..., BackgroundBroker],
) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        admin.create_topic("orders", queues=2)
    options = parse_sink_options({"nameServer": broker.address, "topic": "orders"}, streaming=True)
    work = task.SinkTask(options, COLUMNS)
    part = work.stage(iter([of_queues(4, 2)]), "query:q", 3, 0)
    with StagingProducer(broker.address) as writer:
        writer.abort("query:q", 3)  # as a failover does
    done = writers.TaskDone("query:q", 3, 0, part, 4, work.broker)
    with pytest.raises(BatchNotWritten, match=r"batch 3 .* start the query again") as failed:
        writers._commit(options, [done], "query:q", 3)
    text = f"{BatchNotWritten.__module__}.BatchNotWritten: {failed.value}"
    found = cause_in(RuntimeError(text))
    assert found is not None
    assert found.retryable
    with pytest.raises(BatchNotWritten, match="staged at broker-a and broker-b"):
        writers._commit(options, [done, replace(done, partition_id=1, broker="broker-b")], "query:q", 3)
    assert published(broker.address, "orders") == {0: [], 1: []}
