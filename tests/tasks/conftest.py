"""A real broker in a thread, connections of Kombu to it, and a Django project."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("celery")
pytest.importorskip("django")

import django
from django.conf import settings
from kombu import Connection

import reput_client.tasks.celery  # noqa: F401 - registers the URL's scheme
from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from tasks import django_settings

# Not by DJANGO_SETTINGS_MODULE, which Celery looks for.
settings.configure(**{name: value for name, value in vars(django_settings).items() if name.isupper()})
django.setup()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with small files."""
    store = {"commit_log_file_size": 16 << 20, "index_slots": 5_000, "index_entries": 20_000}
    config = BrokerConfig.model_validate(
        {"data_dir": tmp_path_factory.mktemp("broker"), "port": 0, "http_port": None, "store": store}
    )
    with BackgroundBroker(config) as broker:
        yield broker.address


@pytest.fixture
def connect(address: str) -> Iterator[Callable[..., Connection]]:
    """Open connections; they are closed at the end."""
    opened: list[Connection] = []

    def open_one(url: str = f"reput://{address}//", **options: object) -> Connection:
        opened.append(Connection(url, transport_options=options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.release()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, with a character that names of topics cannot have."""
    return "".join(c if c.isalnum() else "." for c in request.node.name)[-40:]
