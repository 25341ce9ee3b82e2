"""A broker works without NumPy: an array library of 20 MiB is no part of storing and handing out messages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from reput_client import PullStatus
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from sink_client import SinkClient, Staged

pytestmark = pytest.mark.process

NUMPYLESS = Path(__file__).parents[1] / "numpyless_broker.py"
SMALL = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB",
    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "64",
    "REPUT_STORE__FILE_RESERVED_TIME": "1s",
    "REPUT_STORE__DELETE_WHEN": ";".join(map(str, range(24))),
    "REPUT_STORE__DELETE_FILES_BATCH": "1000",
    "REPUT_STORE__DELETE_FILES_INTERVAL": "0s",
    "REPUT_STORE__CLEAN_INTERVAL": "100ms",
    "REPUT_STORE__CLEAN_DELAY": "0s",
    "REPUT_STORE__CONSUME_QUEUE_FLUSH_INTERVAL": "20ms",
    "REPUT_STORE__DISK_WARNING_RATIO": "1.0",
    "REPUT_STORE__DISK_CLEAN_FORCIBLY_RATIO": "1.0",
    "REPUT_FILTERS__SQL": "true",
}


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15.0
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def read(consumer: PullConsumer, topic: str, **filters: str) -> list[bytes]:
    """Everything that queue 0 hands out."""
    found: list[bytes] = []
    offset = consumer.min_offset(topic, 0)
    while offset < consumer.max_offset(topic, 0):
        result = consumer.pull(topic, 0, offset, wait_s=0.0, **filters)
        found += [bytes(message.body) for message in result.messages]
        offset = result.next_begin_offset
    return found


def use(address: str, keyed: str) -> None:
    """Put, read, filter, look up, delay and stage."""
    bodies = [b"%d" % number for number in range(100)]
    messages = [
        Message("T", body, tag="ab"[at % 2], keys=[f"{keyed}-{at}"], properties={"n": str(at)})
        for at, body in enumerate(bodies)
    ]
    with Producer(address) as producer, Admin(address) as admin, PullConsumer(address, group="g") as consumer:
        first = consumer.max_offset("T", 0) if "T" in admin.list_topics() else 0
        producer.send_batch(messages, queue_id=0)
        producer.send(Message("T", b"alone", unique_id=f"{keyed}-U"), queue_id=0)
        producer.send(Message("later", b"delayed", delay_s=0.3), queue_id=0)
        producer.send(Message("later", b"of a level", delay_level=1), queue_id=0)
        assert consumer.max_offset("T", 0) == first + 101
        assert read(consumer, "T")[-101:] == [*bodies, b"alone"]
        assert read(consumer, "T", tags="b")[-50:] == bodies[1::2]
        assert read(consumer, "T", sql="n BETWEEN 40 AND 44")[-5:] == bodies[40:45]
        for key, body in ((f"{keyed}-7", b"7"), (f"{keyed}-U", b"alone")):
            assert [bytes(message.body) for message in admin.find_messages("T", key).messages] == [body]
        assert consumer.offset_by_time("T", 0, int(time.time() * 1000) + 60_000) == first + 101
        with SinkClient(address) as sink:
            staged = Staged(keyed, 0)
            assert sink.stage(staged, "T", 0, bodies).code == 0
            assert sink.end(staged).code == 0
            assert sink.commit(keyed, 0, [staged]).code == 0
        assert read(consumer, "T")[-100:] == bodies
        until(lambda: b"of a level" in read(consumer, "later"), "a delayed message did not come")


def test_a_broker_works_without_numpy(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "store", environment=SMALL, command=(sys.executable, str(NUMPYLESS)))
    process.start()
    try:
        process.wait_ready()
        use(process.address, "one")
        process.kill()
        process.start()  # recovers log, queues, index and timers
        process.wait_ready()
        use(process.address, "two")
        with Producer(process.address) as producer, PullConsumer(process.address, group="g") as consumer:
            for _ in range(3):
                producer.send_batch([Message("T", bytes(4000))] * 50, queue_id=0)
            until(lambda: consumer.min_offset("T", 0) > 0, "nothing expired")
            first = consumer.pull("T", 0, 0, wait_s=0.0)
            assert first.status is PullStatus.OFFSET_ILLEGAL
        assert process.terminate() == 0
    finally:
        if process.running:
            process.kill()
