"""Operators' commands at any member of a group that has no name server: they reach all of its members."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reput_broker.access.control import user_file_of
from reput_broker.background import BackgroundBroker
from reput_cli import cluster, user
from reput_cli.doctor import cluster as doctor
from reput_cli.failures import worded
from reput_client.blocking import Admin
from reput_client.errors import BrokersFailed
from reput_protocol.exit_codes import ExitCode
from support.waiting import wait_until

SECRET = "secret-of-the-administrator"
ON = {"enabled": True, "admin_secret": SECRET}


@pytest.fixture
def group(new_reput_broker: Callable[..., BackgroundBroker], monkeypatch: pytest.MonkeyPatch) -> list[BackgroundBroker]:
    monkeypatch.setenv("REPUT_USER", "admin")
    monkeypatch.setenv("REPUT_SECRET", SECRET)
    monkeypatch.setenv("REPUT_SECRET_FILE", "")
    master = new_reput_broker(access=ON, ha_port=0)
    slaves = [
        new_reput_broker(access=ON, broker_id=number, ha_port="off", ha={"role": "SLAVE", "master": master.address})
        for number in (1, 2)
    ]
    group = [master, *slaves]
    for broker in group:
        wait_until(lambda broker=broker: len(members_at(broker)) == 3)  # type: ignore[misc]
    return group


def members_at(broker: BackgroundBroker) -> dict[int, str]:
    with Admin(broker.address) as admin:
        (data,) = admin.cluster_info().broker_addr_table.values()
        return dict(data.broker_addrs)


def run(command: Any, broker: BackgroundBroker, *arguments: str) -> Result:
    return CliRunner().invoke(
        command, [*arguments, "--server", broker.address], catch_exceptions=True, standalone_mode=False
    )


def test_every_member_lists_the_whole_group(group: list[BackgroundBroker]) -> None:
    addresses = {number: broker.address for number, broker in enumerate(group)}
    for broker in group:
        assert members_at(broker) == addresses
        rows = json.loads(run(cluster.command, broker, "status", "-O", "json").output)
        assert {row["address"]: row["state"] for row in rows} == {
            addresses[0]: "serves",
            addresses[1]: "copies",
            addresses[2]: "copies",
        }


def test_a_user_is_created_at_every_member_whichever_is_asked(group: list[BackgroundBroker], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret-of-alice\n")
    made = run(user.command, group[1], "create", "alice", "--new-secret-file", str(tmp_path / "secret"))
    assert made.exception is None
    for broker in group:
        assert user_file_of(broker.config).load().users["alice"].secret == "a-secret-of-alice"


def test_a_change_that_did_not_reach_every_member_says_so(group: list[BackgroundBroker], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret-of-alice\n")
    group[2].stop()
    failed = run(user.command, group[0], "create", "alice", "--new-secret-file", str(tmp_path / "secret"))
    assert isinstance(failed.exception, BrokersFailed)
    assert list(failed.exception.failures) == ["broker-a, slave 2"]
    assert failed.exception.done == ["broker-a", "broker-a, slave 1"]
    assert worded(failed.exception).code == ExitCode.PARTIAL
    for broker in group[:2]:
        assert "alice" in user_file_of(broker.config).load().users
    listing = run(user.command, group[0], "list")
    assert listing.return_value == ExitCode.PARTIAL
    assert "no response from broker-a, slave 2" in listing.stderr
    found = run(doctor.command, group[0])
    assert "does not report" in found.output, "a member that is away is a fault"
