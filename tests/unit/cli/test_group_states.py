"""One definition of a group's health: a broker decides it, and every place shows the same."""

from __future__ import annotations

import ast
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from reput_broker.tenure.core import Surroundings
from reput_cli.doctor import broker as of_broker
from reput_cli.root import root
from reput_client.blocking import Admin, Consumer, Message, PopConsumer, Producer, PullConsumer
from reput_protocol.names import is_own_group
from support.console_client import ConsoleClient
from support.scrapes import read
from support.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parents[3]
RULES: Final = ROOT / "conf" / "prometheus" / "rules.yml"
STORE: Final = {
    "commit_log_file_size": "16MiB",
    "index_slots": 5_000,
    "index_entries": 20_000,
    "flush": "async",
    "disk_clean_forcibly_ratio": 1.0,
    "disk_warning_ratio": 1.0,
}
FAULTS: Final = ("conflicting", "empty", "stuck", "behind")


class ShiftedBroker(BackgroundBroker):
    """A broker whose clock can be set forward, so that minutes pass at once."""

    def __init__(self, data_dir: Path) -> None:
        self.ahead_ms = 0
        config = BrokerConfig(
            data_dir=data_dir, port=0, http_port=0, store=STORE, groups={"lag_refresh_interval": "1s"}
        )
        super().__init__(config, Surroundings(clock_ms=self.now_ms))

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def pass_minutes(self, minutes: int) -> None:
        """Set the clock forward once the broker has seen what there is now, and wait until it has noticed."""
        self._looked_up()
        self.ahead_ms += minutes * 60_000
        self._looked_up()

    def _looked_up(self) -> None:
        since_s = self.now_ms() / 1000
        wait_until(lambda: self.metrics()["reput_consumer_lag_refresh_time_seconds", frozenset()] > since_s)

    def metrics(self) -> dict[Any, float]:
        with urllib.request.urlopen(f"http://{self.http_address}/metrics", timeout=10.0) as answer:
            return read(answer.read().decode())


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShiftedBroker]:
    monkeypatch.setattr(of_broker, "CLOCK_S", 1e6)
    monkeypatch.setattr(of_broker, "SLOW_S", 30.0)
    with ShiftedBroker(tmp_path / "store") as running:
        monkeypatch.setenv("REPUT_SERVER", running.address)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        yield running


def run(*arguments: str) -> tuple[Any, str]:
    """Return what a command prints as JSON, and its notes."""
    done = CliRunner().invoke(root, [*arguments, "-O", "json"], catch_exceptions=False, standalone_mode=False)
    return json.loads(done.stdout), done.stderr


def listed() -> dict[str, dict[str, Any]]:
    return {row["group"]: row for row in run("group", "list")[0]}


def in_doctor(*arguments: str) -> list[str]:
    return [finding["found"] for finding in run("doctor", *arguments)[0] if finding["state"] == "fault"]


def in_metrics(broker: ShiftedBroker) -> dict[str, str]:
    found = {}
    for (name, labels), value in broker.metrics().items():
        if name == "reput_consumer_group_state":
            of = dict(labels)
            assert (value, of["group"] in found) == (1, False), "one series for each group"
            found[of["group"]] = of["state"]
    return found


def send(broker: ShiftedBroker, topic: str, count: int) -> None:
    with Producer(broker.address) as producer:
        producer.send_batch([Message(topic, b"x") for _ in range(count)], queue_id=0)


def member(scene: ExitStack, broker: ShiftedBroker, group: str, **options: Any) -> Consumer:
    return scene.enter_context(Consumer(broker.address, group=group, start="earliest", **options))


def test_every_place_shows_the_state_that_the_broker_decides(broker: ShiftedBroker) -> None:
    """One scene of each state: the list, the description, the doctor, the console and the metrics agree."""
    with ExitStack() as scene:
        with Admin(broker.address) as admin:
            for topic in ("ok", "stuck", "empty", "behind", "conflicting"):
                admin.create_topic(topic, queues=1)
                send(broker, topic, 4)
        members = {name: member(scene, broker, name, topic=name) for name in ("ok", "stuck", "behind")}
        members["conflicting"] = member(scene, broker, "conflicting", topic="conflicting", tags="a")
        member(scene, broker, "conflicting", topic="conflicting", tags="b")
        with Consumer(broker.address, group="empty", start="earliest", topic="empty") as leaves:
            assert leaves.receive(20.0) is not None
        for name in ("stuck", "behind"):
            assert members[name].receive(20.0) is not None
        for _ in range(4):
            assert members["ok"].receive(20.0) is not None
        members["ok"].commit()
        for _ in range(3):
            send(broker, "behind", 4_000)
        wait_until(lambda: listed().get("conflicting", {}).get("state") == "conflicting")
        broker.pass_minutes(2)
        assert members["behind"].receive(20.0) is not None  # it is slow, but goes on
        members["behind"].commit()

        found = listed()
        states = {name: row["state"] for name, row in found.items()}
        assert states == {name: name for name in ("ok", "stuck", "empty", "behind", "conflicting")}
        for name in FAULTS:
            assert 110 < (broker.now_ms() - found[name]["since_ms"]) / 1000 < 180, (name, found[name])
            assert found[name]["reason"]
        assert found["ok"]["since_ms"] is None
        where = {name: (row["member"], row["queue"]) for name, row in found.items()}
        assert where == {
            "ok": (None, None),
            "stuck": (members["stuck"].client_id, "stuck-0"),
            "empty": (None, None),
            "behind": (members["behind"].client_id, "behind-0"),
            "conflicting": (members["conflicting"].client_id, None),
        }
        assert found["behind"]["lag"] > 10_000

        faults = in_doctor()
        assert [fault.split()[:3] for fault in faults] == [
            [name, "is", name] for name in ("conflicting", "empty", "stuck", "behind")
        ]
        overview = ConsoleClient(str(broker.http_address)).get("groups")
        assert [(row["group"], row["health"]["state"]) for row in overview["faults"]] == [
            (name, name) for name in ("conflicting", "empty", "stuck", "behind")
        ]
        wait_until(lambda: in_metrics(broker) == states)
        for name in FAULTS:
            _, notes = run("group", "describe", name)
            assert notes.startswith(f"group {name}: {name}, ")
            assert found[name]["reason"] in notes
            fault, *others = in_doctor("group", name)
            assert fault.startswith(f"{name} for ")
            assert fault.endswith(found[name]["reason"])
            page = ConsoleClient(str(broker.http_address)).get("group", group=name)
            problem, *more = page["problems"]
            assert (problem["state"], problem["reason"]) == (name, found[name]["reason"])
            assert problem == page["health"]
            # Those that disagree do not consume here either.
            assert len(others) == len(more) == (name == "conflicting")
        assert in_doctor("group", "ok") == []


def test_each_state_that_is_a_fault_has_an_alert() -> None:
    """The alerts compare nothing themselves."""
    rules = RULES.read_text()
    assert set(re.findall(r'expr: reput_consumer_group_state\{state="(\w+)"\} == 1', rules)) == {*FAULTS}
    assert "reput_consumer_lag" not in rules


def test_groups_of_reputs_tools_are_never_at_fault(broker: ShiftedBroker) -> None:
    send(broker, "T", 3)
    with PullConsumer(broker.address, group="celery-results") as consumer:
        consumer.commit("T", 0, 1)
    assert listed()["celery-results"]["state"] == "ok"
    assert in_doctor() == []
    broker.pass_minutes(20)
    assert listed()["celery-results"]["state"] == "ok"
    assert "celery-results" not in in_metrics(broker)


def test_every_group_that_a_tool_names_is_known() -> None:
    clients = ("Producer", "PullConsumer", "Consumer", "PopConsumer")
    named = set()
    for package in ("broker", "cli", "client", "pipeline", "proxy"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in clients:
                    named |= {
                        str(keyword.value.value)
                        for keyword in node.keywords
                        if keyword.arg == "group" and isinstance(keyword.value, ast.Constant)
                    }
    assert "celery-results" in named
    assert [name for name in named if not is_own_group(name)] == []


@pytest.mark.parametrize("kind", [PullConsumer, PopConsumer])
def test_a_client_that_is_no_member_consumes_nevertheless(broker: ShiftedBroker, kind: Callable[..., Any]) -> None:
    """A group is empty only once that client has gone."""
    send(broker, "T", 3)
    if kind is PullConsumer:
        with PullConsumer(broker.address, group="g") as puller:
            puller.commit("T", 0, 1)
            assert listed()["g"]["state"] == "ok"
    else:
        with PopConsumer(broker.address, group="g", topic="T") as popper:
            assert popper.receive(1, wait_s=20.0)
            send(broker, "T", 40)
            assert listed()["g"]["state"] == "ok"
    wait_until(lambda: listed()["g"]["state"] == "empty")
    assert listed()["g"]["reason"].endswith("wait, and no member is online")
