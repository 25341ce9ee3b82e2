"""The unsent answers of one connection, and the requests of the broker to its client.

`write` queues and `flush` sends as much as the socket takes; a task sends the rest as the peer reads. Producers of
answers check `is_crowded` and wait for `drained`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import trio

from reput_broker.observe.counters import ListenerTraffic
from reput_broker.remoting.request import ClientAnswer, ClientBusy, ClientGone, ClientSilent
from reput_broker.server.transport import Transport
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.wire.channel import Channel, Waiter
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value

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


class ClientCalls:
    """The requests, and the calls that wait for their answers.

    Args:
        outbox: of the connection.
        send: sends a frame at once; False if the connection has ended.
    """

    __slots__ = ("_channel", "_outbox", "_send")

    def __init__(self, outbox: Outbox, send: Callable[[bytes], bool]) -> None:
        self._outbox = outbox
        self._send = send
        self._channel: Channel | None = None

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
            raise ClientBusy(
                f"{_CALLS_MAX} requests to this client wait for its response already; try again later"
            )
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


def _frame(
    header_type: int, opaque: int, code: int, ext: Mapping[str, Value], body: bytes, flag: int = 0
) -> bytes:
    version = PROTOCOL_VERSION if header_type == HeaderType.MSGPACK else ROCKETMQ_VERSION
    header = Header(code, opaque, flag, None, dict(ext), LanguageCode.PYTHON.value, version)
    return encode_frame(header, header_type, body)
