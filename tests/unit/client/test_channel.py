"""Calls, their bytes and their answers, without a socket."""

from __future__ import annotations

import pytest

from reput_client.transport.channel import ClientChannel, RequestTemplate
from reput_protocol.errors import FrameTooLarge
from reput_protocol.wire.channel import Peer, Waiter
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType
from reput_protocol.wire.signature import Credentials


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


@pytest.mark.parametrize("peer", Peer)
def test_a_header_that_no_server_accepts_is_not_encoded(peer: Peer) -> None:
    template, user = RequestTemplate(105, {"text": 1_100_000 * "x"}), Credentials("alice", "secret-of-alice")
    with pytest.raises(FrameTooLarge, match="header of 1100"):
        template.encode(1, 0, peer)
    with pytest.raises(FrameTooLarge, match="header of 1100"):
        template.signed_form(user)
    with pytest.raises(FrameTooLarge, match="header of 1100"):
        template.encode_for_rocketmq(user, 1, (), peer)


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
