"""What holds for all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from conformance import counts

# Speed is measured in benchmarks/, never asserted by a test: a busy machine must not fail one.
settings.register_profile("reput", deadline=None)
settings.load_profile("reput")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over what was compared."""
    counts.hand_over(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what was compared by a process of tests that has ended."""
    counts.take_over(getattr(node, "workeroutput", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was compared."""
    counts.show(terminalreporter)
