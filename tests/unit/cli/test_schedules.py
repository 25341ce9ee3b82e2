"""`reput schedule` against a broker in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reput_broker.background import BackgroundBroker
from reput_cli.failures import CommandFailed
from reput_cli.root import root
from reput_protocol.errors import BrokerError


@pytest.fixture(autouse=True)
def server(reput_broker: BackgroundBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REPUT_SERVER", reput_broker.address)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, ["schedule", *arguments], catch_exceptions=False)


def read(*arguments: str) -> Any:
    return json.loads(run(*arguments, "-O", "json").stdout)


def test_a_schedule_from_its_creation_to_its_deletion() -> None:
    options = ["--tag", "t", "--key", "k", "-p", "a=b", "--time-zone", "Europe/Berlin", "--catch-up", "2h"]
    created = run("create", "nightly", "0 3 * * MON-FRI", "reports", "make", *options, "--missed", "all")
    assert created.stderr.startswith("schedule nightly sends to reports next at 20")
    (listed,) = read("list", "-t", "reports")
    assert (listed["name"], listed["when"], listed["state"]) == ("nightly", "0 3 * * MON-FRI", "active")
    described = read("describe", "nightly")
    assert described["next"] == listed["next"]
    expected = {
        "topic": "reports", "body": "make", "tag": "t", "keys": ["k"], "properties": {"a": "b"},
        "time_zone": "Europe/Berlin", "catch_up_s": 7200.0, "missed": "all", "last": None, "messages_sent": 0,
    }  # fmt: skip
    assert {name: described[name] for name in expected} == expected
    assert run("pause", "nightly").stderr == "schedule nightly paused\n"
    assert read("describe", "nightly")["state"] == "paused"
    (sent,) = read("run", "nightly")
    assert len(sent["offset_message_id"]) == 32
    assert "sends next at" in run("resume", "nightly").stderr
    assert run("create", "nightly", "@hourly", "reports", "--replace").exit_code == 0
    assert read("describe", "nightly")["when"] == "@hourly"
    assert run("delete", "nightly").stderr == "schedule nightly deleted\n"
    assert read("list") == []


def test_what_is_wrong_is_said_with_its_place() -> None:
    with pytest.raises(BrokerError, match="has the day of week 'FUNDAY' at position 9"):
        run("create", "nightly", "0 3 * * FUNDAY", "reports")
    with pytest.raises(CommandFailed, match="there is no schedule 'nightly'"):
        run("run", "nightly")
