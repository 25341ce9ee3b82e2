"""The APIs of the client, a fake broker, and a real one in a thread, for tests that do not bring their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from support.faces import FACES, Face
from support.fakes import FakeBroker


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    """The client's three APIs, one after the other."""
    return Face(request.param)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A fake one of the test's own."""
    with FakeBroker() as broker:
        yield broker


@pytest.fixture(scope="module")
def real_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    """A real one with small files, for all tests of a module."""
    store = {"commit_log_file_size": 16 << 20, "index_slots": 5_000, "index_entries": 20_000}
    config = BrokerConfig.model_validate(
        {"data_dir": tmp_path_factory.mktemp("broker"), "port": 0, "http_port": None, "store": store}
    )
    with BackgroundBroker(config) as broker:
        yield broker


@pytest.fixture
def real_address(real_broker: BackgroundBroker) -> str:
    """The address of the real one; that of the fake one is `broker.address`."""
    return real_broker.address


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own; its group has the same name."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[-90:]
