"""The memory of downloads: what browsers have not read yet is bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
import trio

from reput_broker.console.app import Downloads

pytestmark = pytest.mark.trio


async def parts(*sizes: int) -> AsyncGenerator[bytes]:
    for size in sizes:
        yield bytes(size)


class Browser:
    """Takes an answer, piece by piece, once it reads."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = trio.Event()
        if reads:
            self.reads.set()
        self.is_asked = trio.Event()
        self.received = 0
        self.is_complete = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            return
        if message.get("body"):
            self.is_asked.set()
            await self.reads.wait()
            self.received += len(message["body"])
        self.is_complete = not message.get("more_body", False)

    async def download(self, downloads: Downloads, *sizes: int) -> None:
        answer = downloads.answer(parts(*sizes), {"content-type": "text/plain"})
        await answer({"type": "http"}, never, self.send)


async def never() -> MutableMapping[str, Any]:
    raise AssertionError("a download receives nothing")


async def test_what_does_not_fit_ends_the_oldest_one() -> None:
    downloads = Downloads(held_bytes_max=1000)
    oldest, next_one, newest = (Browser(reads=False) for _ in range(3))
    async with trio.open_nursery() as nursery:
        for browser in (oldest, next_one, newest):
            nursery.start_soon(browser.download, downloads, 400)
            await browser.is_asked.wait()
        for browser in (oldest, next_one, newest):
            browser.reads.set()
    assert [browser.is_complete for browser in (oldest, next_one, newest)] == [False, True, True]
    assert (oldest.received, next_one.received, newest.received) == (0, 400, 400)


async def test_one_that_is_read_counts_no_more_and_one_that_is_too_large_is_sent_alone() -> None:
    downloads = Downloads(held_bytes_max=1000)
    waiting, reader = Browser(reads=False), Browser(reads=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.download, downloads, 600)
        await waiting.is_asked.wait()
        for _ in range(3):
            await reader.download(downloads, 300, 300)
        assert (reader.received, reader.is_complete) == (1800, True)
        waiting.reads.set()
    assert waiting.is_complete
    await reader.download(downloads, 5000)
    assert (reader.received, reader.is_complete) == (6800, True)
