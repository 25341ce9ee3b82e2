"""Calls, their bytes and their answers, without a socket."""

from __future__ import annotations

import pytest

from reput_client.transport.channel import ClientChannel, RequestTemplate
from reput_protocol.wire.channel import Waiter
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType


def answer(opaque: int, body: bytes = b"", flag: int = RESPONSE_FLAG) -> bytes:
    return encode_frame(Header(0, opaque, flag, version=1), HeaderType.MSGPACK, body)


@pytest.mark.parametrize("opaque", [1, 127, 128, 255, 65_536, 0x7FFF_FFFF])
def test_a_template_gives_the_frame_that_encoding_the_header_would_mean(opaque: int) -> None:
    template = RequestTemplate(105, {"topic": "t", "n": 5, "yes": True, "none": None})
    (frame,) = FrameReader().receive_data(template.encode(opaque, 4) + b"body")
    header = decode_header(frame.header_type, frame.header)
    assert (header.code, header.opaque, header.flag, header.version) == (105, opaque, 0, 1)
    assert header.ext == {"topic": "t", "n": 5, "yes": True, "none": None}
    assert bytes(frame.body) == b"body"


def test_a_oneway_call_is_done_when_it_has_left_and_is_never_pending() -> None:
    channel = ClientChannel()
    waiter = Waiter()
    call = channel.new_oneway(waiter)
    assert channel.pending == 0
    assert not any((call.sent, call.done, waiter.ready))
    call.written()
    assert call.done
    assert waiter.ready
    assert call.error is None
    template = RequestTemplate(15, {"topic": "t"}, flag=ONEWAY_FLAG)
    (frame,) = FrameReader().receive_data(template.encode(call.opaque, 0))
    assert decode_header(frame.header_type, frame.header).is_oneway
