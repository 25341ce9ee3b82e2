"""Tasks of the sink over a real broker, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin
from reput_client.blocking.bulk import BatchWriter
from reput_pipeline.sink.options import parse_sink_options
from reput_pipeline.sink.schema import SinkColumns
from reput_pipeline.spark.errors import SinkError
from support.sink_client import published

pa = pytest.importorskip("pyarrow")
task = import_module("reput_pipeline.sink.task")

COLUMNS = SinkColumns("body", None, None, None, "queueId", None, None, None, None)
SEMANTICS = ("exactly-once", "at-least-once")


def write(
    broker: BackgroundBroker, topic: str, batch: Any, columns: SinkColumns = COLUMNS, **more: str
) -> None:
    """Write one batch, as a query of one task does."""
    given = {"nameServer": broker.address, "topic": topic, **more}
    options = parse_sink_options(given, streaming=False)
    work = task.SinkTask(options, columns)
    if not options.exactly_once:
        work.put(iter([batch]), "q", 0)
        return
    part = work.stage(iter([batch]), f"to-{topic}", 0, 0)
    with BatchWriter(broker.address) as writer:
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
def test_a_queue_that_a_topic_lacks_is_named(
    new_reput_broker: Callable[..., BackgroundBroker], semantics: str
) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Admin(broker.address) as admin:
        admin.create_topic("narrow", queues=3)
    with pytest.raises(
        SinkError, match=r"row 3 .* has no queue 3 .* queueMapping=modulo for queue queueId % 3"
    ):
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
