"""`make console-pictures`: open each page of the console in Chromium, and write its picture to docs/console/.

`make console-pictures ARGS=build/console` writes another set there, for looking at the whole console: each page, 1440
and 390 wide, light and dark, of a busy broker, of an empty one, and of one that is away, as far down as the page goes;
and the login and the forms of a broker with users.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import trio

from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from reput_client.blocking import Message, Producer
from support.browser import CHROMIUM, Browser, Page, PageFailed
from support.console_actions import ADMINISTRATOR, CASES, SECRET, World, log_in, world
from support.console_scene import busy, fill

_TARGET = Path(__file__).parents[2] / "docs" / "console"
_BYTES_MAX = 100_000
_TRAFFIC_S = 30.0
# name: page, text that it shows once its data are there
_PICTURES = {
    "overview": ("", "has had no member"),
    "topics": ("topics", "payments"),
    "topic": ("topics/orders", "billing"),
    "groups": ("groups", "billing"),
    "group": ("groups/billing", "Lag in each queue"),
    "messages": ("messages?topic=orders&by=path&with=order%20%3C%206", "of 61 looked at"),
    "dead-letters": ("dead-letters/billing", "card declined"),
    "delayed": ("delayed", "mail-0"),
    "clients": ("clients", "Connections"),
    "store": ("store", "store.file_reserved_time"),
    "cluster": ("cluster", "No slave copies"),
}
_STORE = {"commit_log_file_size": "16MiB", "index_slots": 1000, "index_entries": 4000, "flush": "async"}
# Pages that the small set leaves out.
_MORE = {
    "all-dead-letters": "dead-letters",
    "transactions": "transactions",
    "messages-start": "messages",
    "messages-pattern": "messages?topic=*",
    "messages-key": "messages?mode=key&topic=orders&key=o-7",
    "messages-id": "messages?mode=id",
    "nowhere": "nowhere",
}
# Forms whose dry runs are shown.
_FORMS = ("create-topic", "delete-topic", "reset-group", "send-message", "set-intake", "create-user", "allow")
_WITH_USERS = {"users": "users", "transactions": "transactions", "dead-letters": "dead-letters/billing"}
_WIDTHS = (1440, 390)
_DRAWN_S = 0.8
_HEIGHT_MAX = 3000


def main() -> int:
    """Write the pictures; return 1 if a page has a problem or a picture is too large."""
    if CHROMIUM is None:
        print("error: Chromium is not installed; apt-get install chromium", file=sys.stderr)
        return 1
    if len(sys.argv) > 1:
        problems = take_all_pictures(Path(sys.argv[1]))
    else:
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
    with _broker() as broker, Browser() as browser:
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
                problems += _write(target / f"{name}.png", page)
            phone = browser.page(360, 740, dark=True)
            phone.open(f"http://{broker.http_address}/console/#/groups/billing")
            phone.shows("Lag in each queue")
            time.sleep(1.5)
            problems += [*_write(target / "phone.png", phone), *page.problems, *phone.problems]
    return problems


def take_all_pictures(target: Path) -> list[str]:
    """Write the whole set below a directory, by scene, width and colours; return what does not fit into its width."""
    problems: list[str] = []
    with Browser() as browser:
        with _broker() as broker:
            problems += _take_scene(browser, broker, target / "empty")
            trio.run(fill, broker.address)
            with busy(broker.address), _traffic(broker.address):
                time.sleep(_TRAFFIC_S)
                problems += _take_scene(browser, broker, target / "busy")
            pages = [_opened(browser, broker, *look) for look in product(_WIDTHS, (False, True))]
        time.sleep(_DRAWN_S)
        for page, look in zip(pages, product(_WIDTHS, (False, True)), strict=True):
            problems += _take_look(page, target / "away", *look)
        with (
            tempfile.TemporaryDirectory(prefix="reput-pictures-") as directory,
            world(Path(directory) / "data") as scene,
        ):
            for look in product(_WIDTHS, (False, True)):
                problems += _take_forms(browser, scene, target / "users", *look)
    return problems


def _take_forms(browser: Browser, scene: World, target: Path, width: int, dark: bool) -> list[str]:
    """Write pictures of the login, of pages of an administrator, and of what forms say before they change something."""
    folder = _folder(target, width, dark)
    page = browser.page(width, 900 if width > 600 else 844, dark=dark)
    page.open(f"http://{scene.http_address}/console/#/topics")
    page.until("document.getElementById('submit') && !document.getElementById('submit').disabled")
    page.picture(folder / "login.png")
    log_in(page, ADMINISTRATOR, SECRET)
    page.shows("orders")
    for name, place in _WITH_USERS.items():
        page.run(f"void (location.hash = '#/{place}')")
        time.sleep(_DRAWN_S)
        page.picture(folder / f"{name}.png", height_max=_HEIGHT_MAX)
    for name in _FORMS:
        case, values = CASES[name], CASES[name].values_in(scene)
        page.run(f"void (location.hash = '#/{case.page}')")
        page.click_in_row(f"[data-action={name}]", case.row)
        for field, value in values.items():
            page.fill(f"#field-{field}", value, is_box=isinstance(value, bool))
        page.click("dialog .primary", "Show what changes")
        page.shows(case.preview)
        page.picture(folder / f"form-{name}.png")
        page.press("Escape")
        page.until("!document.querySelector('dialog')")
    return page.problems


def _take_scene(browser: Browser, broker: BackgroundBroker, target: Path) -> list[str]:
    problems: list[str] = []
    for width, dark in product(_WIDTHS, (False, True)):
        page = _opened(browser, broker, width, dark)
        problems += _take_look(page, target, width, dark)
        problems += [text for text in page.problems if "status of 404" not in text]  # an empty broker has no topic
    return problems


def _opened(browser: Browser, broker: BackgroundBroker, width: int, dark: bool) -> Page:
    page = browser.page(width, 900 if width > 600 else 844, dark=dark)
    page.open(f"http://{broker.http_address}/console/")
    page.shows("running")
    return page


def _take_look(page: Page, target: Path, width: int, dark: bool) -> list[str]:
    """Write a picture of every page."""
    folder = _folder(target, width, dark)
    places = {name: place for name, (place, _) in _PICTURES.items()} | _MORE
    problems = []
    for name, place in places.items():
        page.run(f"void (location.hash = '#/{place}')")
        time.sleep(_DRAWN_S)
        page.picture(folder / f"{name}.png", height_max=_HEIGHT_MAX)
        needed = page.run("document.documentElement.scrollWidth")
        if needed > width:
            problems.append(f"{target.name}/{folder.name}/{name} needs {needed} pixels")
    with_message = "document.querySelector('main tbody a[href^=\"#/messages/\"]')"
    page.run("void (location.hash = '#/messages?mode=key&topic=orders&key=o-1')")
    time.sleep(_DRAWN_S)
    try:
        if page.run(f"Boolean({with_message})"):
            page.run(f"{with_message}.click()")
            time.sleep(_DRAWN_S)
            page.picture(folder / "message.png", height_max=_HEIGHT_MAX)
    except PageFailed as error:
        problems.append(str(error))
    return problems


def _folder(target: Path, width: int, dark: bool) -> Path:
    folder = target / f"{width}-{'dark' if dark else 'light'}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _broker() -> Iterator[BackgroundBroker]:
    with tempfile.TemporaryDirectory(prefix="reput-pictures-") as directory:
        config = BrokerConfig(
            data_dir=Path(directory) / "data",
            port=0,
            http_port=0,
            store={**_STORE, "disk_warning_ratio": 1.0, "disk_clean_forcibly_ratio": 1.0},
        )
        with BackgroundBroker(config) as broker:
            yield broker


def _write(path: Path, page: Page) -> list[str]:
    page.picture(path)
    size = path.stat().st_size
    return [f"{path.name} has {size:,} bytes, and at most {_BYTES_MAX:,} are wanted"] if size > _BYTES_MAX else []


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
