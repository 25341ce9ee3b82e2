"""Every command of RocketMQ's `mqadmin`, run against this broker, prints what it prints of RocketMQ's own."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import pytest

from conformance import mqadmin
from conformance.counts import COUNTS
from conformance.mqadmin import COMMANDS, OF_ACCESS, Command, Form, Outcome, Run
from support.broker_process import BrokerProcess


def test_the_page_has_the_table() -> None:
    assert mqadmin.BEGIN + mqadmin.table() + mqadmin.END in mqadmin.PAGE.read_text(encoding="utf-8")


@pytest.mark.process
def test_every_command_works_or_is_rejected_by_name(tmp_path: Path) -> None:
    golden = json.loads(mqadmin.GOLDEN.read_text())
    differing = []
    with mqadmin.reput_shell(tmp_path) as (shell, broker):
        assert shell.names_of_commands() == COMMANDS.keys() | OF_ACCESS.keys()
        for name, arguments, run in shell.run_all():
            command = COMMANDS[name]
            if command.outcome is Outcome.REJECTED:
                fault = None if _is_rejected(run) else f"it is not rejected by name:\n{run.printed}\n{run.failed}"
            else:
                expected = golden[name][command.runs.index(arguments)]
                if command.form is Form.NAMES:  # the broker is its own name server
                    expected = [*expected, *golden["getBrokerConfig"][0]]
                fault = _difference(command, expected, run)
            if fault is not None:
                differing.append(f"mqadmin {name} {arguments}: {fault}")
            COUNTS["commands of mqadmin"] += 1
        assert connections_opened(broker, "fast") > 0, "the producer does not use the VIP channel"
        with mqadmin.access_shell(tmp_path, shell) as guarded:
            for name, of_users, run in guarded.run_of_access():
                if run.failed or of_users.prints not in mqadmin.plain(run.printed, Form.SAME):
                    differing.append(f"mqadmin {name} {of_users.arguments}: {run.printed}\n{run.failed}")
                COUNTS["commands of mqadmin"] += 1
    assert not differing, "\n\n".join(differing)


def connections_opened(broker: BrokerProcess, listener: str) -> float:
    """How many clients have connected to a listener."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=10) as page:
        found = re.search(
            rf'^reput_connections_opened_total{{listener="{listener}"}} (\S+)', page.read().decode(), re.MULTILINE
        )
    assert found is not None
    return float(found[1])


def _is_rejected(run: Run) -> bool:
    said = run.printed + run.failed
    return "not supported" in said or "No topic route to do the remapping" in said


def _difference(command: Command, expected: list[str], run: Run) -> str | None:
    if run.failed and not command.limit_ms:
        return run.failed
    found = mqadmin.plain(run.printed, command.form)
    if command.form is Form.NAMES:
        more = [name for name in found if not {*"._"} & {*name} and name not in expected]
        return f"names that RocketMQ does not have: {more}" if more or not found else None
    if command.form is Form.ALL_NAMES:
        missing = {*expected} - {*found}
        return None if missing == command.lacks else f"missing: {sorted(missing ^ command.lacks)}"
    if command.form is Form.RUNS or found == expected:
        return None
    return "\n".join(
        [
            *(f"RocketMQ: {line}" for line in expected if line not in found),
            *(f"here:     {line}" for line in found if line not in expected),
        ]
    )
