"""Handlers of the broker's requests, and requests without a handler or with a failing one."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from reput_client.transport.broker_requests import BrokerRequest, RequestHandlers
from reput_client.transport.channel import ClientChannel
from reput_client.transport.connection import BrokerConnection
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import BodyMalformed
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType

INFO = RequestCode.GET_CONSUMER_RUNNING_INFO


class Wire:
    """A connection that records answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[Header, int, bytes]] = []

    def answer(self, channel: ClientChannel, header: Header, header_type: int, body: Any) -> None:
        self.answers.append((header, header_type, bytes(body)))


def request(wire: Wire, code: int = INFO, flag: int = 0, kind: int = HeaderType.MSGPACK) -> BrokerRequest:
    header = Header(code, 77, flag, ext={"clientId": "c"})
    return BrokerRequest(cast("BrokerConnection", wire), ClientChannel(), header, kind, memoryview(b"body"))


def test_a_handler_sees_the_request_and_answers_it_once_when_it_likes() -> None:
    wire, handlers = Wire(), RequestHandlers()
    kept: list[BrokerRequest] = []
    handlers.register(INFO, kept.append)
    handlers.handle(request(wire))
    (taken,) = kept
    assert (taken.code, taken.ext, bytes(taken.body)) == (INFO, {"clientId": "c"}, b"body")
    assert wire.answers == []
    taken.answer({"n": 1}, b"{}")
    taken.answer({"n": 2})
    ((header, kind, body),) = wire.answers
    assert (header.code, header.opaque, header.is_response, header.ext) == (0, 77, True, {"n": 1})
    assert (kind, body, header.version) == (HeaderType.MSGPACK, b"{}", 1)


def test_answers_are_in_the_header_type_of_the_request() -> None:
    wire = Wire()
    request(wire, kind=HeaderType.JSON).answer()
    ((header, kind, _),) = wire.answers
    assert (kind, header.version) == (HeaderType.JSON, 479)


def test_a_request_without_a_handler_is_refused() -> None:
    wire, handlers = Wire(), RequestHandlers()
    handlers.handle(request(wire))
    handlers.handle(request(wire, 40, ONEWAY_FLAG))
    ((header, _, _),) = wire.answers
    assert header.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert header.remark == "UNSUPPORTED_REQUEST: this client takes no requests of code 307"


def test_a_code_has_one_handler() -> None:
    wire, handlers = Wire(), RequestHandlers()
    taken: list[BrokerRequest] = []
    handler = taken.append
    handlers.register(INFO, handler)
    handlers.register(INFO, handler)
    with pytest.raises(ValueError, match="307 have a handler already"):
        handlers.register(INFO, lambda _: None)
    handlers.unregister(INFO)
    handlers.unregister(INFO)
    handlers.handle(request(wire))
    assert taken == []


@pytest.mark.parametrize(
    ("error", "code", "remark", "level"),
    [
        (BodyMalformed("no JSON"), 29, "INVALID_ARGUMENT: no JSON", "WARNING"),
        (KeyError("x"), 1, "INTERNAL: the client failed: KeyError('x')", "ERROR"),
    ],
)
def test_a_handler_that_raises_affects_no_other(
    error: Exception, code: int, remark: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire, handlers = Wire(), RequestHandlers()

    def fail(_: BrokerRequest) -> None:
        raise error

    handlers.register(INFO, fail)
    with caplog.at_level(logging.WARNING, logger="reput_client"):
        handlers.handle(request(wire))
        handlers.handle(request(wire, flag=ONEWAY_FLAG))
    ((header, _, _),) = wire.answers
    assert (header.code, header.remark) == (code, remark)
    assert [record.levelname for record in caplog.records] == [level, level]
