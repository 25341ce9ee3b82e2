"""What the broker asks of a client."""

from __future__ import annotations

import pytest

from reput_client.broker_requests import BrokerRequest, BrokerRequests
from reput_client.core import ChannelCore
from reput_protocol.codes import LanguageCode, ResponseCode
from reput_protocol.frames import FrameReader, encode_frame
from reput_protocol.header import ONEWAY_FLAG, Header, HeaderType, decode_header

TYPES = [HeaderType.MSGPACK, HeaderType.JSON, HeaderType.BINARY]


class Channel:
    """Keeps the frames that a client sends back."""

    def __init__(self, requests: BrokerRequests) -> None:
        self.answers: list[tuple[Header, bytes, int]] = []
        self.core = ChannelCore(
            on_request=lambda header, kind, body: requests.take(BrokerRequest(self, header, kind, body))
        )

    def send_frame(self, frame: bytes) -> None:
        for sent in FrameReader().receive_data(frame):
            self.answers.append(
                (decode_header(sent.header_type, sent.header), bytes(sent.body), sent.header_type)
            )

    def ask(self, code: int, kind: int = HeaderType.MSGPACK, flag: int = 0, body: bytes = b"") -> None:
        header = Header(code, 1 << 30, flag, ext={"consumerGroup": "g"}, version=1)
        self.core.receive_data(encode_frame(header, kind, body))


@pytest.mark.parametrize("kind", TYPES)
def test_a_handler_answers_in_the_language_of_the_request(kind: HeaderType) -> None:
    requests = BrokerRequests()
    seen: list[tuple[str, bytes]] = []

    def handle(request: BrokerRequest) -> None:
        seen.append((str(request.header.ext["consumerGroup"]), bytes(request.body)))
        request.answer(body=b"result")

    requests.handle(307, handle)
    channel = Channel(requests)
    channel.ask(307, kind, body=b"question")
    assert seen == [("g", b"question")]
    ((header, body, header_type),) = channel.answers
    assert (header.code, header.opaque, header.flag, body, header_type) == (0, 1 << 30, 1, b"result", kind)
    assert header.language == LanguageCode.PYTHON


def test_to_a_oneway_request_nothing_is_said() -> None:
    requests = BrokerRequests()
    requests.handle(40, lambda request: request.answer())
    channel = Channel(requests)
    channel.ask(40, flag=ONEWAY_FLAG)
    channel.ask(999, flag=ONEWAY_FLAG)
    assert channel.answers == []


def test_what_nobody_handles_is_refused_so_that_nobody_waits() -> None:
    channel = Channel(BrokerRequests())
    channel.ask(999)
    ((header, _, _),) = channel.answers
    assert header.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "999" in str(header.remark)


def test_a_handler_that_fails_does_not_end_the_connection() -> None:
    requests = BrokerRequests()

    def fail(_request: BrokerRequest) -> None:
        raise KeyError("consumerGroup")

    requests.handle(40, fail)
    channel = Channel(requests)
    channel.ask(40)
    ((header, _, _),) = channel.answers
    assert (header.code, header.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'consumerGroup'")
