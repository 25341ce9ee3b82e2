"""A broker in a thread of this process, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    """One with small files, for all tests of a module; it soon checks transactions."""
    config = BrokerConfig.model_validate(
        {
            "data_dir": tmp_path_factory.mktemp("broker"),
            "port": 0,
            "http_port": None,
            "store": {"commit_log_file_size": 16 << 20, "index_slots": 5_000, "index_entries": 20_000},
            "transactions": {"timeout": "1s", "check_interval": "500ms"},
        }
    )
    with BackgroundBroker(config) as broker:
        yield broker


@pytest.fixture
def address(broker: BackgroundBroker) -> str:
    """Its address."""
    return broker.address


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own; its group has the same name."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[-100:]
