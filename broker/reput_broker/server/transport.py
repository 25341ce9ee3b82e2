"""Three ways to reach a peer: a plain socket, a socket with TLS, or any trio stream.

A socket is tried before anything waits: a receive that has data costs one system call, and an answer usually leaves
with one non-blocking send without waking a task.

An `Outbox` has the unsent answers of one connection. `write` queues and `flush` sends as much as the socket takes; a
task sends the rest as the peer reads. Producers of answers check `is_crowded` and wait for `drained`. `ClientCalls` are
the requests of the broker to the client.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio
from typing_extensions import override

from reput_broker.observe.counters import ListenerTraffic
from reput_broker.remoting.request import ClientAnswer, ClientBusy, ClientGone, ClientSilent
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.errors import TlsFailed
from reput_protocol.wire.channel import Channel, Waiter
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value
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


LEAST_BYTES_A_S: Final = 1 << 14
"""The least rate at which a peer reads its answers and sends a frame."""

_BUFFERS_MAX = 512  # a system call takes at most 1,024
_JOIN_BYTES = 256 * 1024
_BUFFER_COST = 64  # memory of a waiting buffer besides its bytes


class Outbox:
    """Answers to one peer.

    Args:
        transport: the peer.
        limit: bytes from which the outbox is crowded; called each time, since it changes.
        note_buffered: called with the change of the memory of waiting answers, except those that leave with the next
            `flush`. Buffers count as a whole until all of them is sent. May call `close`.
        traffic: counts the bytes sent.
        start_drain: starts `drain` as a task.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        limit: Callable[[], int],
        note_buffered: Callable[[int], None],
        traffic: ListenerTraffic,
        start_drain: Callable[[], None],
    ) -> None:
        self._transport = transport
        self._limit = limit
        self._note_buffered = note_buffered
        self._traffic = traffic
        self._start_drain = start_drain
        self.queued: deque[bytes | memoryview] = deque()
        """Buffers that wait for the next `flush`, or for `drain`."""
        self.unsent_bytes = 0
        """Bytes that the peer has not read yet: queued, or being sent by `drain`."""
        self._sent_of_first = 0  # sent bytes of a buffer that stays in memory until all of it is sent
        self._noted_bytes = 0
        self.is_draining = False
        """Whether the peer has not read everything yet."""
        self._drained = trio.Event()
        self._closed = False
        self.progress_at = 0.0
        """Until when the peer has read waiting answers at the least rate, on trio's clock."""

    @property
    def is_crowded(self) -> bool:
        """Whether more is unsent than the limit."""
        return self.unsent_bytes > 0 and self.unsent_bytes > self._limit()

    async def drained(self) -> None:
        """Wait until the peer has read everything, or is gone."""
        while self.is_draining and not self._closed:
            await self._drained.wait()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the queue."""
        if self._closed:
            return
        self.queued.append(data)
        self.unsent_bytes += len(data)
        if self.is_draining:
            self._note()

    def flush(self) -> None:
        """Send what the socket takes without waiting. Raises OSError if the peer is gone."""
        if not self.queued or self.is_draining or self._closed:
            return
        buffers: list[bytes | memoryview] = list(self.queued)
        if len(buffers) > _BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        self.queued.clear()
        sent = self._transport.try_send(buffers)
        self.unsent_bytes -= sent
        self._traffic.bytes_out += sent
        if self.unsent_bytes:
            rest = _rest_of(buffers, sent)
            self._sent_of_first = len(buffers[-len(rest)]) - len(rest[0])
            self.queued.extend(rest)
            self.is_draining = True
            self._drained = trio.Event()
            self.progress_at = trio.current_time()
            self._note()
            self._start_drain()

    async def drain(self) -> None:
        """Send until nothing is left; runs as a task. Raises OSError if the peer is gone."""
        try:
            while self.queued and not self._closed:
                rest = memoryview(self._next_piece())
                while len(rest) and not self._closed:
                    sent = await self._transport.send(rest)
                    self.progress_at = min(trio.current_time(), self.progress_at + sent / LEAST_BYTES_A_S)
                    rest = rest[sent:]
                    self._traffic.bytes_out += sent
                    if not self._closed:
                        self.unsent_bytes -= sent
                        self._sent_of_first += sent
                self._sent_of_first = 0
                del rest
                if not self._closed:
                    self._note()
        finally:
            self.is_draining = False
            self._drained.set()

    def _next_piece(self) -> bytes | memoryview:
        """Take the next piece from the queue: a large buffer as it is, small ones joined."""
        first = self.queued.popleft()
        size = len(first)
        if size >= _JOIN_BYTES or not self.queued:
            return first
        together = [first]
        while self.queued and size + len(self.queued[0]) <= _JOIN_BYTES:
            together.append(self.queued.popleft())
            size += len(together[-1])
        self._sent_of_first = 0
        return b"".join(together)

    def close(self) -> None:
        """Drop the rest; waiting tasks continue."""
        self._closed = True
        self.queued.clear()
        self.unsent_bytes = self._sent_of_first = 0
        self._note()
        self._drained.set()

    def _note(self) -> None:
        held = self.unsent_bytes + self._sent_of_first + _BUFFER_COST * len(self.queued)
        change, self._noted_bytes = held - self._noted_bytes, held
        self._note_buffered(change)


def _rest_of(buffers: list[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *buffers[index + 1 :]]
        sent -= len(buffer)
    return []


_OPAQUE_MIN: Final = 1 << 30
"""High, so that a capture shows which side numbered a request."""
_CALLS_MAX: Final = 64


@dataclass(eq=False, repr=False, slots=True)
class ClientCalls:
    """The requests, and the calls that wait for their answers.

    Args:
        outbox: of the connection.
        send: sends a frame at once; False if the connection has ended.
    """

    _outbox: Outbox
    _send: Callable[[bytes], bool]
    _channel: Channel | None = field(default=None, init=False)

    def send_oneway(self, header_type: int, code: int, ext: Mapping[str, Value], body: bytes) -> bool:
        """Send a request without an answer; False if the connection has ended."""
        opaque = self._opened().next_opaque()
        return self._send(_frame(header_type, opaque, code, ext, body, ONEWAY_FLAG))

    async def call(
        self, header_type: int, code: int, ext: Mapping[str, Value], body: bytes, timeout_s: float
    ) -> ClientAnswer:
        """See `Client.call`. RocketMQ's clients may not answer, so the number of open calls is bounded."""
        channel, answered, waiter = self._opened(), trio.Event(), Waiter()
        if channel.pending >= _CALLS_MAX:
            raise ClientBusy(f"{_CALLS_MAX} requests to this client wait for its response already; try again later")
        waiter.wake = answered.set
        call = channel.new_call(waiter)
        try:
            frame = _frame(header_type, call.opaque, code, ext, body)
            if self._outbox.is_crowded or not self._send(frame):
                raise ClientGone("the client's connection takes nothing any more")
            with trio.move_on_after(timeout_s):
                await answered.wait()
        finally:
            channel.abandon(call)
        if not call.done:
            raise ClientSilent(f"the client has not responded within {timeout_s:g} s")
        return ClientAnswer.of(call)

    def answered(self, header: Header, body: memoryview) -> bool:
        """Pass an answer of the client to its call; return whether there is one."""
        call = None if self._channel is None else self._channel.take(header.opaque)
        if call is None:
            return False
        call.finish(header, body)
        return True

    def end(self) -> None:
        """End the calls that wait, because the connection has ended."""
        if self._channel is not None:
            self._channel.end(ClientGone("the client's connection ended before it responded"))

    def _opened(self) -> Channel:
        if self._channel is None:
            self._channel = Channel(opaque_min=_OPAQUE_MIN)  # most clients never receive a request
        return self._channel


def _frame(header_type: int, opaque: int, code: int, ext: Mapping[str, Value], body: bytes, flag: int = 0) -> bytes:
    version = PROTOCOL_VERSION if header_type == HeaderType.MSGPACK else ROCKETMQ_VERSION
    header = Header(code, opaque, flag, None, dict(ext), LanguageCode.PYTHON.value, version)
    return encode_frame(header, header_type, body)
