"""Calls, their bytes and their answers, without a socket."""

from __future__ import annotations

import pytest

from reput_client.errors import ConnectionLost
from reput_client.transport.channel import Call, Channel, RequestTemplate, Waiter
from reput_protocol.errors import FrameTooLarge, ProtocolError
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


def test_answers_find_their_calls_in_any_order_and_any_chunking() -> None:
    channel = Channel()
    waiters = [Waiter() for _ in range(3)]
    calls = [channel.new_call(waiter) for waiter in waiters]
    data = answer(calls[2].opaque, b"2") + answer(calls[0].opaque, b"0" * 1000) + answer(calls[1].opaque)
    for position in range(0, len(data), 7):
        expects_more = channel.receive_data(data[position : position + 7])
        assert expects_more == (position + 7 < len(data)), "every boundary of these falls inside a piece"
    assert all(call.done for call in calls)
    assert all(waiter.ready for waiter in waiters)
    assert bytes(calls[0].body) == b"0" * 1000
    assert bytes(calls[2].body) == b"2"
    assert channel.pending == 0


def test_unawaited_answers_and_unhandled_requests_of_the_broker_are_dropped() -> None:
    channel = Channel()
    abandoned, kept = channel.new_call(Waiter()), channel.new_call(Waiter())
    channel.abandon(abandoned)
    channel.receive_data(answer(abandoned.opaque) + answer(kept.opaque, flag=0) + answer(99))
    assert not abandoned.done
    assert not kept.done, "a request with the same number is no answer"
    channel.receive_data(answer(kept.opaque))
    assert kept.done


def test_a_failure_ends_every_pending_call() -> None:
    channel = Channel()
    calls = [channel.new_call(Waiter()) for _ in range(2)]
    channel.fail_all(ConnectionLost("a:1", "gone"))
    for call in calls:
        assert call.done
        with pytest.raises(ConnectionLost):
            _ = call.answer


def test_frames_before_a_broken_one_still_count() -> None:
    channel = Channel(frame_limit=1000)
    call: Call = channel.new_call(Waiter())
    with pytest.raises(FrameTooLarge):
        channel.receive_data(answer(call.opaque) + b"\x7f\xff\xff\xff\x4d\0\0\0")
    assert call.done
    with pytest.raises(ProtocolError):
        Channel().receive_data(b"GET / HTTP/1.1\r\n\r\n")


def test_opaques_start_over_before_they_leave_31_bits() -> None:
    channel = Channel()
    channel._next_opaque = 0x7FFF_FFFF
    assert [channel.new_call(Waiter()).opaque for _ in range(3)] == [0x7FFF_FFFF, 1, 2]


def test_a_waiter_wakes_its_sleeper() -> None:
    woken = []
    waiter = Waiter()
    waiter.wake = lambda: woken.append(1)
    waiter.notify()
    assert waiter.ready
    assert woken == [1]


def test_requests_of_the_broker_are_passed_on_between_answers() -> None:
    taken: list[tuple[Header, int, bytes]] = []
    channel = Channel(lambda header, header_type, body: taken.append((header, header_type, bytes(body))))
    call = channel.new_call(Waiter())
    notice = Header(40, call.opaque, ONEWAY_FLAG, ext={"consumerGroup": "g"}, version=1)
    asked = Header(307, 7, ext={"clientId": "c"}, language=0, version=479)
    channel.receive_data(
        encode_frame(notice, HeaderType.MSGPACK, b"")
        + answer(call.opaque)
        + encode_frame(asked, HeaderType.JSON, b"body")
    )
    assert call.done
    assert taken == [(notice, HeaderType.MSGPACK, b""), (asked, HeaderType.JSON, b"body")]


def test_a_oneway_call_is_done_when_it_has_left_and_is_never_pending() -> None:
    channel = Channel()
    waiter = Waiter()
    call = channel.new_oneway(waiter)
    assert channel.pending == 0
    assert not any((call.sent, call.done, waiter.ready))
    call.sent = True
    assert call.sent
    assert call.done
    assert waiter.ready
    assert call.error is None
    template = RequestTemplate(15, {"topic": "t"}, flag=ONEWAY_FLAG)
    (frame,) = FrameReader().receive_data(template.encode(call.opaque, 0))
    assert decode_header(frame.header_type, frame.header).is_oneway
