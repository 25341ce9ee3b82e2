"""What was compared with Apache RocketMQ, by name; printed at the end of a test run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

COUNTS: Counter[str] = Counter()
"""Everything that was compared in this run."""

_HANDED = "conformance"


def hand_over(config: pytest.Config) -> None:
    """Where tests run in several processes, give the counts of this one to the one that prints the summary."""
    output: dict[str, Any] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[_HANDED] = dict(COUNTS)


def take_over(output: Mapping[str, Any]) -> None:
    """Add the counts of a process that has ended."""
    COUNTS.update(output.get(_HANDED, {}))


def show(reporter: pytest.TerminalReporter) -> None:
    """Print the counts, if there are any."""
    if COUNTS:
        reporter.section("conformance with Apache RocketMQ")
        for name, count in sorted(COUNTS.items()):
            reporter.write_line(f"{count:8,}  {name}")
