"""Messages in the console, in a real browser: following, filters, decoded bodies, turning pages, export, their way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trio

from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from reput_client import Avro
from reput_client.blocking import Message, Producer
from support.browser import CHROMIUM, Browser, Page
from support.console_scene import ORDERS, STORE, fill

SCHEMA = {
    "type": "record",
    "name": "Trip",
    "fields": [{"name": "taxi", "type": "string"}, {"name": "km", "type": "int"}],
}
ROWS = "[...document.querySelectorAll('main tbody tr')]"
KEYS = f"{ROWS}.map((row) => row.querySelector('td[data-label=Keys]').textContent)"

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    directory = tmp_path_factory.mktemp("console")
    (directory / "trip.avsc").write_text(json.dumps(SCHEMA))
    console = {"decoders": [f"trips-*=avro:{directory}/trip.avsc"]}
    config = BrokerConfig(data_dir=directory / "data", port=0, http_port=0, store=STORE, console=console)
    with BackgroundBroker(config) as broker:
        trio.run(fill, broker.address)
        with Producer(broker.address) as producer:
            for number in range(3):
                body = Avro(SCHEMA).serialize({"taxi": f"cab-{number}", "km": number})
                producer.send(Message(f"trips-{number % 2}", body, keys=[f"t-{number}"]))
        yield broker


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, broker: BackgroundBroker) -> Iterator[Page]:
    """A page of the console that reports no problem."""
    page = browser.page(1280, 800)
    page.open(f"http://{broker.http_address}/console/")
    page.shows("running")
    yield page
    assert page.problems == []


def go(page: Page, place: str, **values: str) -> None:
    page.run(f"void (location.hash = {json.dumps('#/' + place + ('?' + urlencode(values) if values else ''))})")


def send(broker: BackgroundBroker, topic: str, *keys: str) -> None:
    with Producer(broker.address) as producer:
        for key in keys:
            producer.send(Message(topic, b"news", tag="t", keys=[key]))


def test_following_shows_what_is_stored_until_it_is_stopped(page: Page, broker: BackgroundBroker) -> None:
    send(broker, "live-a", "before")
    go(page, "messages", topic="live-*", by="key", **{"with": "new-1"})
    page.shows("No message matches here.")
    page.click("main button", "Follow")
    page.shows("following")
    send(broker, "live-a", "other", "new-1")
    page.until(f"{KEYS}.join() === 'new-1'")
    go(page, "messages", topic="live-*")
    page.until(f"{KEYS}.join() === 'new-1,other,before'")
    page.click("main button", "Follow")
    page.shows("following")
    send(broker, "live-b", "new-2")  # a topic that did not exist
    page.until(f"{KEYS}[0] === 'new-2'")
    page.shows("1 message came")
    page.shows("of 2 topics")
    page.click("main button", "Stop")
    page.shows("stopped; 1 message came")


def test_a_filter_is_chosen_in_the_form(page: Page) -> None:
    go(page, "messages", topic="orders")
    page.until(f"{ROWS}.length === 50")
    page.run("document.getElementById('by').value = 'path'")
    page.run("document.getElementById('by').dispatchEvent(new Event('change'))")
    page.until("document.activeElement.id === 'with'")
    page.write("items[0].n = 2 ")
    page.press("Enter")
    page.until("location.hash.includes('by=path')")
    page.until(f"{ROWS}.length >= 48")
    go(page, "messages", topic="orders", by="text", **{"with": '"order": 7,'})
    page.until(f"{KEYS}.join() === 'o-7'")
    page.shows(f"of {ORDERS + 1} looked at")


def test_bodies_are_decoded(page: Page) -> None:
    go(page, "messages", topic="trips-*", by="path", **{"with": "km >= 2"})
    page.until(f"{KEYS}.join() === 't-2'")
    page.shows('{"taxi": "cab-2", "km": 2}')
    page.click("main tbody a[href^='#/messages/']")
    page.until("document.querySelector('.choice [aria-pressed=true]')?.textContent === 'Avro'")
    assert json.loads(page.run("document.querySelector('pre.body').textContent")) == {"taxi": "cab-2", "km": 2}
    page.click(".choice button", "Hex")
    page.until("document.querySelector('pre.body').textContent.startsWith('00000000')")


def test_pages_are_turned_by_buttons_and_keys(page: Page) -> None:
    go(page, "messages", topic="orders")
    page.until(f"{ROWS}.length === 50")
    newest = page.run(KEYS)
    page.press("p")
    page.until(f"{ROWS}.length === {ORDERS + 1 - 50}")
    assert set(page.run(KEYS)).isdisjoint(newest)
    page.until("document.querySelector('[data-key=p]').disabled")
    page.press("n")
    page.until(f"{ROWS}.length === 50")
    assert page.run(KEYS) == newest
    page.click("main tbody a")
    shown = "document.querySelector('main').innerText.includes('history ' + location.hash.split('/').pop())"
    page.until(shown)
    here = page.run("location.hash")
    page.press("p")
    page.until(f"location.hash !== {here!r} && {shown}")
    page.press("n")
    page.until(f"location.hash === {here!r} && {shown}")
    page.press("n")
    page.shows("It is the newest message of its queue.")


def test_a_selection_is_exported(page: Page, tmp_path: Path) -> None:
    page.save_downloads(tmp_path)
    go(page, "messages", topic="orders")
    page.until(f"{ROWS}.length === 50")
    chosen = page.run(KEYS)[:2]
    page.run("document.activeElement.blur()")
    for _ in range(2):
        page.write("jx")
    page.click("main button", "Export 2")
    lines = _downloaded(tmp_path / "orders.jsonl")
    assert [line["keys"] for line in lines] == [[key] for key in chosen]
    page.until("document.querySelectorAll('main tbody input:checked').length === 0")
    page.click("main thead input")
    page.click("main button", "Export 50")
    (tmp_path / "orders.jsonl").unlink()
    assert len(_downloaded(tmp_path / "orders.jsonl")) == 50


def _downloaded(path: Path) -> list[dict[str, object]]:
    ends_at = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < ends_at
        time.sleep(0.03)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_way_of_a_message(page: Page) -> None:
    go(page, "messages", mode="key", topic="orders", key="o-1")
    page.until(f"{ROWS}.length === 1")
    page.click("main tbody a")
    page.until("document.querySelectorAll('.way li').length >= 3")
    kinds = page.run("[...document.querySelectorAll('.way li')].map((li) => li.className)")
    assert kinds[:3] == ["sent", "stored", "dead_letter"]
    page.click(".way .dead_letter a[href^='#/messages/']")
    page.shows("This is a copy of")
    page.until("document.querySelectorAll('.way li').length >= 3")
