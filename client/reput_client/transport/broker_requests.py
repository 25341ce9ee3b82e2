"""Requests that the broker sends by itself: who takes them, and how they are answered.

A broker tells members of a group that it has changed (40), asks producers what became of a transaction (39), hands over
replies (326), and passes on what administrators want of a member (220, 221, 307, 309).

They arrive with the answers to our own requests, so they are read by the caller that waits for one (see `pump.py`): a
client that waits for nothing reads nothing. A client that expects such requests keeps a request of its own waiting, a
pull for example, or calls `Session.poll` now and then, which in the blocking API takes a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode, ResponseCode
from reput_protocol.errors import ErrorCode, ReputError, refusal_remark
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType, Value

if TYPE_CHECKING:
    from reput_client.transport.connection import Connection
    from reput_client.transport.core import ChannelCore

log = logging.getLogger("reput_client")


class BrokerRequest:
    """One request of the broker.

    `code`, `ext` and `body` are as the command defines them; `connection` is the one that it came on.
    """

    __slots__ = ("_core", "_header", "_header_type", "_open", "body", "connection")

    def __init__(
        self, connection: Connection, core: ChannelCore, header: Header, header_type: int, body: memoryview
    ) -> None:
        self.connection = connection
        self.body = body
        self._core = core
        self._header = header
        self._header_type = header_type
        self._open = not header.is_oneway

    @property
    def code(self) -> int:
        """What is asked."""
        return self._header.code

    @property
    def ext(self) -> Mapping[str, Value]:
        """The header's named fields."""
        return self._header.ext

    @property
    def wants_answer(self) -> bool:
        """Whether the broker waits for an answer, and has none yet."""
        return self._open

    def answer(
        self,
        ext: Mapping[str, Value] | None = None,
        body: Buffer = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Answer, now or at any time later; never waits.

        Does nothing if no answer is wanted, one was given, or the connection has gone: the broker would not match it.
        """
        if not self._open:
            return
        self._open = False
        native = self._header_type == HeaderType.MSGPACK
        header = Header(
            code=int(code),
            opaque=self._header.opaque,
            flag=RESPONSE_FLAG,
            remark=remark,
            ext=dict(ext or {}),
            language=int(LanguageCode.PYTHON),
            version=PROTOCOL_VERSION if native else ROCKETMQ_VERSION,
        )
        self.connection.answer(self._core, header, self._header_type, body)

    def refuse(self, error: ErrorCode, text: str) -> None:
        """Answer that it cannot be done, and why."""
        self.answer(code=error.response_code, remark=refusal_remark(error, text))


Handler: TypeAlias = Callable[[BrokerRequest], None]
"""Takes a request. It is called between two answers, so it must not wait; what takes long goes elsewhere, and answers
from there."""


class RequestHandlers:
    """Who takes which requests of the broker, for all connections of one client."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    def register(self, code: int, handler: Handler) -> None:
        """Have `handler` called with every request of this code.

        Raises:
            ValueError: the code has a handler.
        """
        if self._handlers.setdefault(int(code), handler) is not handler:
            raise ValueError(f"requests of code {int(code)} have a handler already; unregister it first")

    def unregister(self, code: int) -> None:
        """Forget the handler of this code, if there is one; such requests are refused again."""
        self._handlers.pop(int(code), None)

    def handle(self, request: BrokerRequest) -> None:
        """Hand on a request. One without a handler is refused; a handler that raises is logged and refused, too.

        Never raises: the caller that reads waits for another answer.
        """
        handler = self._handlers.get(request.code)
        if handler is None:
            request.refuse(
                ErrorCode.UNSUPPORTED_REQUEST, f"this client takes no requests of code {request.code}"
            )
            return
        try:
            handler(request)
        except ReputError as error:
            log.warning("request %d of the broker refused: %s", request.code, error)
            request.refuse(ErrorCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            log.exception("request %d of the broker failed", request.code)
            request.refuse(ErrorCode.INTERNAL, f"the client failed: {error!r}")
