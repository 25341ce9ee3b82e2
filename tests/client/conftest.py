"""A broker in a thread of this process, for the tests that do not bring one of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    """One with small files, for all tests of a module."""
    store = {"commit_log_file_size": 16 << 20, "index_slots": 5_000, "index_entries": 20_000}
    config = BrokerConfig.model_validate(
        {"data_dir": tmp_path_factory.mktemp("broker"), "port": 0, "http_port": None, "store": store}
    )
    with BackgroundBroker(config) as broker:
        yield broker


@pytest.fixture
def address(broker: BackgroundBroker) -> str:
    """Its address."""
    return broker.address
