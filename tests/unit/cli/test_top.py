"""`reput top`, `topic list` and `broker status`: what they show of a broker."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Producer
from reput_protocol.exit_codes import ExitCode
from support.command import reput
from support.waiting import can_read


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with topics of different sizes, and a group with a lag in one of them."""
    config = BrokerConfig(data_dir=tmp_path_factory.mktemp("broker"), port=0)
    with BackgroundBroker(config) as broker:
        with Producer(broker.address, group="shop") as producer:
            producer.send_many("orders-few", [b"x" * 1000] * 2)
            producer.send_many("orders-many", [b"x" * 100] * 30)
        with Admin(broker.address) as admin:
            admin.create_topic("empty", queues=2)
            for queue_id in range(4):
                admin.commit_offset("billing", "orders-many", queue_id, 0)
        yield broker.address


def rows(server: str, *line: str) -> list[dict[str, Any]]:
    done = reput(*line, "--json", server=server)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_topics_are_listed_with_what_they_hold(server: str) -> None:
    topics = {row["topic"]: row for row in rows(server, "topic", "list")}
    assert list(topics) == ["empty", "orders-few", "orders-many"]
    assert {key: topics["empty"][key] for key in ("read_queues", "write_queues", "permission", "messages")} == {
        "read_queues": 2, "write_queues": 2, "permission": "rw", "messages": 0,
    }  # fmt: skip
    assert topics["empty"]["size_bytes"] == 0
    assert (topics["orders-few"]["messages"], topics["orders-many"]["messages"]) == (2, 30)
    # Bodies of 1,000 and of 100 bytes, with the rest of a record: equal records, so the estimate is exact.
    assert 2_000 < topics["orders-few"]["size_bytes"] < 3_000
    assert 30 * 100 < topics["orders-many"]["size_bytes"] < 30 * 350
    assert topics["orders-many"]["messages_in_per_s"] >= 0


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (("orders*",), ["orders-few", "orders-many"]),
        (("many",), ["orders-many"]),
        (("*y",), ["empty", "orders-many"]),
        (("--sort", "messages"), ["orders-many", "orders-few", "empty"]),
        (("none",), []),
    ],
)
def test_topics_are_searched_and_sorted(server: str, line: tuple[str, ...], names: list[str]) -> None:
    assert [row["topic"] for row in rows(server, "topic", "list", *line)] == names


def test_topics_of_the_system_are_listed_on_request(server: str) -> None:
    names = [row["topic"] for row in rows(server, "topic", "list", "--all")]
    assert {"TBW102", "empty", "SCHEDULE_TOPIC_XXXX"} <= set(names)
    shown = reput("topic", "list", "-O", "table", server=server).stdout.splitlines()
    assert shown[0].split() == ["TOPIC", "QUEUES", "PERMISSION", "MESSAGES", "IN/S", "OUT/S", "SIZE"]
    assert [line.split()[:4] for line in shown[2:]] == [
        ["empty", "2", "rw", "0"],
        ["orders-few", "4", "rw", "2"],
        ["orders-many", "4", "rw", "30"],
    ]


def test_the_state_of_a_broker_fits_a_screen(server: str) -> None:
    shown = reput("broker", "status", "-O", "table", server=server).stdout
    assert len(shown.splitlines()) < 20
    assert re.search(rf"^broker-a  {re.escape(server)}  running, ready$", shown, re.MULTILINE)
    assert re.search(r"^  up         [\d.]+s, since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", shown, re.MULTILINE)
    assert re.search(r"^  topics     3 topics, retry and dead-letter topics included$", shown, re.MULTILINE)
    assert re.search(r"^  checks     all \d+ pass$", shown, re.MULTILINE)
    # Programs get every figure, as before.
    assert "store.flushed_offset\t" in reput("broker", "status", server=server).stdout
    assert rows_of_status(server)["store"]["flush_behind_bytes"] == 0


def rows_of_status(server: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(reput("--json", "broker", "status", server=server).stdout)
    return found


def test_top_once(server: str) -> None:
    topics = rows(server, "top", "--once", "--sort", "messages")
    assert [(row["topic"], row["messages"]) for row in topics] == [
        ("orders-many", 30), ("orders-few", 2), ("empty", 0),
    ]  # fmt: skip
    (group,) = rows(server, "top", "groups", "--once")
    assert (group["group"], group["members"], group["topics"]) == ("billing", 0, 1)
    assert group["lag"] == 30
    assert group["state"] == "empty"
    clients = rows(server, "top", "clients", "--once")
    assert {row["role"] for row in clients} >= {"admin"}
    table = reput("top", "--once", "-O", "table", server=server).stdout
    assert table.splitlines()[0].split() == ["TOPIC", "QUEUES", "MESSAGES", "SIZE", "IN/S", "OUT/S", "DELAYED"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("top", "--sort", "lag"), "topics have the columns topic, queues, messages"),
        (("top", "--interval", "1ms"), "the shortest is 0.2s"),
        (("top", "topic"), "'topic' is not one of 'topics', 'groups', 'clients'"),
    ],
)
def test_top_refuses_what_it_cannot_show(server: str, line: tuple[str, ...], says: str) -> None:
    done = reput(*line, server=server)
    assert done.returncode == ExitCode.USAGE
    assert says in done.stderr


class Terminal:
    """`reput top` on a terminal of its own."""

    def __init__(self, server: str) -> None:
        self.master, slave = pty.openpty()
        self.slave = slave
        termios.tcsetwinsize(slave, (30, 120))
        self.before = termios.tcgetattr(slave)
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reput_cli", "top", "--interval", "0.3s", "--server", server],
            stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip

    def wait_for(self, text: str) -> None:
        """Read until the text has appeared since the last call."""
        deadline = time.monotonic() + 30
        while text not in self.text:
            assert time.monotonic() < deadline, self.text[-2000:]
            if can_read(self.master, within_s=0.1):
                self.text += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        self.text = self.text.partition(text)[2]

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def ended(self) -> int:
        """Wait for the end, and check that the terminal is as before."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None or can_read(self.master, within_s=0):
            assert time.monotonic() < deadline
            if can_read(self.master, within_s=0.05):
                self.text += os.read(self.master, 1 << 16).decode("utf-8", "replace")
        status = self.process.returncode
        assert termios.tcgetattr(self.slave) == self.before
        os.close(self.master)
        os.close(self.slave)
        return status


def test_top_on_a_terminal(server: str) -> None:
    terminal = Terminal(server)
    terminal.wait_for("\x1b[?1049h")  # the other screen
    terminal.wait_for("orders-many")
    terminal.press("g")
    terminal.wait_for("1 groups")
    terminal.wait_for("billing")
    terminal.press("s")
    terminal.wait_for("by lag age")
    terminal.press("c")
    terminal.wait_for("CLIENT ID*")
    terminal.press("q")
    assert terminal.ended() == 0
    assert "\x1b[?1049l" in terminal.text
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_ends_cleanly_on_a_signal(server: str, number: signal.Signals) -> None:
    terminal = Terminal(server)
    terminal.wait_for("orders-many")
    terminal.process.send_signal(number)
    assert terminal.ended() == 0
    assert "\x1b[?1049l" in terminal.text
    assert "Traceback" not in terminal.text
