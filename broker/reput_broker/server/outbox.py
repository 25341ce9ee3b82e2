"""The unsent answers of one connection.

`write` queues, `flush` tries to send all of it at once; what the peer does not take stays here and a task, started for
the purpose, hands it over as the peer reads. Whoever produces answers looks at `is_crowded` and waits for `drained`.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from reput_broker.server.transport import Transport

_BUFFERS_MAX = 512  # a system call takes at most 1,024


class Outbox:
    """Answers on their way to one peer.

    Args:
        transport: where they go.
        limit: bytes from which on the outbox is crowded; read anew each time, since it may change.
        note_buffered: told by how many bytes the unsent total grew or shrank.
        start_drain: starts `drain` as a task.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limit: Callable[[], int],
        note_buffered: Callable[[int], None],
        start_drain: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._limit = limit
        self._note_buffered = note_buffered
        self._start_drain = start_drain
        self._queued: list[bytes | memoryview] = []
        self._queued_bytes = 0
        self._unsent_bytes = 0
        self._draining = False
        self._drained = trio.Event()
        self._closed = False
        self.sent_bytes = 0
        self.progress_at = 0.0
        """When the peer last took something while answers were waiting, on trio's clock."""

    @property
    def is_draining(self) -> bool:
        """Whether the peer has not taken everything yet."""
        return self._draining

    @property
    def queued(self) -> int:
        """Buffers that wait for the next `flush`."""
        return len(self._queued)

    @property
    def is_crowded(self) -> bool:
        """Whether more waits here than one connection may leave waiting."""
        return self._unsent_bytes + self._queued_bytes > self._limit()

    async def drained(self) -> None:
        """Wait until the peer has taken everything, or is gone."""
        while self._draining and not self._closed:
            await self._drained.wait()

    def write(self, data: bytes | memoryview) -> None:
        """Queue bytes behind what is queued already."""
        self._queued.append(data)
        self._queued_bytes += len(data)

    def flush(self) -> None:
        """Send what is queued, as far as it goes without waiting. Raises OSError if the peer is gone."""
        if not self._queued or self._draining or self._closed:
            return
        buffers: list[bytes | memoryview] = (
            self._queued if len(self._queued) <= _BUFFERS_MAX else [b"".join(self._queued)]
        )
        size = self._queued_bytes
        self._queued, self._queued_bytes = [], 0
        sent = self._transport.try_send(buffers)
        self.sent_bytes += sent
        if sent < size:
            self._queued = _rest_of(buffers, sent)
            self._queued_bytes = size - sent
            self._draining = True
            self._drained = trio.Event()
            self._start_drain()

    async def drain(self) -> None:
        """Send until nothing is left. Runs as a task of its own. Raises OSError if the peer is gone."""
        self.progress_at = trio.current_time()
        try:
            while self._queued and not self._closed:
                rest = memoryview(b"".join(self._queued))
                self._queued, self._queued_bytes = [], 0
                self._change_unsent(len(rest))
                while len(rest) and not self._closed:
                    sent = await self._transport.send(rest)
                    self.progress_at = trio.current_time()
                    self.sent_bytes += sent
                    self._change_unsent(-sent)
                    rest = rest[sent:]
        finally:
            self._change_unsent(-self._unsent_bytes)
            self._draining = False
            self._drained.set()

    def close(self) -> None:
        """Drop what is left; whoever waits goes on."""
        self._closed = True
        self._queued, self._queued_bytes = [], 0
        self._drained.set()

    def _change_unsent(self, difference: int) -> None:
        self._unsent_bytes += difference
        self._note_buffered(difference)


def _rest_of(buffers: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """Return what is left of the buffers after `sent` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []
