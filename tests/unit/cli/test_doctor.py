"""`reput doctor` names each of these prepared faults, with its cause and what to do next."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from reput_broker.background import BackgroundBroker
from reput_cli.doctor import broker as of_broker
from reput_cli.doctor.broker import check_group, check_groups
from reput_cli.doctor.cluster import check_clocks, check_members
from reput_cli.doctor.findings import Finding, State
from reput_cli.doctor.machine import check_directory
from reput_cli.failures import CommandFailed
from reput_cli.root import root
from reput_client import ClusterMember
from reput_client.blocking import Admin, Consumer, Message, Producer, PullConsumer
from reput_client.consume.send_back import DEAD_LETTER, send_back
from reput_client.errors import RequestTimeout
from reput_protocol.commands.group_description import GroupDescription, GroupHealth, GroupSummary, HealthState
from reput_protocol.commands.schedule import ScheduleDefinition, ScheduleDescription, ScheduleState
from reput_protocol.errors import ErrorCode, RequestNotSupported
from reput_protocol.record.message import MessageQueue
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("REPUT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def examine(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code, and the findings other than ok."""
    done = CliRunner().invoke(root, ["doctor", *arguments, "-O", "json"], catch_exceptions=False, standalone_mode=False)
    findings = json.loads(done.stdout)
    assert [finding["number"] for finding in findings] == list(range(1, len(findings) + 1))
    return done.return_value, [finding for finding in findings if finding["state"] != "ok"]


def only(found: tuple[int, list[dict[str, Any]]], *, code: int = 1) -> dict[str, Any]:
    """Return the one fault."""
    assert found[0] == code
    (fault,) = [finding for finding in found[1] if finding["state"] == "fault"]
    assert fault["cause"]
    assert fault["next"]
    return fault


@pytest.fixture(autouse=True)
def slow_is_not_faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, or one without a compiler."""
    monkeypatch.setattr("reput_protocol.kernel.FORM", "compiled")
    monkeypatch.setattr(of_broker, "CLOCK_S", 30.0)
    monkeypatch.setattr(of_broker, "SLOW_S", 30.0)


@pytest.fixture(autouse=True)
def disk_half_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full that of this machine is."""
    half = SimpleNamespace(f_blocks=100, f_bfree=50, f_bavail=50, f_frsize=1 << 30, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _path: half)


@pytest.fixture
def server(reput_broker: BackgroundBroker) -> str:
    return reput_broker.address


def lag(server: str, group: str, *, messages: int = 2) -> None:
    """Make a group that lacks messages."""
    with Producer(server) as producer, PullConsumer(server, group=group) as consumer:
        for _ in range(messages):
            producer.send(Message("orders", b"x"), queue_id=0)
        consumer.commit("orders", 0, 1)


def test_a_sound_broker_has_no_fault(server: str) -> None:
    assert examine("--server", server) == (0, [])
    done = CliRunner().invoke(root, ["doctor", "broker", "--server", server], standalone_mode=False)
    lines = done.stdout.splitlines()
    assert lines[0].startswith(" 1 ok      connection: ")
    assert f"{len(lines)} checks: no fault" in done.stderr


def test_broker_down() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    fault = only(examine("--server", address, "--timeout", "2s"), code=3)
    assert (fault["check"], fault["found"]) == ("connection", f"no broker responds at {address}")
    assert "reput serve" in fault["next"]


def test_wrong_announced_address(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    other = new_reput_broker()
    wrong = new_reput_broker(advertise=other.address)
    fault = only(examine("--server", wrong.address))
    assert fault["check"] == "announced address"
    assert fault["found"] == f"routes name {other.address}, which is another broker"
    assert "REPUT_ADVERTISE" in fault["next"]
    other.stop()
    fault = only(examine("--server", wrong.address, "--timeout", "2s"))
    assert fault["found"] == f"routes name {other.address}, where no broker responds"


def test_disk_nearly_full_and_full(
    new_reput_broker: Callable[..., BackgroundBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = SimpleNamespace(f_blocks=100, f_bfree=5, f_bavail=5, f_frsize=1 << 30)
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    broker = new_reput_broker(
        store={
            "disk_max_used_ratio": 0.5,
            "disk_clean_forcibly_ratio": 0.6,
            "disk_warning_ratio": 0.7,
            "clean_interval": "100ms",
            "clean_delay": "0s",
        }
    )
    with Admin(broker.address) as admin:
        wait_until(lambda: (admin.describe_broker()["disk"] or {}).get("level") == "refuse")
    code, found = examine("--server", broker.address)
    assert code == 1
    by_check = {finding["check"]: finding for finding in found}
    assert "new messages are rejected" in by_check["disk"]["found"]
    assert "df -h" in by_check["disk"]["next"]
    nearly = {"free_bytes": 1 << 30, "used_ratio": 0.8, "log_used_ratio": 0.8, "level": "clean"}
    assert of_broker.check_disk({"disk": nearly}).state is State.WARNING


def test_another_log_file_does_not_fit(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(store={"commit_log_file_size": "1MiB", "clean_interval": "100ms"})
    with Admin(broker.address) as admin:
        wait_until(lambda: admin.describe_broker()["disk"])
        disk = admin.describe_broker()["disk"]
    assert disk["log_file_bytes"] == 1 << 20
    assert of_broker.check_disk({"disk": disk}).state is not State.FAULT
    found = of_broker.check_disk({"disk": disk | {"log_free_bytes": (1 << 20) - 1, "log_used_ratio": 0.1}})
    assert found.state is State.FAULT
    assert "no room for another log file of 1.0 MiB" in found.found


def test_store_open_in_another_process(reput_broker: BackgroundBroker) -> None:
    fault = only(examine("store", str(reput_broker.data_dir)))
    assert fault["check"] == "lock"
    assert "is in use by process" in fault["found"]


def test_damaged_store(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker()
    with Producer(broker.address) as producer:
        for _ in range(3):
            producer.send(Message("orders", b"x" * 100), queue_id=0)
    broker.stop()
    assert examine("store", str(broker.data_dir)) == (0, [])
    log = broker.data_dir / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff" * 8)
    fault = only(examine("store", str(broker.data_dir)), code=7)
    assert fault["check"] == "files"
    assert log.name in fault["found"]
    assert "reput store repair" in fault["next"]


def test_a_store_on_a_full_disk_and_one_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    monkeypatch.setattr("reput_broker.store.retention.disk_used_ratio", lambda _root: 0.97)
    fault = only(examine("store", str(tmp_path)))
    assert fault["check"] == "disk"
    assert "used 97 %" in fault["found"]
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    with pytest.raises(CommandFailed, match=f"may not read {tmp_path}") as failed:
        examine("store", str(tmp_path))
    assert f"user id {tmp_path.stat().st_uid}" in str(failed.value.remedy)


def test_groups_that_are_not_well(server: str) -> None:
    """All of them are named, the gravest first, each with the next command."""
    lag(server, "billing")
    lag(server, "mailing", messages=3)
    with (
        Consumer(server, group="g", topic="orders", tags="a"),
        Consumer(server, group="g", topic="orders", tags="b"),
        Admin(server) as admin,
    ):
        wait_until(lambda: any(group.health.state == "conflicting" for group in admin.list_groups()))
        code, found = examine("--server", server)
    assert code == 1
    assert [finding["found"].split()[0] for finding in found] == ["g", "billing", "mailing"]
    assert [finding["next"] for finding in found[1:]] == ["reput doctor group billing", "reput doctor group mailing"]
    assert "with 'a'" in found[0]["found"]
    fault = only(examine("group", "billing", "--server", server))
    assert fault["check"] == "state"
    assert fault["found"].startswith("empty for ")
    assert fault["found"].endswith(": 4 messages wait, and no member is online")
    assert "reput group delete billing" in fault["next"]


@pytest.mark.parametrize(
    ("client_id", "cause", "step"),
    [
        ("host@1", "the member hangs", "reput group skip g orders --queue 2 --count 1"),
        ("", "members are still joining", "reput group members g"),
    ],
)
def test_a_stuck_queue_with_and_without_a_member(client_id: str, cause: str, step: str) -> None:
    since_ms = int(1000 * time.time()) - 800_000
    stuck = GroupHealth(HealthState.STUCK, "it hangs", since_ms, client_id, "orders", 2)
    found = GroupDescription(GroupSummary("g", members=1, lag=6, health=stuck), problems=[stuck])
    (fault,) = [one for one in check_group(found) if one.state is State.FAULT]
    assert fault.found == "stuck for 13m20s: it hangs"
    assert cause in str(fault.cause)
    assert step in str(fault.next)


def test_a_broker_that_does_not_say_how_its_groups_are() -> None:
    """One of an earlier version, or a slave: that is not the same as being well."""
    (finding,) = check_groups([GroupSummary("g")])
    assert finding.state is State.WARNING
    states = [one.state for one in check_group(GroupDescription(GroupSummary("g", lag=6)))]
    assert states == [State.OK, State.WARNING]


def test_schedules_that_do_not_send() -> None:
    def described(name: str, state: ScheduleState, reason: str = "") -> ScheduleDescription:
        return ScheduleDescription(ScheduleDefinition(name, "@hourly", "T"), state=state, reason=reason)

    well = described("a", ScheduleState.ACTIVE), described("b", ScheduleState.PAUSED)
    (finding,) = of_broker.check_schedules([*well])
    assert finding.state is State.OK
    ill = described("c", ScheduleState.FAILING, "its topic T does not exist")
    findings = list(of_broker.check_schedules([*well, ill, described("d", ScheduleState.LATE, "busy")]))
    assert [(one.state, one.found, one.cause) for one in findings] == [
        (State.FAULT, "c is failing", "its topic T does not exist"),
        (State.FAULT, "d is late", "busy"),
    ]
    assert "reput schedule describe c" in str(findings[0].next)


def test_a_broker_of_a_version_without_schedules(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_admin: Admin) -> None:
        raise RequestNotSupported(ErrorCode.UNSUPPORTED_REQUEST, "700092 is not known here")

    monkeypatch.setattr(Admin, "list_schedules", unknown)
    assert examine("--server", server) == (0, [])


def test_dead_letters_that_grow(server: str) -> None:
    lag(server, "billing")
    with PullConsumer(server, group="billing") as consumer, Admin(server) as admin:
        (message,) = consumer.pull("orders", 0, 0, max_messages=1, wait_s=0).messages
        queue = MessageQueue("orders", message.broker_name, 0)
        consumer._runtime.run(
            send_back(
                consumer._client._session,
                message,
                group="billing",
                queue=queue,
                delay_level=DEAD_LETTER,
                max_reconsume_times=0,
                reason="bad",
            )
        )
        consumer.commit("orders", 0, admin.max_offset("orders", 0))
        fault = only(examine("--server", server))
        assert fault["check"] == "dead letters"
        assert "billing has new dead letters" in fault["found"]
        assert "reput dlq peek billing" in fault["next"]
    _, found = examine("group", "billing", "--server", server)
    assert "dead letters" in [finding["check"] for finding in found]


def test_clocks_that_differ(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = SimpleNamespace(time=lambda: time.time() - 3630, monotonic=time.monotonic)
    monkeypatch.setattr(of_broker, "time", ahead)
    fault = only(examine("--server", server))
    assert fault["check"] == "clock"
    assert "1h00m ahead of this machine's" in fault["found"]
    assert check_clocks({"a:1": 0.1, "b:1": -0.2}).state is State.OK
    between = check_clocks({"a:1": 0.0, "b:1": 30.0})
    assert between.found == "the clock of b:1 is 30.0s ahead of that of a:1"


def test_drained_by_an_operator_and_a_refused_reload(server: str) -> None:
    with Admin(server) as admin:
        admin.set_intake("draining")
        fault = only(examine("--server", server))
        assert fault["check"] == "state (intake)"
        assert "reput broker drain --off" in fault["next"]
        status = admin.describe_broker()
    refused = of_broker.check_configuration({**status, "config_reload_ok": False})
    assert (refused.state, "reput config reload" in str(refused.next)) == (State.FAULT, True)


def test_unknown_variable_and_unreadable_configuration(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REPUT_STORE__FLUSSH", "sync")
    fault = only(examine("--server", server))
    assert fault["found"] == "the variable REPUT_STORE__FLUSSH means nothing"
    assert fault["cause"] == "did you mean REPUT_STORE__FLUSH?"
    monkeypatch.delenv("REPUT_STORE__FLUSSH")
    file = tmp_path / "broker.toml"
    file.write_text('[store]\nflussh = "sync"\n')
    fault = only(examine("container", "-c", str(file)), code=2)
    assert fault["found"] == "store.flussh: unknown key"
    assert fault["next"] == 'use "store.flush"'
    fault = only(examine("container", "-c", str(tmp_path / "none.toml")), code=2)
    assert "there is no such file" in fault["found"]


def test_a_container_whose_data_directory_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refused(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    monkeypatch.setattr(Path, "iterdir", refused)
    rights, _ = check_directory(tmp_path)
    monkeypatch.undo()
    assert rights.state is State.FAULT
    assert f"chown -R {os.geteuid()}:{os.getegid()} {tmp_path}" == rights.next
    monkeypatch.setattr("reput_cli.doctor.machine._is_container", lambda: True)
    monkeypatch.setattr("reput_cli.doctor.machine._is_on_root_disk", lambda _path: True)
    *_, volume = check_directory(tmp_path)
    assert "deleted with the container" in str(volume.cause)


@pytest.mark.parametrize(
    ("check", "status", "states"),
    [
        (lambda status: [of_broker.check_kernel(status)], {"kernel": "interpreted"}, ["warning"]),
        (of_broker.check_delays, {"delayed": {"due_s": 9.0, "waiting": 3, "dropped": 2}}, ["fault", "warning"]),
        (of_broker.check_delays, {"delayed": {"due_s": 0.0, "waiting": 3, "dropped": 0}}, ["ok"]),
        (of_broker.check_transactions, {"transactions": {"open": 1001}}, ["fault"]),
        (of_broker.check_transactions, {"transactions": {"open": 1000}}, ["ok"]),
        (of_broker.check_name_servers, {"name_servers": {"n:1": "registered", "n:2": "refused"}}, ["ok", "fault"]),
    ],
)
def test_figures_of_a_broker(check: Any, status: dict[str, Any], states: list[str]) -> None:
    assert [str(one.state) for one in check(status)] == states


def test_a_broker_that_answers_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_broker, "SLOW_S", 0.25)
    now = iter([0.0, 0.5, 1.0, 1.1, 2.0, 2.4])
    monkeypatch.setattr(of_broker, "time", SimpleNamespace(monotonic=lambda: next(now)))
    admin: Any = SimpleNamespace(describe_broker=dict)
    assert of_broker.check_speed(admin).found == "a response takes 0.4s"
    now = iter([0.0, 0.5, 1.0, 1.1, 2.0, 2.1])
    assert of_broker.check_speed(admin).state is State.OK


MASTER = ClusterMember("c", "a", 0, "h:1", takes_messages=True, epoch=3, end_offset=100, slaves=1, in_sync=2)
SLAVE = ClusterMember("c", "a", 1, "h:2", end_offset=90, lag_bytes=10, is_copying=True)


@pytest.mark.parametrize(
    ("members", "states", "check", "found"),
    [
        ([MASTER, replace(SLAVE, error="h:2 is down")], {}, "broker a/1", "h:2 does not report"),
        ([replace(MASTER, takes_messages=False), SLAVE], {}, "master of a", "no broker accepts messages"),
        (
            [replace(MASTER, takes_messages=False)],
            {"h:1": {"election": {"reason": "etcd does not answer"}}},
            "master of a",
            "no broker accepts messages",
        ),
        ([MASTER, replace(MASTER, address="h:9")], {}, "master of a", "2 brokers accept messages: h:1, h:9"),
        ([MASTER, replace(SLAVE, is_copying=False)], {}, "slave a/1", "h:2 receives no log"),
        ([MASTER, replace(SLAVE, lag_bytes=1 << 30)], {}, "slave a/1", "h:2 is 1.0 GiB and 0s behind"),
        ([MASTER, SLAVE], {"h:2": {"behind_s": 90.0}}, "slave a/1", "h:2 is 10 B and 1m30s behind"),
        (
            [MASTER, SLAVE],
            {"h:2": {"tables_age_s": 300.0}},
            "slave a/1",
            "h:2 has not compared offsets, topics and groups for 5m00s",
        ),
        (
            [MASTER],
            {"h:1": {"checks": {"replication": {"ok": False, "detail": "copies in sync: 1, wanted: 2"}}}},
            "master of a",
            "h:1 has too few copies",
        ),
    ],
)
def test_faults_of_a_cluster(members: Sequence[ClusterMember], states: dict[str, Any], check: str, found: str) -> None:
    faults: list[Finding] = [one for one in check_members(members, states) if one.state is State.FAULT]
    assert [(fault.check, fault.found) for fault in faults] == [(check, found)]
    assert faults[0].cause
    assert faults[0].next
    reasons = [state["election"]["reason"] for state in states.values() if "election" in state]
    assert all(reason in str(faults[0].cause) for reason in reasons)


def test_a_sound_cluster_has_no_fault(server: str) -> None:
    assert all(one.state is State.OK for one in check_members([MASTER, SLAVE], {}))
    assert examine("cluster", "--server", server) == (0, [])


def test_what_cannot_be_checked_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*_arguments: object) -> Finding:
        raise RequestTimeout("dead letters", 1.0)

    monkeypatch.setattr(of_broker, "check_dead_letters", no_answer)
    fault = only(examine("--server", server))
    assert (fault["check"], fault["found"]) == ("dead letters", "cannot be checked")
    assert fault["cause"] == "dead letters: no response within 1 s"


def test_a_group_that_does_not_exist(server: str) -> None:
    fault = only(examine("group", "nobody", "--server", server), code=5)
    assert fault["found"] == "nobody does not exist"


def test_what_is_not_a_reput_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        fault = only(examine("--server", address, "--timeout", "300ms"), code=6)
    assert fault["found"] == f"{address} does not respond as a Reput broker"
