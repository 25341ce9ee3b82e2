"""The two ways bytes reach a peer: a socket of our own, or any trio stream.

A socket is tried before anything waits: a receive that has data costs one system call, and an answer usually leaves
with one non-blocking send from wherever it became known, without waking a task.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import trio

# Above 64 KiB the buffer of a read comes from the system anew each time, which costs more than a small read itself; so
# large ones only for peers that fill them.
_READ_BYTES = 1 << 16
_READ_BYTES_MAX = 1 << 18
_AT_HAND_BYTES = 1 << 14  # a record of TLS
_SEND_BYTES = 1 << 16  # of a stream, which copies what it is given; and after each the peer has made progress
# A peer that waits for each answer sends again a moment after it has got one: looking twice more than every
# read does, a turn of the loop apart, finds that without going to sleep and being woken, which takes longer. A peer
# whose rhythm is another one is looked at like this ever more rarely.
_LOOKS = 2
_SKIPPED_MAX = 63


class Transport(Protocol):
    """A connected peer."""

    async def arrived(self) -> None:
        """Wait until `receive` has something to return at once. Raises what it raises."""

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises OSError or trio.BrokenResourceError."""

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """Send what goes without waiting; return how many bytes that were. Raises OSError."""

    async def send(self, data: memoryview) -> int:
        """Send some of `data`, waiting as long as it takes; return how many bytes. Raises OSError."""

    def close(self) -> None:
        """Close at once; a waiting receive ends with an error."""


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
        """See `Transport`. Gives other tasks their turn at least once a call."""
        # The others' turn comes first: what arrives meanwhile is found by the first look.
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
        """Return what is there, b"" at the end, None if nothing is there yet."""
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
    """Any trio stream: TLS, or memory in tests. Nothing is ever sent without waiting."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._at_hand: bytes | None = None

    async def arrived(self) -> None:
        """See `Transport`. Some of it is kept: a stream does not say whether there is anything."""
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
