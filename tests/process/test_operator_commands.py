"""What an operator does to a running `reput serve`: reload, drain, look for faults, take a store apart."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.broker_process import BrokerProcess
from support.command import reput

pytestmark = pytest.mark.process


def test_a_reload_a_drain_and_what_doctor_says(tmp_path: Path) -> None:
    grace = tmp_path / "grace"
    grace.write_text("7s")
    process = BrokerProcess(tmp_path / "store", environment={"REPUT_SHUTDOWN_GRACE_FILE": str(grace)})

    def run(*arguments: str) -> Any:
        done = reput(*arguments, "-O", "json", server=process.address)
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    def faults() -> list[str]:
        return [finding["check"] for finding in run("doctor")[1] if finding["state"] == "fault"]

    def ready() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{process.http_port}/readyz", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    with process:
        (option,) = run("config", "show", "shutdown_grace")[1]
        assert (option["value"], option["source"]) == (7.0, "REPUT_SHUTDOWN_GRACE_FILE")
        grace.write_text("8s")
        assert run("config", "reload")[1] == [
            {"key": "shutdown_grace", "before": '"7s"', "after": '"8s"', "applied": True}
        ]
        grace.write_text("soon")
        code, _, said = run("config", "reload")
        assert (code, "nothing was changed" in said) == (1, True)
        assert faults() == ["configuration"]
        grace.write_text("9s")
        assert run("config", "reload")[0] == 0
        assert faults() == []
        assert reput("broker", "drain", server=process.address).returncode == 0
        assert ready() == 503
        assert faults() == ["state (intake)"]
        refused = reput("produce", "t", "x", server=process.address)
        assert (refused.returncode, "DRAINING" in refused.stderr) == (1, True)
        assert reput("broker", "drain", "--off", server=process.address).returncode == 0
        assert ready() == 200
        assert reput("produce", "t", "x", server=process.address).returncode == 0
        locked = reput("doctor", "store", tmp_path / "store", "-O", "json")
        assert (locked.returncode, f"process {process.pid}" in locked.stdout) == (1, True)
    assert reput("doctor", "store", tmp_path / "store").returncode == 0
