"""A dead letter is sent once, whichever two ways ask for it, at once and again, with kills between."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from itertools import combinations_with_replacement, count
from pathlib import Path
from typing import Any

import pytest

from reput_client.blocking import Admin
from reput_client.errors import ReputError
from reput_pipeline.jobs.dlq import _replay
from reput_pipeline.jobs.run import JobFailed, JobRun
from reput_pipeline.source.options import parse_source_options
from support.broker_process import BrokerProcess
from support.console_client import ConsoleClient
from support.dead_letters import send_and_give_up
from support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.fault]

LETTERS = 24
TOKEN = "a-token-of-a-test-0123456789"
KILLED = ReputError, JobFailed, OSError, HTTPException, AssertionError, subprocess.CalledProcessError
"""How a way may end if the broker is killed meanwhile."""
_numbers = count()


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    environment = {"REPUT_CONSOLE__TOKEN": TOKEN, "REPUT_STORE__FLUSH": "sync"}
    with BrokerProcess(module_path / "store", environment=environment) as process:
        yield process


class Rows:
    """The frame with the letters of a group, as the job has read it from the broker."""

    def __init__(self, broker: BrokerProcess, group: str) -> None:
        with Admin(broker.address, timeout_s=10.0) as admin:
            topic = f"%DLQ%{group}"
            messages = admin.fetch_messages(topic, 0, 0, LETTERS).messages
            self._rows = [
                {
                    "group": group,
                    "brokerName": message.broker_name,
                    "queueOffset": message.queue_offset,
                    "physicalOffset": message.physical_offset,
                }
                for message in messages
            ]

    def select(self, *_: str) -> Rows:
        return self

    def orderBy(self, *_: str) -> Rows:  # noqa: N802 (Spark's name)
        return self

    def toLocalIterator(self) -> Iterator[dict[str, Any]]:  # noqa: N802
        return iter(self._rows)


def post(broker: BrokerProcess, **values: str) -> None:
    console = ConsoleClient(f"127.0.0.1:{broker.http_port}")
    assert console.post("login", {"secret": TOKEN}).status == 200
    assert console.post("actions/replay-dead-letters", {"values": values}).status == 200


def selection(broker: BrokerProcess, group: str) -> Callable[[], None]:
    offsets = ",".join(map(str, range(LETTERS)))
    return lambda: post(broker, group=group, offsets=offsets)


def everything(broker: BrokerProcess, group: str) -> Callable[[], None]:
    return lambda: post(broker, group=group)


def command(broker: BrokerProcess, group: str) -> Callable[[], None]:
    arguments = ["dlq", "replay", group, "--yes", "--server", broker.address, "--timeout", "30s"]

    def run() -> None:
        subprocess.run([sys.executable, "-m", "reput_cli", *arguments], check=True, capture_output=True, timeout=60)

    return run


def spark_job(broker: BrokerProcess, group: str) -> Callable[[], None]:
    rows: Any = Rows(broker, group)
    options = parse_source_options({"nameServer": broker.address, "subscribe": f"%DLQ%{group}"})

    def run() -> None:
        _replay(JobRun("dlq"), rows, broker.address, None, 1000.0, options)

    return run


WAYS = (selection, everything, command, spark_job)


@pytest.mark.parametrize(("one", "other"), [*combinations_with_replacement(WAYS, 2)], ids=lambda way: way.__name__)
def test_two_ways_at_once_over_a_kill_of_the_broker(
    broker: BrokerProcess, one: Callable[..., Any], other: Callable[..., Any]
) -> None:
    number = next(_numbers)
    group, topic = f"group{number}", f"orders{number}"
    bodies = [b"%d" % letter for letter in range(LETTERS)]
    send_and_give_up(broker.address, group, topic, bodies)
    ways = [one(broker, group), other(broker, group)]

    def run(way: Callable[[], None]) -> None:
        with suppress(*KILLED):
            way()

    threads = [threading.Thread(target=run, args=(way,)) for way in ways]
    for thread in threads:
        thread.start()
    with Admin(broker.address, timeout_s=30.0) as admin:
        wait_until(lambda: admin.max_offset(topic, 0) > LETTERS, 30)
    broker.kill()
    broker.start()
    broker.wait_ready()
    for thread in threads:
        thread.join()
    for way in ways:
        way()
    with Admin(broker.address, timeout_s=30.0) as admin:
        found = admin.fetch_messages(topic, 0, LETTERS, admin.max_offset(topic, 0)).messages
        assert sorted(message.body for message in found) == sorted(bodies)
        replays = admin.replays(group, 0, LETTERS)
        assert (replays.kept, replays.replayed, len(replays.replays)) == (LETTERS, LETTERS, LETTERS)


def test_a_killed_command_and_then_another_way(broker: BrokerProcess) -> None:
    send_and_give_up(broker.address, "killed", "killed", [b"%d" % letter for letter in range(LETTERS)])
    arguments = ["dlq", "replay", "killed", "--yes", "--rate", "40/s", "--server", broker.address]
    work = subprocess.Popen([sys.executable, "-m", "reput_cli", *arguments], stderr=subprocess.DEVNULL)
    with Admin(broker.address, timeout_s=30.0) as admin:
        wait_until(lambda: admin.max_offset("killed", 0) > LETTERS + 2, 30)
        work.kill()
        work.wait()
        sent = admin.replays("killed").replayed
        assert 2 < sent < LETTERS
        spark_job(broker, "killed")()
        everything(broker, "killed")()
        assert admin.max_offset("killed", 0) == 2 * LETTERS
