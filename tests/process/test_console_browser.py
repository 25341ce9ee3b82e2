"""The console in a real browser: every page, by mouse and keyboard, on a phone, with hostile names and bodies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trio

from reput_broker.background import BackgroundBroker
from reput_broker.config.model import BrokerConfig
from support.broker_process import BrokerProcess
from support.browser import CHROMIUM, Browser, Page
from support.console_scene import HOSTILE_KEY, ORDERS, STORE, fill

TOKEN = "a-token-of-a-test-0123456789"
# What each page shows once its data are there.
PAGES = {
    "": "billing has had no member for",
    "topics": "payments",
    "topics/orders": "billing",
    "groups": "billing",
    "groups/billing": "and no member is online. Start its consumers",
    "messages?topic=orders": "o-59",
    "messages?mode=key&topic=orders&key=o-7": "o-7",
    "messages?mode=id": "The offset message id is",
    "dead-letters": "billing",
    "dead-letters/billing": "card declined <b>today</b>",
    "delayed": "mail-0",
    "transactions": "No transaction is open",
    "delayed?topic=emails": "nightly",
    "clients": "Connections",
    "store": "store.file_reserved_time",
    "cluster": "No slave copies",
    "nowhere": "There is no such page.",
}

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("console") / "data"
    config = BrokerConfig(data_dir=data_dir, port=0, http_port=0, store=STORE, console={"token": TOKEN})
    with BackgroundBroker(config) as broker:
        trio.run(fill, broker.address)
        yield f"http://{broker.http_address}/console/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@contextmanager
def opened(browser: Browser, url: str, *, width: int = 1280, dark: bool = False) -> Iterator[Page]:
    """A page that reports no problem in its console until it is left."""
    page = browser.page(width, 800, dark=dark)
    page.open(url)
    page.shows("running")
    yield page
    assert page.problems == []
    assert not page.run("document.title.includes('taken')")
    assert page.run("document.querySelector('main').querySelectorAll('script, iframe, [onerror]').length") == 0


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_every_page_shows_its_data_and_fits(browser: Browser, url: str, width: int, dark: bool) -> None:
    with opened(browser, url, width=width, dark=dark) as page:
        for name, text in PAGES.items():
            page.run(f"void (location.hash = '#/{name}')")
            page.shows(text)
            assert page.run("document.documentElement.scrollWidth") <= width, name
            assert page.run("document.querySelectorAll('main h1').length") == (0 if name == "nowhere" else 1), name
        colour = page.run("getComputedStyle(document.body).backgroundColor")
        assert colour == ("rgb(17, 22, 23)" if dark else "rgb(246, 247, 247)")


def test_the_numbers_are_live(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.until("document.querySelectorAll('svg.plot').length === 6")
        page.until("document.querySelector('svg.plot .line0').getAttribute('d').includes('L')")
        before = page.run("document.getElementById('state').textContent")
        page.until(f"document.getElementById('state').textContent !== {before!r}")
        page.run("document.querySelector('svg.plot').focus()")
        page.press("ArrowLeft")
        page.until("document.querySelector('.legend .when').textContent.endsWith('ago')")
        words = page.run("document.querySelector('svg.plot').getAttribute('aria-label')")
        assert words.startswith("Messages per second: in ")


def test_a_part_of_the_plots_is_chosen_and_times_are_local_or_utc(browser: Browser, url: str) -> None:
    when = "document.querySelector('.legend .when').textContent"
    shown = "document.getElementById('range').textContent"
    pressed = "(document.querySelector('.ranges [aria-pressed=true]')?.textContent ?? '')"
    page = browser.page(1280, 800)
    page.call("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    page.open(url)
    page.until("document.querySelector('svg.plot .line0').getAttribute('d').includes('L')")
    page.until(f"{pressed} === '5 min'")

    # All times of the console are in the browser's zone, or in UTC, which it keeps.
    assert page.run("document.getElementById('zone-button').textContent") == "UTC+05:30"
    page.run("document.querySelector('svg.plot').focus()")
    page.press("ArrowLeft")
    page.until(f"{when}.endsWith('ago')")
    local = _minutes(page.run(when))
    page.click("#zone-button", "UTC+05:30")
    page.until("document.getElementById('zone-button').textContent === 'UTC'")
    page.until("document.querySelector('svg.plot .line0').getAttribute('d').includes('L')")
    page.run("document.querySelector('svg.plot').focus()")
    page.press("ArrowLeft")
    page.until(f"{when}.endsWith('ago')")
    assert (local - _minutes(page.run(when))) % (24 * 60) in (329, 330)
    page.open(f"{url}#/messages?topic=orders&start=time")
    page.until("document.getElementById('zone-button').textContent === 'UTC'")
    page.until("document.getElementById('at').value")
    assert abs(page.run("Date.parse(document.getElementById('at').value + 'Z') - Date.now()")) < 20 * 60000

    # A part of a plot is chosen by the mouse, the keyboard, and buttons.
    page.run("void (location.hash = '#/')")
    page.until("document.querySelector('svg.plot .line0').getAttribute('d').includes('L')")
    page.until("document.querySelector('.attention ul')")  # above the plots, which it moves
    page.drag("svg.plot", 0.7, 0.95)
    page.until(f"{shown}.includes(' to ') && {shown}.includes('(UTC)')")
    assert page.run(pressed) == ""
    began, ended = page.run(shown).split(" (")[0].split(" to ")
    length = page.run(f"(Date.parse('{ended}Z') - Date.parse('{began}Z')) / 1000")
    assert 60 < length < 100
    page.run("document.querySelector('svg.plot').focus()")
    page.press("+")
    page.until(f"{shown}.includes(' to ') && !{shown}.includes('{began}')")
    page.click(".ranges button", "24 h")
    page.until(f"{pressed} === '24 h' && {shown}.includes('steps of 2 min')")
    page.click(".ranges button", "Zoom out")
    page.until(f"{shown}.includes('steps of 10 min')")
    page.click(".ranges button", "5 min")
    page.until(f"{shown}.includes('steps of 1 s')")

    # The page of the cluster has the same range and its own plots.
    page.run("void (location.hash = '#/cluster')")
    page.shows("1 of 1")
    page.click(".ranges button", "By broker")
    page.until("document.querySelector('main .legend .key').textContent.startsWith('broker-a')")
    # Figures of those who look into the broker are here, not on the first page.
    page.shows("Delay of the event loop")
    assert page.problems == []


def _minutes(text: str) -> int:
    """Return the minutes since midnight of a time."""
    hours, minutes = text.split(":")[:2]
    return 60 * int(hours) + int(minutes)


def test_the_scale_of_a_plot_of_times_ends_at_a_round_time(browser: Browser, url: str) -> None:
    seconds = [0.003, 7, 42, 55, 840, 3000, 90_000, 400_000]
    with opened(browser, url) as page:
        tops = page.run(f"import('/console/plot.js').then(({{ nice }}) => {seconds}.map((value) => nice(value, 60)))")
    assert tops == pytest.approx([0.005, 10, 50, 60, 1200, 3600, 172_800, 432_000])


def test_it_is_used_by_keyboard(browser: Browser, url: str) -> None:
    with opened(browser, url) as page:
        page.press("Tab")
        page.until("document.activeElement.id === 'skip'")
        page.press("Enter")
        page.until("document.activeElement.id === 'main'")
        page.press("?")
        page.shows("Keyboard shortcuts")
        page.press("Escape")
        page.until("!document.querySelector('dialog')")
        page.write("gg")
        page.shows("Consumer groups")
        page.until("document.activeElement.id === 'main'")
        page.until("document.querySelectorAll('main tbody tr').length === 1")
        page.until("document.activeElement.textContent === 'billing'", pressing="j")
        page.press("Enter")
        page.shows("Lag in each queue")
        page.until("document.title.startsWith('billing')")
        page.write("gt")
        page.shows("payments")
        page.press("/")
        page.until("document.activeElement.id === 'search'")
        page.write("pay")
        page.until("document.querySelectorAll('main tbody tr').length === 1")


def test_lists_are_sorted_by_their_headings(browser: Browser, url: str) -> None:
    rows = "[...document.querySelectorAll('main table')[0].tBodies[0].rows]"
    lags = f"{rows}.map((row) => Number(row.cells[2].textContent))"
    with opened(browser, f"{url}#/groups/billing") as page:
        page.until(f"{rows}.length > 7")
        assert page.run(lags) == sorted(page.run(lags), reverse=True)
        page.click("main thead button", "Lag")
        assert page.run(lags) == sorted(page.run(lags))
        assert sum(page.run(lags)) == ORDERS // 2 + 1


def test_a_hostile_message_is_text(browser: Browser, url: str) -> None:
    query = urlencode({"mode": "key", "topic": "orders", "key": HOSTILE_KEY})
    with opened(browser, f"{url}#/messages?{query}") as page:
        page.click("main tbody a")
        page.until("document.querySelector('pre.body')")
        body = page.run("document.querySelector('pre.body').textContent")
        assert body.startswith("<script>document.title='taken'</script>\\u{1b}[31mred \\u{202e}\\u{200b}<img src=x")
        page.shows("<b>bold</b>")
        page.click(".choice button", "Hex")
        body = page.run("document.querySelector('pre.body').textContent")
        assert body.startswith("00000000  3c 73 63 72 69 70 74 3e")


def test_a_login_permits_a_replay(browser: Browser, url: str) -> None:
    with opened(browser, f"{url}#/dead-letters/billing") as page:
        page.until("document.querySelectorAll('main tbody tr').length === 4")
        boxes = "[...document.querySelectorAll('main [type=checkbox]')].filter((box) => box.offsetParent).length"
        assert page.run(boxes) == 0, "without a login there is nothing to select them for"
        page.click("#login-button", "Log in")
        page.until("document.activeElement.id === 'secret'")
        page.write(TOKEN)
        page.press("Enter")
        page.until("document.querySelectorAll('main tbody tr').length === 4")
        page.until(f"{boxes} === 5")
        page.run("document.querySelectorAll('main tbody input')[3].click()")
        page.click("[data-action=replay-dead-letters]")
        page.until("document.querySelector('#field-offsets').value === '0'")
        page.click("dialog .primary", "Show what changes")
        page.shows("1 dead letter is sent: 1 to orders")
        page.click("#perform")
        page.shows("1 dead letter was sent: 1 to orders")
        page.until("!document.querySelector('main tbody input:checked')")
        page.until("document.querySelectorAll('main tbody tr')[3].textContent.includes(' to orders')")
        page.run("document.querySelectorAll('main tbody input')[3].click()")
        page.click("[data-action=replay-dead-letters]")
        page.click("dialog .primary", "Show what changes")
        page.shows("no dead letter of billing is sent")
        page.shows("1 was replayed before")
        page.press("Escape")
        page.click("#login-button", "Log out")
        page.until("document.getElementById('login-button').textContent === 'Log in'")


def test_a_page_of_what_does_not_exist_says_how_to_make_it(browser: Browser, url: str) -> None:
    page = browser.page()
    page.open(f"{url}#/topics/none")
    page.shows("topic 'none' does not exist")
    page.shows("reput topic create none")
    assert "reput topic describe" not in page.run("document.getElementById('page').innerText")
    page.run("void (location.hash = '#/groups/none')")
    page.shows("group 'none' does not exist")
    page.shows("reput consume orders -g none")


def test_it_says_when_the_broker_is_gone(browser: Browser, tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path / "data", port=0, http_port=0, store=STORE)
    page = browser.page()
    with BackgroundBroker(config) as broker:
        page.open(f"http://{broker.http_address}/console/#/topics")
        page.shows("No topics yet.")
        page.shows("running")
    page.shows("no response")
    page.shows("The broker has not responded since")
    page.until("document.getElementById('state').classList.contains('bad')")
    # What never came is not said to be empty, and the rest looks old.
    page.run("void (location.hash = '#/groups')")
    page.until("document.querySelector('main .page.failed')")
    page.shows("It shows its figures once the broker responds.")
    assert "No consumer groups" not in page.run("document.body.innerText")
    assert page.run("getComputedStyle(document.querySelector('.listing')).opacity") == "0.55"


def test_a_broker_that_hangs_looks_away_at_once(browser: Browser, tmp_path: Path) -> None:
    page = browser.page()
    with BrokerProcess(tmp_path / "data") as broker:
        page.open(f"http://127.0.0.1:{broker.http_port}/console/#/groups")
        page.shows("running")
        page.shows("No consumer groups yet.")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            # Four seconds pass.
            page.run("void (Date.now = ((now) => () => now() + 4000)(Date.now))")
            page.until("document.getElementById('state').classList.contains('bad')")
            page.shows("The broker has not responded since")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        page.shows("running")
        page.until("!document.getElementById('away').firstChild")
        page.shows("No consumer groups yet.")
