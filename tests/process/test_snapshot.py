"""Snapshots of a broker at work, taken and restored with the commands of docs/backup.md."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from reput_client import Message, ReceivedMessage, TransactionState
from reput_client.blocking import Admin, Producer, PullConsumer, TransactionProducer
from support.broker_process import BrokerProcess
from support.command import reput
from support.sink_client import SinkClient, Staged
from support.store_samples import fill
from support.stored_messages import bodies_of

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
OPTIONS = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64KiB",
    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "100",
    "REPUT_DELAY__TIMER_LOG_FILE_SIZE": "4KiB",
    "REPUT_OFFSETS__FLUSH_INTERVAL": "100ms",
    "REPUT_STORE__INDEX_ENTRIES": "1000",
}
TOPICS = ("orders", "delayed", "transactions", "batches")
COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
KILLED_AT_THE_END = (
    "import os; from reput_broker.tools import snapshot; from reput_cli.main import main; "
    "snapshot._sync_tree = lambda _: os.kill(os.getpid(), 9); main()"
)


def commands(language: str, directory: Path) -> list[str]:
    """The commands of the page, for directories below another one."""
    text = PAGE.read_text().replace("/var/lib", f"{directory}").replace("/backup", f"{directory}/backup")
    return [
        line
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]


class Load:
    """Clients that note what was acknowledged, each in a thread."""

    def __init__(self, address: str) -> None:
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.rolled_back: list[bytes] = []
        self.committed = 0
        self.topics_deleted = 0
        self._address = address
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        jobs = (self._send, self._delay, self._transact, self._sink, self._commit, self._create_and_delete)
        self._threads = [threading.Thread(target=self._until_stopped, args=(job,)) for job in jobs]
        with Admin(address) as admin:
            for topic in TOPICS:
                admin.create_topic(topic, queues=1)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed

    def now(self) -> dict[str, list[bytes]]:
        """What is acknowledged by now."""
        return {topic: found[:] for topic, found in self.acknowledged.items()}

    def _until_stopped(self, job: Callable[[ExitStack], Callable[[int], None]]) -> None:
        try:
            with ExitStack() as clients:
                step = job(clients)
                number = 0
                while not self._stop.is_set():
                    step(number)
                    number += 1
        except BaseException as error:
            self._failed.append(error)

    def _send(self, clients: ExitStack) -> Callable[[int], None]:
        producer = clients.enter_context(Producer(self._address))

        def step(number: int) -> None:
            batch = [Message("orders", b"%d-%d" % (number, i) + bytes(200), keys=[f"k{number}"]) for i in range(10)]
            producer.send_batch(batch)
            self.acknowledged["orders"] += [bytes(message.body) for message in batch]

        return step

    def _delay(self, clients: ExitStack) -> Callable[[int], None]:
        producer = clients.enter_context(Producer(self._address))

        def step(number: int) -> None:
            delay = {"delay_level": 1} if number % 3 == 0 else {"delay_s": number % 7 * 0.3}
            producer.send(Message("delayed", b"%d" % number, **delay))
            self.acknowledged["delayed"].append(b"%d" % number)
            time.sleep(0.005)

        return step

    def _transact(self, clients: ExitStack) -> Callable[[int], None]:
        def check(_: ReceivedMessage) -> TransactionState:
            return COMMIT

        producer = clients.enter_context(TransactionProducer(self._address, group="shop", check=check))

        def step(number: int) -> None:
            state = ROLLBACK if number % 4 == 0 else COMMIT
            producer.send_in_transaction(Message("transactions", b"%d" % number), lambda _: state)
            found = self.rolled_back if state is ROLLBACK else self.acknowledged["transactions"]
            found.append(b"%d" % number)

        return step

    def _sink(self, clients: ExitStack) -> Callable[[int], None]:
        client = clients.enter_context(SinkClient(self._address))

        def step(number: int) -> None:
            staged = Staged("query", number)
            bodies = [b"%d-%d" % (number, i) for i in range(5)]
            assert client.stage(staged, "batches", 0, bodies).code == 0
            assert client.end(staged).code == 0
            assert client.commit("query", number, [staged]).code == 0
            self.acknowledged["batches"] += bodies

        return step

    def _commit(self, clients: ExitStack) -> Callable[[int], None]:
        consumer = clients.enter_context(PullConsumer(self._address, group="billing"))

        def step(number: int) -> None:
            consumer.commit("orders", 0, number)
            self.committed = number
            time.sleep(0.002)

        return step

    def _create_and_delete(self, clients: ExitStack) -> Callable[[int], None]:
        admin = clients.enter_context(Admin(self._address))
        producer = clients.enter_context(Producer(self._address))

        def step(number: int) -> None:
            topic = f"short-{number % 3}"
            admin.create_topic(topic, queues=1)
            producer.send(Message(topic, b"x"))
            time.sleep(0.05)
            admin.delete_topic(topic)
            self.topics_deleted += 1
            time.sleep(0.1)

        return step


def test_a_snapshot_under_load_is_restored_with_every_acknowledged_message(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    take, verify, restore, serve = (shlex.split(line, comments=True) for line in commands("sh", tmp_path))
    with BrokerProcess(tmp_path / "reput", environment=OPTIONS) as broker, Load(broker.address) as load:
        time.sleep(0.5)
        subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, *take[1:]], check=False)
        target, partial = Path(take[-1]), Path(take[-1] + ".partial")
        assert not target.exists()
        assert reput("store", "verify", partial).returncode == 7
        again = reput(*take[1:])
        assert again.returncode == 1
        assert f"rm -r {partial}" in again.stderr
        shutil.rmtree(partial)

        for _ in range(3):
            shutil.rmtree(target, ignore_errors=True)
            committed, before, rolled_back = load.committed, load.now(), load.rolled_back[:]
            done = reput(*take[1:])
            assert done.returncode == 0, done.stderr
            assert "the broker was running" in done.stderr
            checked = reput(*verify[1:])
            assert checked.returncode == 0, checked.stdout + checked.stderr
    assert load.topics_deleted >= 3
    assert all(len(found) >= 5 for found in before.values()), {name: len(found) for name, found in before.items()}
    subprocess.run(restore, check=True)
    restored = tmp_path / "reput-restored"
    assert serve == ["reput", "serve", "--data-dir", str(restored)]
    with BrokerProcess(restored, environment=OPTIONS) as broker:
        deadline = time.monotonic() + 30
        while set(before["delayed"]) - set(bodies_of(broker.address, "delayed")) and time.monotonic() < deadline:
            time.sleep(0.1)
        for topic in TOPICS:
            counts = Counter(bodies_of(broker.address, topic))
            assert not set(before[topic]) - set(counts), topic
            assert set(counts.values()) == {1}, topic
        assert not set(rolled_back) & set(bodies_of(broker.address, "transactions"))
        batches = Counter(body.partition(b"-")[0] for body in bodies_of(broker.address, "batches"))
        assert set(batches.values()) == {5}
        with PullConsumer(broker.address, group="billing") as consumer:
            assert (consumer.committed("orders", 0) or 0) >= committed
        with Producer(broker.address) as producer:
            producer.send(Message("orders", b"after the restore"))
    checked = reput("store", "verify", restored)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_night(tmp_path: Path) -> None:
    fill(tmp_path / "reput")
    (tmp_path / "backup" / "reput-old").mkdir(parents=True)
    os.utime(tmp_path / "backup" / "reput-old", (0, 0))
    (line,) = commands("text", tmp_path)
    assert line.startswith("30 2 * * * ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = line.removeprefix("30 2 * * * ").replace("\\%", "%")
    subprocess.run(["sh", "-c", command], env={**os.environ, "PATH": path}, check=True)
    (kept,) = (tmp_path / "backup").iterdir()
    assert re.fullmatch(r"reput-\d{4}-\d\d-\d\d", kept.name)
