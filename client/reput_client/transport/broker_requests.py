"""Requests from the broker to the client, and their handlers; docs/protocol.md lists them.

They arrive among the answers and are read by the caller that waits for one (see `pump.py`): a client that waits for
nothing reads nothing. A client that expects them keeps a request waiting, such as a pull, or calls `Session.poll` now
and then, in the synchronous API from a thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from reput_client.transport.address import Address
from reput_client.transport.channel import ClientChannel
from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode, ResponseCode
from reput_protocol.errors import ErrorCode, ReputError, refusal_remark
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType, Value

log = logging.getLogger("reput_client")


class Answering(Protocol):
    """What a request needs of the connection that it came on: a `BrokerConnection`."""

    @property
    def address(self) -> Address:
        """The broker's address."""

    def answer(self, channel: ClientChannel, header: Header, header_type: int, body: Buffer) -> None:
        """Send a response, unless the connection of `channel` is gone."""


class BrokerRequest:
    """One request from the broker.

    `code`, `ext` and `body` are as the command defines them; `connection` is the one it came on.
    """

    __slots__ = ("_channel", "_header", "_header_type", "_open", "body", "connection")

    def __init__(
        self, connection: Answering, channel: ClientChannel, header: Header, header_type: int, body: memoryview
    ) -> None:
        self.connection = connection
        self.body = body
        self._channel = channel
        self._header = header
        self._header_type = header_type
        self._open = not header.is_oneway

    @property
    def code(self) -> int:
        """The request code."""
        return self._header.code

    @property
    def ext(self) -> Mapping[str, Value]:
        """The header's extension fields."""
        return self._header.ext

    def answer(
        self,
        ext: Mapping[str, Value] | None = None,
        body: Buffer = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Answer, now or later. Never waits.

        Does nothing if no answer is wanted, one was given, or the connection is gone: the broker could not match it.
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
        self.connection.answer(self._channel, header, self._header_type, body)

    def refuse(self, error: ErrorCode, text: str) -> None:
        """Answer with an error and its reason."""
        self.answer(code=error.response_code, remark=refusal_remark(error, text))


Handler: TypeAlias = Callable[[BrokerRequest], None]
"""Takes a request. It is called between two answers, so it must not wait.

Longer work is done in a task or thread that answers later.
"""


class RequestHandlers:
    """One client's handlers, by request code, for all of its connections."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    def register(self, code: int, handler: Handler) -> None:
        """Call `handler` for every request of this code.

        Raises:
            ValueError: the code has a handler already.
        """
        if self._handlers.setdefault(int(code), handler) is not handler:
            raise ValueError(f"requests of code {int(code)} have a handler already; unregister it first")

    def unregister(self, code: int) -> None:
        """Remove this code's handler, if any; such requests are refused again."""
        self._handlers.pop(int(code), None)

    def handle(self, request: BrokerRequest) -> None:
        """Call the handler of a request. Refused without a handler; if the handler raises, logged and refused.

        Never raises: the calling reader waits for another answer.
        """
        handler = self._handlers.get(request.code)
        if handler is None:
            request.refuse(ErrorCode.UNSUPPORTED_REQUEST, f"this client takes no requests of code {request.code}")
            return
        try:
            handler(request)
        except ReputError as error:
            log.warning("request %d of the broker rejected: %s", request.code, error)
            request.refuse(ErrorCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            log.exception("request %d of the broker failed", request.code)
            request.refuse(ErrorCode.INTERNAL, f"the client failed: {error!r}")
