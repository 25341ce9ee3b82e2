"""A member that a signal ends under load: it exits with 0, and nothing that it handled is redelivered."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
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

    def __init__(self, address: str) -> None:
        self._address = address
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
                producer.send_many("t", [b"%d" % (self.sent + n) for n in range(_BATCH)])
                self.sent += _BATCH


BY_SIGNAL = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


@pytest.mark.parametrize("concurrency", [1, 4])
@BY_SIGNAL
@pytest.mark.parametrize("face", FACES)
def test_nothing_handled_is_redelivered(tmp_path: Path, face: str, number: int, concurrency: int) -> None:
    _check(tmp_path, number, "--face", face, "--concurrency", str(concurrency))


@pytest.mark.parametrize("concurrency", [1, 4])
@BY_SIGNAL
@pytest.mark.parametrize("face", FACES)
def test_nothing_popped_and_handled_is_redelivered(
    tmp_path: Path, face: str, number: int, concurrency: int
) -> None:
    """What it has in hand is given back, so the next member gets it at once, not a minute later."""
    _check(tmp_path, number, "--pop", "--face", face, "--concurrency", str(concurrency))


@BY_SIGNAL
def test_a_loop_ends_by_the_handler_of_the_program(tmp_path: Path, number: int) -> None:
    _check(tmp_path, number, "--loop", "--face", "blocking")


@pytest.mark.parametrize("kind", ["group", "pop"])
@pytest.mark.parametrize("face", FACES)
def test_the_first_process_of_a_container_ends_at_sigterm(tmp_path: Path, face: str, kind: str) -> None:
    """Without a handler of its own the kernel would drop the signal, and the container be killed 10 s later."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("it takes root and Linux to make a namespace of processes")
    _check(tmp_path, signal.SIGTERM, *(["--pop"] if kind == "pop" else []), "--face", face, init=True)


def _check(tmp_path: Path, number: int, *options: str, init: bool = False) -> None:
    """A signal ends a member under load; the rest of the group gets what it has not handled, and nothing else."""
    with BrokerProcess(tmp_path / "store") as broker:
        with Admin(broker.address, timeout_s=30.0) as admin:
            admin.create_topic("t", queues=4)
        with Load(broker.address) as load:
            member = MemberProcess(
                broker.address,
                "g",
                "t",
                tmp_path / "report",
                *options,
                init=init,
            )
            wait_until(lambda: len(member.handled()) >= 100 or member.process.poll() is not None)
            member.signal(number)
            assert member.wait() == 0, member.log()
        handled = [int(event.body) for event in member.handled()]
        assert len(handled) >= 100
        assert "Traceback" not in member.log()
        rest: list[int] = []
        if "--pop" in options:
            with PopConsumer(broker.address, group="g", topic="t") as popping:
                while len(handled) + len(rest) < load.sent:
                    popped = popping.receive(wait_s=10.0)
                    assert popped, "a message is missing"
                    rest += [int(each.body) for each in popped]
        else:
            with Consumer(broker.address, group="g", topic="t") as consumer:
                while len(handled) + len(rest) < load.sent:
                    message = consumer.receive(10.0)
                    assert message is not None, "a message is missing"
                    rest.append(int(message.body))
    assert sorted(handled + rest) == list(range(load.sent)), "each message is handled once"
