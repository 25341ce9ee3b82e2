"""The built site in a browser: it needs no other server, is readable on a phone, and its search finds dotted names."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

import docs_site
from support.browser import CHROMIUM, Browser, Page

pytest.importorskip("zensical", reason="`make docs` installs it")
pytestmark = pytest.mark.process

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
_IS_LOADED = "document.readyState === 'complete'"
_RESULTS = "[...document.activeElement.shadowRoot.querySelectorAll('a')]"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Build the site, check it, and serve it."""
    assert docs_site.main() == 0
    handler = partial(_Quiet, directory=str(docs_site.SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    del address
    with Browser() as browser:
        yield browser


def opened(browser: Browser, url: str, width: int) -> Page:
    page = browser.page(width)
    page.open(url)
    page.until(f"{_IS_LOADED} && location.href.startsWith('http')")
    return page


@needs_chromium
@pytest.mark.parametrize(
    "path", ["index.html", "concepts.html", "architecture.html", "reference/client.html", "limits.html"]
)
def test_a_page_fits_a_phone_and_loads_from_its_server_only(browser: Browser, address: str, path: str) -> None:
    page = opened(browser, f"{address}/{path}", 390)
    assert page.run("document.documentElement.scrollWidth") <= 390
    loaded = page.run("performance.getEntriesByType('resource').map((one) => one.name)")
    assert loaded
    assert [url for url in loaded if not url.startswith((address, "data:"))] == []
    assert page.problems == []


@needs_chromium
@pytest.mark.parametrize(
    ("words", "title"),
    [
        ("store.flush_interval", "store.flush_interval"),
        ("Producer.send_batch", "Producer.send_batch async"),
        ("reput dlq replay", "reput dlq replay"),
    ],
)
def test_the_search_finds(browser: Browser, address: str, words: str, title: str) -> None:
    page = opened(browser, f"{address}/index.html", 1280)
    page.click("label[for=__search]")
    field = "document.activeElement.shadowRoot?.activeElement"
    page.until(f"{field}?.tagName === 'INPUT'")
    page.write(words)
    page.until(f"{field}.value === {words!r} && {_RESULTS}.length")
    titles = page.run(f"{_RESULTS}.slice(0, 3).map((one) => one.innerText.split('\\n')[0])")
    assert title in titles
