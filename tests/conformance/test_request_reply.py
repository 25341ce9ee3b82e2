"""RocketMQ's own client sends requests and replies to ours, through this broker."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance import apache
from reput_client.blocking import Admin, Consumer, Message, Producer
from reput_client.errors import ClientClosed
from support.broker_process import BrokerProcess

pytestmark = pytest.mark.process


class JavaClient:
    """The official client: it replies to everything in `java`, and sends given requests to `ours`."""

    def __init__(self, address: str, home: Path) -> None:
        home.mkdir()
        self._errors = (home / "stderr").open("wb")
        self._process = subprocess.Popen(
            [
                "java",
                *apache.JVM_OPTIONS,
                f"-Duser.home={home}",
                f"-Djava.io.tmpdir={home}",
                *("-cp", apache.classpath(), "reput.conformance.Requests", address, "ours", "java"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        assert self._answer() == {"body": "ready"}

    def request(self, body: str) -> dict[str, Any]:
        """Send a request and return its reply, or what went wrong."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{body}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        return line

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "store") as process:
        with Admin(process.address, timeout_s=30.0) as admin:
            for topic in ("ours", "java"):
                admin.create_topic(topic, queues=2)
        yield process


@pytest.fixture
def java(broker: BrokerProcess, tmp_path: Path) -> Iterator[JavaClient]:
    client = JavaClient(broker.address, tmp_path / "java")
    yield client
    client.close()


def test_rocketmqs_client_gets_replies_of_ours(broker: BrokerProcess, java: JavaClient) -> None:
    consumer = Consumer(broker.address, group="workers", topic="ours", start="earliest", timeout_s=30.0)
    with Producer(broker.address, timeout_s=30.0) as producer, consumer:

        def work() -> None:
            try:
                for message in consumer:
                    producer.reply(message, b"ours: " + message.body, timeout_s=30.0)
            except ClientClosed:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        for number in range(20):
            assert java.request(f"ping {number}") == {"body": f"ours: ping {number}"}
        consumer.close()
        thread.join()


def test_our_client_gets_replies_of_rocketmqs(broker: BrokerProcess, java: JavaClient) -> None:
    with Producer(broker.address, timeout_s=60.0) as producer:
        for number in range(20):
            reply = producer.request(Message("java", b"ping %d" % number))
            assert reply.body == b"Java: ping %d" % number
            assert reply.get_property("MSG_TYPE") == "reply"
    assert java is not None
