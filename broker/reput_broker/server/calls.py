"""Requests that the broker sends to a client, and their answers.

A flag tells a request from an answer, so the request numbers of the two sides do not collide. RocketMQ's clients may
not answer, so every call has a deadline, and the number of open calls of a connection is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio

from reput_broker.request import ClientAnswer, ClientBusy, ClientGone, ClientSilent
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value

# High, so that a capture shows which side numbered a request. Never 0, which ali-ons replaces.
_OPAQUE_MIN: Final = 1 << 30
_OPAQUE_MAX: Final = (1 << 31) - 1
_CALLS_MAX: Final = 64
_MSGPACK: Final = HeaderType.MSGPACK.value


class _Call:
    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: ClientAnswer | None = None


class ServerCalls:
    """The requests of the broker to one client."""

    __slots__ = ("_calls", "_opaque")

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._opaque = _OPAQUE_MIN

    def header(
        self, code: int, ext: Mapping[str, Value], header_type: int, *, oneway: bool = False
    ) -> Header:
        """Return the header of the next request, for a client that uses `header_type`."""
        self._opaque = _OPAQUE_MIN if self._opaque == _OPAQUE_MAX else self._opaque + 1
        version = PROTOCOL_VERSION if header_type == _MSGPACK else ROCKETMQ_VERSION
        flag = ONEWAY_FLAG if oneway else 0
        return Header(code, self._opaque, flag, None, dict(ext), LanguageCode.PYTHON.value, version)

    async def call(self, opaque: int, send: Callable[[], bool], timeout_s: float) -> ClientAnswer:
        """Send request `opaque` and wait for its answer.

        Raises:
            ClientGone, ClientSilent, ClientBusy: there is no answer.
        """
        if len(self._calls) >= _CALLS_MAX:
            raise ClientBusy(
                f"{_CALLS_MAX} requests to this client wait for its answer already; ask again later"
            )
        call = self._calls[opaque] = _Call()
        try:
            if not send():
                raise ClientGone("the client's connection takes nothing any more")
            with trio.move_on_after(timeout_s) as waiting:
                await call.done.wait()
        finally:
            del self._calls[opaque]
        if call.answer is not None:
            return call.answer
        if waiting.cancelled_caught:
            raise ClientSilent(f"the client has not answered within {timeout_s:g} s")
        raise ClientGone("the client's connection ended before it answered")

    def answered(self, header: Header, body: memoryview) -> None:
        """Pass an answer to the call that waits for it; drop it if none does."""
        call = self._calls.get(header.opaque)
        if call is not None and call.answer is None:
            call.answer = ClientAnswer(header.code, header.remark, header.ext, bytes(body))
            call.done.set()

    def ended(self) -> None:
        """End all calls, because the connection has ended."""
        for call in self._calls.values():
            call.done.set()
