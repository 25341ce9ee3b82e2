"""Tasks of a query on a broker whose topics changed after planning; without Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer
from reput_client.blocking.bulk import BulkReader
from reput_client.errors import ConnectFailed
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.source.ranges import NOTHING_NARROWED
from reput_pipeline.spark.errors import DataLost
from reput_protocol.codes import RequestCode
from support.broker_process import free_port
from support.raw_client import RawClient

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")
schemas = import_module("support.pipeline_jobs")
live_plan = import_module("reput_pipeline.source.live")
tasks = import_module("reput_pipeline.source.tasks")

TOPIC = "orders"
SIZE = 60_000
MESSAGES = 160
FILES = {"commit_log_file_size": 1 << 20, "consume_queue_entries": 16, "clean_delay": "0s", "clean_interval": "100ms"}
BODY_MAX = 4 << 20


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    return new_reput_broker(store={"flush": "sync", **FILES})


def send(broker: BackgroundBroker, bodies: list[bytes], queue_id: int = 0, queues: int = 1) -> None:
    with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
        admin.create_topic(TOPIC, queues=queues)
        for body in bodies:
            producer.send(Message(TOPIC, body), queue_id=queue_id)


class Query:
    """A batch query, planned and then read task by task."""

    def __init__(self, broker: BackgroundBroker, **given: str) -> None:
        options = {"nameServer": broker.address, "subscribe": TOPIC, **given}
        self.options: SourceOptions = parse_source_options(options, streaming=False)
        self.partitions = live_plan.plan_batch(self.options, NOTHING_NARROWED)

    def batches(self) -> Iterator[Any]:
        schema = schemas.arrow_schema_of(self.options)
        for partition in self.partitions:
            for batch in tasks.read_task(partition, self.options, schema, NOTHING_NARROWED):
                batch.validate(full=True)
                yield batch

    def offsets(self) -> list[int]:
        return [offset for batch in self.batches() for offset in batch["queueOffset"].to_pylist()]


def expire(broker: BackgroundBroker) -> int:
    """Have the files of the log deleted but the last two; return how many these were."""
    files = sorted((broker.data_dir / "commitlog").iterdir())[:-2]
    for path in files:
        os.utime(path, (1, 1))
    give_up_at = time.monotonic() + 30
    with RawClient(broker.address) as client:
        while any(path.exists() for path in files):
            assert time.monotonic() < give_up_at, "the files stay"
            client.request(RequestCode.DELETE_EXPIRED_COMMITLOG, {})
            time.sleep(0.05)
    return len(files)


def test_files_that_expire_during_a_query_are_data_lost_or_skipped(
    broker: BackgroundBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    send(broker, [b"%06d" % number + bytes(SIZE) for number in range(MESSAGES)])
    strict, lenient = Query(broker), Query(broker, failOnDataLoss="false")
    began = strict.batches()
    first = next(began).num_rows
    assert 0 < first < MESSAGES
    assert expire(broker) >= 3
    with pytest.raises(DataLost, match=rf"queue {TOPIC}/broker-a/0: messages \d+ to \d+ are gone"):
        list(began)
    with pytest.raises(DataLost, match=rf"queue {TOPIC}/broker-a/0: messages 0 to \d+ are gone"):
        strict.offsets()
    left = lenient.offsets()
    assert 0 < len(left) < MESSAGES - first
    assert left == list(range(MESSAGES - len(left), MESSAGES))
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1, "a line for each queue"
    assert f"queue {TOPIC}/broker-a/0: messages 0 to " in told[0]
    with BulkReader(broker.address) as reader:  # the queues follow the log a little later
        give_up_at = time.monotonic() + 30
        while reader.queue_bounds([TOPIC]).topics[TOPIC][0][1] < left[0]:
            assert time.monotonic() < give_up_at, "the queue keeps what it has lost"
            time.sleep(0.05)
    assert Query(broker).offsets() == left  # planned again, nothing is missing
    with pytest.raises(DataLost, match="offset 0 is gone"):
        Query(broker, startingOffsets='{"orders":{"0":0}}')


def test_a_topic_that_is_deleted_during_a_query_is_data_lost_or_skipped(
    broker: BackgroundBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    send(broker, [b"%06d" % number + bytes(SIZE) for number in range(MESSAGES)])
    query, lenient = Query(broker), Query(broker, failOnDataLoss="false")
    began = query.batches()
    next(began)
    with Admin(broker.address) as admin:
        admin.delete_topic(TOPIC)
        with pytest.raises(DataLost, match="its topic was deleted, with messages"):
            list(began)
        assert lenient.offsets() == []
        assert "its topic was deleted, with messages 0 to 159" in capfd.readouterr().err
        admin.create_topic(TOPIC, queues=1)
    with pytest.raises(DataLost, match="was deleted and created again"):
        query.offsets()


def test_a_broker_that_does_not_answer_is_named_after_all_retries() -> None:
    options = parse_source_options(
        {"nameServer": f"127.0.0.1:{free_port()}", "subscribe": TOPIC, "fetchOffset.retryIntervalMs": "0"},
        streaming=False,
    )
    with pytest.raises(ConnectFailed, match=r"cannot connect to 127.0.0.1:\d+"):
        live_plan.plan_batch(options, NOTHING_NARROWED)


def test_the_largest_bodies_come_whole(broker: BackgroundBroker, new_reput_broker: Callable[..., Any]) -> None:
    large = new_reput_broker(store={"flush": "sync"})
    bodies = [b"small", os.urandom(1 << 19) * 8, b"", os.urandom(1 << 19) * 8, b"small"]
    assert len(bodies[1]) == BODY_MAX
    send(large, bodies)
    live = [body for batch in Query(large).batches() for body in batch["body"].to_pylist()]
    assert live == bodies
    large.stop()
    assert read_directory(large.data_dir) == bodies


def read_directory(root: Path) -> list[bytes]:
    from reput_pipeline.source.offline import OfflineStore, plan

    options = parse_source_options({"path": str(root), "subscribe": TOPIC}, streaming=False)
    with OfflineStore(str(root)) as store:
        partitions = plan(store, options, NOTHING_NARROWED)
    schema = schemas.arrow_schema_of(options)
    return [
        body
        for partition in partitions
        for batch in tasks.read_task(partition, options, schema, NOTHING_NARROWED)
        for body in batch["body"].to_pylist()
    ]


def test_very_many_queues_are_one_task_and_every_message(broker: BackgroundBroker) -> None:
    queues = 500
    with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
        admin.create_topic(TOPIC, queues=queues)
        for queue_id in range(queues):
            producer.send(Message(TOPIC, b"%06d" % queue_id), queue_id=queue_id)
    query = Query(broker)
    assert len(query.partitions) == 1
    found = [body for batch in query.batches() for body in batch["body"].to_pylist()]
    assert sorted(found) == [b"%06d" % queue_id for queue_id in range(queues)]
