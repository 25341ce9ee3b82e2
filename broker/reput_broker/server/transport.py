"""Three ways to reach a peer: a plain socket, a socket with TLS, or any trio stream.

A socket is tried before anything waits: a receive that has data costs one system call, and an answer usually leaves
with one non-blocking send without waking a task.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import trio
from typing_extensions import override

from reput_protocol.errors import TlsFailed
from reput_protocol.wire.tls import CHUNK_BYTES, TlsSession

# The operating system allocates a buffer above 64 KiB for each read, which costs more than a small read; so large ones
# are for peers that fill them.
_READ_BYTES = 1 << 16
_READ_BYTES_MAX = 1 << 18
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

    def end_sending(self) -> None:
        """Show the peer the end, if that is possible while it can still send. Raises OSError."""

    def close(self) -> None:
        """Close immediately; a waiting receive raises an error."""


class SocketTransport(Transport):
    """A connected stream socket."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._read_bytes = _READ_BYTES
        self._looks_in_vain = 0
        self._skip_looks = 0

    @override
    async def arrived(self) -> None:
        await trio.lowlevel.wait_readable(self._socket)

    @override
    async def receive(self) -> bytes:
        """Receive; other tasks run at least once a call."""
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

    @override
    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        try:
            if len(buffers) == 1:
                return self._socket.send(buffers[0])
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    @override
    async def send(self, data: memoryview) -> int:
        while True:
            await trio.lowlevel.wait_writable(self._socket)
            try:
                return self._socket.send(data)
            except BlockingIOError:
                continue

    @override
    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    @override
    def close(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TlsTransport(SocketTransport):
    """A connected stream socket with TLS. Call `handshake` first.

    Encrypted bytes have to be sent as they are. What the system does not take of them is kept here, and their plain
    bytes count as sent only when it has been: so the outbox continues with `send`, which offers them again.
    """

    def __init__(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(connected)
        self._session = TlsSession(context, server_name=None, peer="the client")
        self._unsent: bytes | memoryview = b""
        self._unsent_plain = 0  # of how many plain bytes `_unsent` is the rest
        self._ahead = b""  # that came with the end of the handshake

    async def handshake(self) -> None:
        """Make the handshake; the caller limits its time.

        Raises:
            TlsFailed: one side does not accept the other.
            OSError, EOFError: the connection has ended.
        """
        session = self._session
        while not session.is_established:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            if not data:
                raise EOFError
            try:
                self._ahead = session.receive_data(data)
            except TlsFailed:
                with suppress(OSError):
                    self._socket.send(session.to_send())  # an alert that says why
                raise
            answer = memoryview(session.to_send())
            while len(answer):
                answer = answer[await SocketTransport.send(self, answer) :]

    @override
    async def arrived(self) -> None:
        if not self._ahead:
            await super().arrived()

    def _try_receive(self) -> bytes | None:
        """Return what has arrived and decrypts; nothing decrypted is kept back."""
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        session = self._session
        while True:
            data = super()._try_receive()
            if not data:
                return data
            try:
                decrypted = session.receive_data(data)
            except TlsFailed as error:
                raise ConnectionResetError(errno.ECONNRESET, str(error)) from error
            answer = session.to_send()
            if answer:
                self._unsent = b"".join((self._unsent, answer))
                self._flush()
            if decrypted:
                return decrypted
            if session.has_ended:
                return b""

    @override
    def try_send(self, buffers: Sequence[bytes | memoryview]) -> int:
        if not self._flush():
            return 0
        sent = 0
        for chunk in _chunks_of(buffers):
            sent += self._encrypt_and_send(chunk)
            if self._unsent:
                break
        return sent

    @override
    async def send(self, data: memoryview) -> int:
        while True:
            if self._flush():
                if self._unsent_plain:  # what is sent now, `data` begins with
                    sent = min(self._unsent_plain, len(data))
                    self._unsent_plain -= sent
                else:
                    sent = self._encrypt_and_send(data[:CHUNK_BYTES])
                if sent:
                    return sent
            await trio.lowlevel.wait_writable(self._socket)

    @override
    def end_sending(self) -> None:
        """Not with TLS, whose end is that of both directions."""

    @override
    def close(self) -> None:
        """The peer is notified if that needs no waiting."""
        if self._socket.fileno() >= 0 and not self._unsent:
            with suppress(OSError):
                self._socket.send(self._session.end())
        super().close()

    def _encrypt_and_send(self, data: bytes | memoryview) -> int:
        """Return how many bytes were sent: all, or none if a part of them waits."""
        try:
            self._unsent = self._session.encrypt(data)
        except TlsFailed as error:
            raise BrokenPipeError(errno.EPIPE, str(error)) from error
        if self._flush():
            return len(data)
        self._unsent_plain = len(data)
        return 0

    def _flush(self) -> bool:
        """Send what is encrypted, as much as the system takes; return whether nothing is left."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = memoryview(self._unsent)[sent:] if sent < len(self._unsent) else b""
        return True


def _chunks_of(buffers: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of all buffers in chunks to encrypt. Only chunks with parts of several buffers are copies."""
    parts: list[bytes | memoryview] = []
    room = CHUNK_BYTES
    for buffer in buffers:
        rest = buffer
        while len(rest) >= room:
            rest = memoryview(rest)
            parts.append(rest[:room])
            yield parts[0] if len(parts) == 1 else b"".join(parts)
            rest, parts, room = rest[room:], [], CHUNK_BYTES
        if len(rest):
            parts.append(rest)
            room -= len(rest)
    if parts:
        yield parts[0] if len(parts) == 1 else b"".join(parts)
