"""Fixtures of the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput_broker.observe.log import close_log, configure_logging


@pytest.fixture(autouse=True)
def log_on_stderr() -> Iterator[None]:
    """Keep the log of a broker in this process off stdout, where commands print."""
    configure_logging(level="warning")
    yield
    close_log()
