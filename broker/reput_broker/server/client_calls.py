"""Requests of the broker to one client, over the connection on which the client sends its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio

from reput_broker.remoting.request import ClientAnswer, ClientBusy, ClientGone, ClientSilent
from reput_broker.server.outbox import Outbox
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.wire.channel import Channel, Waiter
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value

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
