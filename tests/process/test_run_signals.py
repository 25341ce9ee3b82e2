"""A member that a signal ends under load: it exits with 0, and nothing that it handled is redelivered."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Consumer, PopConsumer, Producer
from support.broker_process import BrokerProcess
from support.faces import FACES
from support.group_member import MemberProcess
from support.waiting import wait_until

pytestmark = pytest.mark.process

_BATCH = 50


class Load:
    """Sends numbered messages until it is stopped."""

    def __init__(self, address: str, topic: str) -> None:
        self._address = address
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _send(self) -> None:
        with Producer(self._address, timeout_s=30.0) as producer:
            while not self._stopping.wait(0.01):
                producer.send_many(self._topic, [b"%d" % (self.sent + n) for n in range(_BATCH)])
                self.sent += _BATCH


MEMBERS = pytest.mark.parametrize(
    ("face", "number", "concurrency"),
    [
        (face, number, concurrency)
        for face in FACES
        for number, concurrency in ((signal.SIGTERM, 1), (signal.SIGINT, 4))
    ],
)


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(module_path / "store") as broker:
        yield broker


@MEMBERS
def test_nothing_handled_is_redelivered(
    broker: BrokerProcess, tmp_path: Path, face: str, number: int, concurrency: int
) -> None:
    _check(broker, tmp_path, number, "--face", face, "--concurrency", str(concurrency))


@MEMBERS
def test_nothing_popped_and_handled_is_redelivered(
    broker: BrokerProcess, tmp_path: Path, face: str, number: int, concurrency: int
) -> None:
    """What it has in hand is given back, so the next member gets it at once, not a minute later."""
    _check(broker, tmp_path, number, "--pop", "--face", face, "--concurrency", str(concurrency))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loop_ends_by_the_handler_of_the_program(broker: BrokerProcess, tmp_path: Path, number: int) -> None:
    _check(broker, tmp_path, number, "--loop", "--face", "blocking")


@pytest.mark.parametrize("kind", ["group", "pop"])
@pytest.mark.parametrize("face", FACES)
def test_the_first_process_of_a_container_ends_at_sigterm(
    broker: BrokerProcess, tmp_path: Path, face: str, kind: str
) -> None:
    """Without a handler of its own the kernel would drop the signal, and the container be killed 10 s later."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("it takes root and Linux to make a namespace of processes")
    options = ["--pop"] if kind == "pop" else []
    _check(broker, tmp_path, signal.SIGTERM, *options, "--face", face, init=True)


_topics = (f"topic-{number}" for number in count())


def _check(broker: BrokerProcess, tmp_path: Path, number: int, *options: str, init: bool = False) -> None:
    """A signal ends a member under load; the rest of the group gets what it has not handled, and nothing else."""
    topic = group = next(_topics)
    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.create_topic(topic, queues=4)
    with Load(broker.address, topic) as load:
        member = MemberProcess(broker.address, group, topic, tmp_path / "report", *options, init=init)
        wait_until(lambda: len(member.handled()) >= 100 or member.process.poll() is not None)
        member.signal(number)
        assert member.wait() == 0, member.log()
    handled = [int(event.body) for event in member.handled()]
    assert len(handled) >= 100
    assert "Traceback" not in member.log()
    rest: list[int] = []
    if "--pop" in options:
        with PopConsumer(broker.address, group=group, topic=topic) as popping:
            while len(handled) + len(rest) < load.sent:
                popped = popping.receive(wait_s=10.0)
                assert popped, "a message is missing"
                rest += [int(each.body) for each in popped]
    else:
        with Consumer(broker.address, group=group, topic=topic) as consumer:
            while len(handled) + len(rest) < load.sent:
                message = consumer.receive(10.0)
                assert message is not None, "a message is missing"
                rest.append(int(message.body))
    assert sorted(handled + rest) == list(range(load.sent)), "each message is handled once"
