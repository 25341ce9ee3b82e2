"""The two ways bytes reach a peer: a socket of our own, or any trio stream.

A socket is tried before anything waits: a receive that has data costs one system call, and an answer usually leaves
with one non-blocking send from wherever it became known, without waking a task.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol

import trio


class Transport(Protocol):
    """A connected peer."""

    async def receive(self, size: int) -> bytes:
        """Return up to `size` bytes, b"" at the end. Raises OSError or trio.BrokenResourceError."""

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

    async def receive(self, size: int) -> bytes:
        """See `Transport`. Gives other tasks their turn at least once a call."""
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            pass
        else:
            await trio.lowlevel.checkpoint()
            return data
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(size)
            except BlockingIOError:
                continue

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

    async def receive(self, size: int) -> bytes:
        """See `Transport`."""
        return bytes(await self._stream.receive_some(size))

    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        """See `Transport`."""
        del buffers
        return 0

    async def send(self, data: memoryview) -> int:
        """See `Transport`."""
        await self._stream.send_all(data)
        return len(data)

    def close(self) -> None:
        """See `Transport`."""
        trio.lowlevel.spawn_system_task(trio.aclose_forcefully, self._stream)
