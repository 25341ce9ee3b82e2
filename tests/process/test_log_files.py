"""Where and how the log's files are written, on a real broker: through a pool of buffers, in several directories."""

from __future__ import annotations

import threading
import urllib.request
from itertools import count
from pathlib import Path

import pytest

from reput_client import Ack, AckLevel
from reput_client.blocking import Message, Producer, PullConsumer
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ReputError
from reput_protocol.wire.header import ONEWAY_FLAG, HeaderType
from support.broker_process import BrokerProcess
from support.raw_client import RawClient, in_letters
from support.stored_messages import bodies_of

pytestmark = pytest.mark.process

FILE = 256 << 10
SENDS = 150
POOL = {
    "REPUT_STORE__TRANSIENT_STORE_POOL": "true",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB",
    "REPUT_STORE__MESSAGE_SIZE_MAX": "64KiB",
}


def metric(process: BrokerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/metrics", timeout=5.0) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


class Load:
    """Sends messages at every level, one by one, in blocks and pipelined, until the broker is gone."""

    def __init__(self, address: str, name: bytes) -> None:
        self.acknowledged: list[bytes] = []
        self.is_under_way = threading.Event()
        self._address = address
        self._name = name
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            with Producer(self._address, group="log-files", timeout_s=2.0) as producer:
                for number in count():
                    self._send(producer, number)
                    if number == SENDS:
                        self.is_under_way.set()
        except (ReputError, OSError):
            self.is_under_way.set()

    def _send(self, producer: Producer, number: int) -> None:
        ack: Ack = "flushed" if number % 7 == 0 else "page_cache"
        bodies = [b"%s/%06d/%02d:" % (self._name, number, n) for n in range(20 if number % 3 else 1)]
        messages = [Message("t", body + bytes(300)) for body in bodies]
        if number % 3 == 0:
            producer.send(messages[0], ack=ack, queue_id=0)
        elif number % 3 == 1:
            producer.send_batch(messages, ack=ack, queue_id=0)
        else:
            for message in messages:
                producer.post(message, ack=ack, queue_id=0)
            producer.flush()
        self.acknowledged += bodies


@pytest.mark.parametrize("flush", [pytest.param("sync", marks=pytest.mark.long), "async"])
def test_with_a_pool_nothing_acknowledged_is_lost_to_a_kill(tmp_path: Path, flush: str) -> None:
    environment = {**POOL, "REPUT_STORE__FLUSH": flush}
    kept: list[bytes] = []
    with BrokerProcess(tmp_path / "store", environment=environment) as process:
        for round_number in range(2):
            load = Load(process.address, b"%d" % round_number)
            assert load.is_under_way.wait(60)
            process.kill()
            load.join()
            process.start()
            process.wait_ready()
            assert len(load.acknowledged) > SENDS * 13
            kept += load.acknowledged
            found = [body.rstrip(b"\0") for body in bodies_of(process.address, "t")]
            assert len(set(found)) == len(found)
            assert not set(kept) - set(found)
            assert process.trouble() is None


def test_a_oneway_send_is_committed_by_the_clock(tmp_path: Path) -> None:
    environment = {**POOL, "REPUT_STORE__FLUSH": "async", "REPUT_STORE__COMMIT_INTERVAL": "20ms"}
    with BrokerProcess(tmp_path / "store", environment=environment) as process:
        with Producer(process.address, group="log-files") as producer:
            producer.send(Message("t", b"first"), ack="page_cache", queue_id=0)
        with RawClient(process.address, HeaderType.JSON) as client:
            client.send(RequestCode.SEND_MESSAGE_V2, in_letters("t"), b"second", flag=ONEWAY_FLAG)
            with PullConsumer(process.address, group="log-files") as consumer:
                result = consumer.pull("t", queue_id=0, offset=1, max_messages=1, wait_s=20.0)
        assert [bytes(message.body) for message in result.messages] == [b"second"]


def test_the_log_in_two_directories_through_a_kill_and_a_stop(tmp_path: Path) -> None:
    disks = [tmp_path / "disk-a" / "log", tmp_path / "disk-b" / "log"]
    environment = {
        "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB",
        "REPUT_STORE__MESSAGE_SIZE_MAX": "64KiB",
        "REPUT_STORE__COMMIT_LOG_DIRS": ",".join(map(str, disks)),
        "REPUT_METRICS__REFRESH_INTERVAL": "1s",
    }
    bodies = [b"%04d:" % number + bytes(1000) for number in range(2_000)]
    with BrokerProcess(tmp_path / "store", environment=environment) as process:
        for some, ack in ((bodies[:1000], AckLevel.PAGE_CACHE), (bodies[1000:], AckLevel.FLUSHED)):
            with Producer(process.address, group="log-files") as producer:
                for start in range(0, 1000, 50):
                    messages = [Message("t", body) for body in some[start : start + 50]]
                    producer.send_batch(messages, queue_id=0, ack=ack)
            process.kill()
            process.start()
            process.wait_ready()
        assert bodies_of(process.address, "t") == bodies
        numbers = [sorted(int(path.name) // FILE for path in disk.iterdir()) for disk in disks]
        assert len(numbers[0]) > 2
        assert all(number % 2 == 0 for number in numbers[0])
        assert all(number % 2 == 1 for number in numbers[1])
        assert not (tmp_path / "store" / "commitlog").exists()
    with BrokerProcess(tmp_path / "store", environment=environment) as process:
        assert bodies_of(process.address, "t") == bodies
        assert metric(process, "reput_log_file_waits_total") == 0


def test_a_directory_of_the_log_belongs_to_one_broker(tmp_path: Path) -> None:
    shared = {"REPUT_STORE__COMMIT_LOG_DIRS": str(tmp_path / "log")}
    with BrokerProcess(tmp_path / "one", environment={**POOL, **shared}) as process:
        with Producer(process.address, group="log-files") as producer:
            producer.send(Message("t", b"x"), queue_id=0)
        assert process.terminate() == 0
    with BrokerProcess(tmp_path / "one", environment={**POOL, **shared}) as process:
        other = BrokerProcess(tmp_path / "two", environment={**POOL, **shared})
        other.start()
        assert other.wait(30.0) == 1
        assert f"{tmp_path / 'log'} is in use by another store" in other.log_tail()
        assert bodies_of(process.address, "t") == [b"x"]
