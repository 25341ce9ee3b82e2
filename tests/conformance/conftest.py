"""Skips the conformance tests, by name, where RocketMQ cannot be had; prints what they compared."""

from __future__ import annotations

import pytest

from conformance import apache
from conformance.checks import COUNTS


@pytest.fixture(scope="session", autouse=True)
def rocketmq() -> None:
    """RocketMQ, ready to be started."""
    try:
        apache.classpath()
    except apache.Unreachable as error:
        pytest.skip(f"conformance with Apache RocketMQ was not checked: {error}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was compared in this run."""
    if COUNTS:
        terminalreporter.section("conformance with Apache RocketMQ")
        for name, count in sorted(COUNTS.items()):
            terminalreporter.write_line(f"{count:8,}  {name}")
