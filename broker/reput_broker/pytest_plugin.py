"""Fixtures for tests of programs that use a broker. pytest finds them where Reput is installed.

    def test_orders_are_sent(reput_broker):
        with Producer(reput_broker.address) as producer:
            producer.send(Message("orders", b"42"))

This module is loaded by every pytest run of its environment, so it loads nothing before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reput_broker.background import BackgroundBroker

_SMALL_STORE = {
    "commit_log_file_size": 16 << 20,
    "index_slots": 5_000,
    "index_entries": 20_000,
    "flush": "async",
    # However full the developer's disk is.
    "disk_clean_forcibly_ratio": 1.0,
    "disk_warning_ratio": 1.0,
}


@pytest.fixture
def reput_broker_config() -> dict[str, Any]:
    """Options of the test's brokers, as in the configuration file; override it to set some.

    Sections are dictionaries: `{"store": {"flush": "sync"}}`. Without, the store has small files and does not wait for
    the disk.
    """
    return {}


@pytest.fixture
def new_reput_broker(
    tmp_path_factory: pytest.TempPathFactory, reput_broker_config: dict[str, Any]
) -> Iterator[Callable[..., BackgroundBroker]]:
    """A function that starts one more broker, on a free port and in a temporary directory, and returns it.

    Its arguments are options, on top of `reput_broker_config`; `data_dir=` gives it the directory of another one that
    has been stopped. At the end of the test all are stopped.
    """
    from reput_broker.background import BackgroundBroker
    from reput_broker.config.model import BrokerConfig

    started: list[BackgroundBroker] = []

    def start(**options: Any) -> BackgroundBroker:
        chosen: dict[str, Any] = {"port": 0, "http_port": None} | reput_broker_config | options
        chosen["store"] = _SMALL_STORE | reput_broker_config.get("store", {}) | options.get("store", {})
        if "data_dir" not in chosen:
            chosen["data_dir"] = tmp_path_factory.mktemp("reput") / "data"
        broker = BackgroundBroker(BrokerConfig.model_validate(chosen))
        broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in reversed(started):
        broker.stop()


@pytest.fixture
def reput_broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    """A real broker, on a free port and in a temporary directory, for one test. `address` is what clients dial.

    It runs in a thread: tests may use the blocking client, or the async one under trio or asyncio. `stop()` and
    `start()` show what happens without it; it keeps port and messages.
    """
    return new_reput_broker()
