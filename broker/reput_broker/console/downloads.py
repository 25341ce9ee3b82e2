"""Downloads: how many are made at the same time, and how much of them is in memory until browsers have read it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

_AT_ONCE: Final = 2
"""Each may decompress a body."""
_HELD_BYTES_MAX: Final = 256 << 20
_PIECE_BYTES: Final = 256 << 10
"""What a browser reads within the time that the HTTP server gives it for one part of an answer."""


class Downloads:
    """Makes and sends downloads. A browser that reads slowly delays no other one.

    Args:
        held_bytes_max: of all that is being sent. What is beyond ends the downloads that have been sent for the longest
            time: their browsers report that they are not complete.
    """

    def __init__(self, *, held_bytes_max: int = _HELD_BYTES_MAX) -> None:
        self.making = trio.CapacityLimiter(_AT_ONCE)
        """Held while a part is made, and not while it is sent."""
        self._held_bytes_max = held_bytes_max
        self._sent: dict[trio.CancelScope, int] = {}

    def answer(
        self,
        parts: AsyncGenerator[bytes],
        headers: Mapping[str, str],
        ends: AsyncExitStack | None = None,
    ) -> Response:
        """Return an answer of these parts.

        Args:
            parts: one after the other; the next one is asked for once the browser has the one before.
            ends: closed afterwards, also if the browser is gone before the first part.
        """
        from starlette.responses import Response

        downloads = self

        class Download(Response):
            async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
                del scope, receive
                async with ends or AsyncExitStack(), aclosing(parts):
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    async for part in parts:
                        if not await downloads._send(part, send):
                            return
                    await send({"type": "http.response.body"})

        answer = Download(headers=headers)
        if "content-length" not in headers:
            del answer.headers["content-length"]  # of no content, which it has here
        return answer

    async def _send(self, part: bytes, send: Send) -> bool:
        """Send a part; return False if it was ended."""
        with self._sending(len(part)) as scope:
            for at in range(0, len(part), _PIECE_BYTES):
                piece = part[at : at + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        return not scope.cancelled_caught

    @contextmanager
    def _sending(self, size: int) -> Iterator[trio.CancelScope]:
        while self._sent and sum(self._sent.values()) + size > self._held_bytes_max:
            oldest = next(iter(self._sent))
            del self._sent[oldest]
            oldest.cancel()
        with trio.CancelScope() as scope:
            self._sent[scope] = size
            try:
                yield scope
            finally:
                self._sent.pop(scope, None)


async def one_part(part: bytes) -> AsyncGenerator[bytes]:
    """Yield a download that is made at once."""
    yield part
