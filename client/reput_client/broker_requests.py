"""What the broker asks of this client: members have changed, is this transaction decided, here is your reply, ...

A handler is called by whoever happens to read the connection, so it never waits: it takes note, and answers at once
or later. A request that nobody handles is refused, as RocketMQ's clients do, so that the broker need not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION, LanguageCode, ResponseCode
from reput_protocol.frames import encode_frame
from reput_protocol.header import RESPONSE_FLAG, Header, Value

log = logging.getLogger("reput_client")


class ReplyChannel(Protocol):
    """The connection that a request came on."""

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that nothing answers; one for a connection that is gone is dropped."""


class BrokerRequest:
    """A request of the broker; `body` may be kept only as a copy."""

    __slots__ = ("_channel", "_header_type", "body", "header")

    def __init__(self, channel: ReplyChannel, header: Header, header_type: int, body: memoryview) -> None:
        self._channel = channel
        self._header_type = header_type
        self.header = header
        self.body = body

    def answer(
        self,
        code: int = ResponseCode.SUCCESS,
        ext: Mapping[str, Value] | None = None,
        body: Buffer = b"",
        remark: str | None = None,
    ) -> None:
        """Answer, now or later; to a oneway request nothing is said."""
        if self.header.is_oneway:
            return
        header = Header(
            int(code),
            self.header.opaque,
            RESPONSE_FLAG,
            remark,
            dict(ext or {}),
            int(LanguageCode.PYTHON),
            PROTOCOL_VERSION,
        )
        self._channel.send_frame(encode_frame(header, self._header_type, body))


Handler: TypeAlias = Callable[[BrokerRequest], None]


class BrokerRequests:
    """The handlers of one client, by request code."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    def handle(self, code: int, handler: Handler) -> None:
        """Give requests of `code` to `handler`, which must not wait."""
        self._handlers[int(code)] = handler

    def take(self, request: BrokerRequest) -> None:
        """A request has come. Whatever its handler does, the reader of the connection goes on."""
        code = request.header.code
        handler = self._handlers.get(code)
        if handler is None:
            remark = f"request code {code} is not supported by this client"
            request.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            return
        try:
            handler(request)
        except Exception as error:
            log.exception("a request of the broker (code %d) could not be handled", code)
            request.answer(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
