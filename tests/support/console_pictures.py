"""`make console-pictures`: open each page of the console in Chromium, and write its picture to docs/console/."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from reput_client.blocking import Message, Producer
from support.browser import CHROMIUM, Browser
from support.console_scene import fill

_TARGET = Path(__file__).parents[2] / "docs" / "console"
_BYTES_MAX = 100_000
_TRAFFIC_S = 30.0
# name: page, text that it shows once its data are there
_PICTURES = {
    "overview": ("", "Needs attention"),
    "topics": ("topics", "payments"),
    "topic": ("topics/orders", "billing"),
    "groups": ("groups", "billing"),
    "group": ("groups/billing", "Lag in each queue"),
    "messages": ("messages?topic=orders", "o-"),
    "dead-letters": ("dead-letters/billing", "card declined"),
    "delayed": ("delayed", "mail-0"),
    "clients": ("clients", "Connections"),
    "store": ("store", "store.file_reserved_time"),
    "cluster": ("cluster", "No slave copies"),
}
_STORE = {"commit_log_file_size": "16MiB", "index_slots": 1000, "index_entries": 4000, "flush": "async"}


def main() -> int:
    """Write the pictures; return 1 if a page has a problem or a picture is too large."""
    if CHROMIUM is None:
        print("error: Chromium is not installed; apt-get install chromium", file=sys.stderr)
        return 1
    problems = take_pictures(_TARGET)
    for path in sorted(_TARGET.glob("*.png")):
        print(f"{path.relative_to(_TARGET.parents[1])}: {path.stat().st_size:,} bytes")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def take_pictures(target: Path) -> list[str]:
    """Open each page of a broker with data, write its picture to a directory; return the problems."""
    target.mkdir(exist_ok=True)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="reput-pictures-") as directory, Browser() as browser:
        config = BrokerConfig(
            data_dir=Path(directory) / "data",
            port=0,
            http_port=0,
            store={**_STORE, "disk_warning_ratio": 1.0, "disk_clean_forcibly_ratio": 1.0},
        )
        with BackgroundBroker(config) as broker:
            trio.run(fill, broker.address)
            with _traffic(broker.address):
                time.sleep(_TRAFFIC_S)
                page = browser.page(1040, 580)
                page.open(f"http://{broker.http_address}/console/")
                page.shows("running")
                for name, (place, text) in _PICTURES.items():
                    page.run(f"void (location.hash = '#/{place}')")
                    page.shows(text)
                    time.sleep(1.5)
                    problems += _write(target / f"{name}.png", page.picture)
                phone = browser.page(360, 740, dark=True)
                phone.open(f"http://{broker.http_address}/console/#/groups/billing")
                phone.shows("Lag in each queue")
                time.sleep(1.5)
                problems += [*_write(target / "phone.png", phone.picture), *page.problems, *phone.problems]
    return problems


def _write(path: Path, picture: object) -> list[str]:
    assert callable(picture)
    picture(path)
    size = path.stat().st_size
    return (
        [f"{path.name} has {size:,} bytes, and at most {_BYTES_MAX:,} are wanted"]
        if size > _BYTES_MAX
        else []
    )


@contextmanager
def _traffic(address: str) -> Iterator[None]:
    """Send some messages a second, so that the plots show something."""
    is_over = threading.Event()

    def send() -> None:
        with Producer(address, group="traffic") as producer:
            number = 0
            while not is_over.wait(0.02):
                number += 1
                for _ in range(1 + (number // 50) % 4):
                    producer.send(Message("clicks", b'{"page": "/basket"}' * 8, keys=[f"k-{number}"]))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main())
