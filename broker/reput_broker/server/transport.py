"""Two ways to reach a peer: a plain socket, or any trio stream.

A socket is tried before anything waits: a receive that has data costs one system call, and an answer usually leaves
with one non-blocking send without waking a task.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import trio

# The operating system allocates a buffer above 64 KiB for each read, which costs more than a small read; so large ones
# are for peers that fill them.
_READ_BYTES = 1 << 16
_READ_BYTES_MAX = 1 << 18
_AT_HAND_BYTES = 1 << 14  # a TLS record
_SEND_BYTES = 1 << 16  # to a stream, which copies; the peer has made progress after each
# A peer that waits for each answer sends again shortly after it: two more attempts to read, a pass of the event loop
# apart, find that in less time than sleeping and waking takes. The more often they fail, the rarer they become.
_LOOKS = 2
_SKIPPED_MAX = 63


class Transport(Protocol):
    """A connected peer."""

    async def arrived(self) -> None:
        """Wait until `receive` can return without waiting. Raises as `receive`."""

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises OSError or trio.BrokenResourceError."""

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Send without waiting; return how many bytes were sent. Raises OSError."""

    async def send(self, data: memoryview) -> int:
        """Wait until some of `data` is sent; return how many bytes. Raises OSError."""

    def close(self) -> None:
        """Close immediately; a waiting receive raises an error."""


class SocketTransport:
    """A connected stream socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._read_bytes = _READ_BYTES
        self._looks_in_vain = 0
        self._skip_looks = 0

    async def arrived(self) -> None:
        """See `Transport`."""
        await trio.lowlevel.wait_readable(self._socket)

    async def receive(self) -> bytes:
        """See `Transport`. Lets other tasks run at least once a call."""
        # Other tasks run first: the first attempt finds what arrives meanwhile.
        await trio.lowlevel.checkpoint()
        data = self._try_receive()
        if data is not None:
            return data
        if self._skip_looks:
            self._skip_looks -= 1
        else:
            for _ in range(_LOOKS):
                await trio.lowlevel.checkpoint()
                data = self._try_receive()
                if data is not None:
                    self._looks_in_vain = 0
                    return data
            self._looks_in_vain = min(2 * self._looks_in_vain + 1, _SKIPPED_MAX)
            self._skip_looks = self._looks_in_vain
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            data = self._try_receive()
            if data is not None:
                return data

    def _try_receive(self) -> bytes | None:
        """Return what has arrived, b"" at the end, None if there is nothing yet."""
        try:
            data = self._socket.recv(self._read_bytes)
        except BlockingIOError:
            return None
        self._read_bytes = _READ_BYTES_MAX if len(data) >= _READ_BYTES else _READ_BYTES
        return data

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """See `Transport`."""
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0])
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    async def send(self, data: memoryview) -> int:
        """See `Transport`."""
        while True:
            await trio.lowlevel.wait_writable(self._socket)
            try:
                return self._socket.send(data)
            except BlockingIOError:
                continue

    def close(self) -> None:
        """See `Transport`."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class StreamTransport:
    """Any trio stream: TLS, or memory in tests. `try_send` sends nothing."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._at_hand: bytes | None = None

    async def arrived(self) -> None:
        """See `Transport`. Reads ahead, because a stream does not tell whether it has data."""
        if self._at_hand is None:
            self._at_hand = bytes(await self._stream.receive_some(_AT_HAND_BYTES))

    async def receive(self) -> bytes:
        """See `Transport`."""
        at_hand, self._at_hand = self._at_hand, None
        if at_hand is not None:
            await trio.lowlevel.checkpoint()
            return at_hand
        return bytes(await self._stream.receive_some(_READ_BYTES_MAX))

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """See `Transport`."""
        del buffers
        return 0

    async def send(self, data: memoryview) -> int:
        """See `Transport`."""
        piece = data[:_SEND_BYTES]
        await self._stream.send_all(piece)
        return len(piece)

    def close(self) -> None:
        """See `Transport`."""
        trio.lowlevel.spawn_system_task(trio.aclose_forcefully, self._stream)
