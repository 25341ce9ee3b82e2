"""Fixtures for tests of programs that use a broker. pytest finds them if Reput is installed.

    def test_orders_are_sent(reput_broker):
        with Producer(reput_broker.address) as producer:
            producer.send(Message("orders", b"42"))

Every pytest run of the environment loads this module, so it imports the broker only when a test needs it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reput_broker.background import BackgroundBroker

_SMALL_STORE = {
    "commit_log_file_size": 16 << 20,
    "index_slots": 5_000,
    "index_entries": 20_000,
    "flush": "async",
    # Also if the developer's disk is full.
    "disk_clean_forcibly_ratio": 1.0,
    "disk_warning_ratio": 1.0,
}


@pytest.fixture
def reput_broker_config() -> dict[str, Any]:
    """Options of the test's brokers, as in the configuration file; override it to set some.

    Sections are dictionaries: `{"store": {"flush": "sync"}}`. By default the store has small files and does not wait
    for the disk.
    """
    return {}


@pytest.fixture
def new_reput_broker(
    tmp_path_factory: pytest.TempPathFactory, reput_broker_config: dict[str, Any]
) -> Iterator[Callable[..., BackgroundBroker]]:
    """A function that starts another broker, on a free port and in a temporary directory, and returns it.

    Its arguments are options that override `reput_broker_config`; `data_dir=` sets the directory, for example that of a
    stopped broker. At the end of the test all are stopped, and the temporary directories are removed.
    """
    from reput_broker.background import BackgroundBroker
    from reput_broker.config.model import BrokerConfig

    started: list[BackgroundBroker] = []
    temporary: list[Path] = []

    def start(**options: Any) -> BackgroundBroker:
        chosen: dict[str, Any] = {"port": 0, "http_port": None} | reput_broker_config | options
        chosen["store"] = _SMALL_STORE | reput_broker_config.get("store", {}) | options.get("store", {})
        if "data_dir" not in chosen:
            temporary.append(tmp_path_factory.mktemp("reput"))
            chosen["data_dir"] = temporary[-1] / "data"
        broker = BackgroundBroker(BrokerConfig.model_validate(chosen))
        broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in reversed(started):
        broker.stop()
    for directory in temporary:
        shutil.rmtree(directory)


@pytest.fixture
def reput_broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    """A real broker, on a free port and in a temporary directory, for one test. `address` is for clients.

    It runs in a thread: tests may use the synchronous client, or the async one under trio or asyncio. Port and messages
    outlast `stop()` and `start()`.
    """
    return new_reput_broker()
