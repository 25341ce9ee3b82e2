"""A connected socket with TLS on it, which reads and writes like a non-blocking socket.

What is encrypted has to be sent as it is, and OpenSSL's own sockets would have the same bytes offered again. The client
may join other frames before it tries again. So encrypted bytes that the system did not take are kept here.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress

from reput_protocol.buffers import Buffer
from reput_protocol.errors import TlsFailed
from reput_protocol.wire.tls import CHUNK_BYTES, TlsSession

_READ_BYTES = 64 * 1024


class TlsSocket:
    """TLS on a connected, non-blocking socket.

    Args:
        server_name: what the certificate of the broker must be for.
        peer: how errors name the broker.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str, peer: str) -> None:
        self._socket = sock
        self._session = TlsSession(context, server_name=server_name, peer=peer)
        self._session.begin()
        self._unsent: Buffer = self._session.to_send()
        self._ahead = b""  # that came with the end of the handshake

    @property
    def has_unsent(self) -> bool:
        """Whether encrypted bytes wait for the system to take them; `flush` tries again."""
        return bool(self._unsent)

    def handshake(self) -> bool:
        """Continue the handshake as far as it goes without waiting; return whether it is over.

        If it is not, wait until the socket is readable, or, with `has_unsent`, writable.

        Raises:
            TlsFailed: the broker cannot be trusted, or does not speak TLS.
            OSError, EOFError: the connection has ended.
        """
        session = self._session
        while True:
            if not self.flush():
                return False
            if session.is_established:
                return True
            try:
                data = self._socket.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                return False
            if not data:
                raise EOFError
            try:
                self._ahead = session.receive_data(data)
            except TlsFailed:
                with suppress(OSError):
                    self._socket.send(session.to_send())  # an alert that says why
                raise
            self._queue(session.to_send())

    def recv(self, size: int) -> bytes:
        """Return decrypted bytes, b"" at the end; sometimes more than `size`.

        Nothing decrypted is kept back, so that waiting for the socket is enough.

        Raises:
            BlockingIOError: there are none yet.
            TlsFailed: what arrived is not valid, or the broker refuses this client.
        """
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        session = self._session
        while True:
            data = self._socket.recv(size)
            if not data:
                return b""
            decrypted = session.receive_data(data)
            answer = session.to_send()
            if answer:
                self._queue(answer)
                self.flush()
            if decrypted or session.has_ended:
                return decrypted

    def send(self, data: Buffer) -> int:
        """Take bytes and send them; return how many were taken. They cannot be taken back.

        Raises:
            BlockingIOError: the system has not taken the earlier ones yet.
            BrokenPipeError: TLS has ended.
        """
        if not self.flush():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        piece = data if len(data) <= CHUNK_BYTES else memoryview(data)[:CHUNK_BYTES]
        try:
            self._queue(self._session.encrypt(piece))
        except TlsFailed as error:
            raise BrokenPipeError(errno.EPIPE, str(error)) from error
        self.flush()
        return len(piece)

    def sendmsg(self, pieces: Iterable[Buffer]) -> int:
        """Like `send`, with bytes in several pieces."""
        taken = 0
        for piece in pieces:
            if taken and self._unsent:
                break
            taken_now = self.send(piece)
            taken += taken_now
            if taken_now < len(piece):
                break
        return taken

    def flush(self) -> bool:
        """Send what is encrypted, as much as the system takes without waiting; return whether nothing is left."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                return False
            self._unsent = memoryview(self._unsent)[sent:] if sent < len(self._unsent) else b""
        return True

    def _queue(self, encrypted: bytes) -> None:
        if encrypted:
            self._unsent = b"".join((self._unsent, encrypted)) if self._unsent else encrypted
