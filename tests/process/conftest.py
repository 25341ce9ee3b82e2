"""A broker in a process of its own, for all tests of a module that does not bring another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    """With its default options."""
    with BrokerProcess(module_path / "store") as process:
        yield process
