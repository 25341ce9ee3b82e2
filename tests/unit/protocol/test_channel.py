"""Calls, frames and answers of one side of a connection."""

from __future__ import annotations

import pytest

from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION
from reput_protocol.errors import FrameTooLarge, ProtocolError
from reput_protocol.wire.channel import Call, Channel, Peer, Waiter
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType


def answer(opaque: int, body: bytes = b"", flag: int = RESPONSE_FLAG) -> bytes:
    return encode_frame(Header(0, opaque, flag, version=1), HeaderType.MSGPACK, body)


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
    channel.end(ProtocolError("gone"))
    for call in calls:
        assert call.done
        with pytest.raises(ProtocolError):
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
    channel = Channel(opaque_min=0x7FFF_FFFD)
    opaques = [channel.new_call(Waiter()).opaque for _ in range(3)] + [channel.next_opaque()]
    assert opaques == [0x7FFF_FFFD, 0x7FFF_FFFE, 0x7FFF_FFFF, 0x7FFF_FFFD]
    assert Channel().next_opaque() == 1, "some peers replace 0"


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


def test_the_last_words_of_a_server_belong_to_no_request() -> None:
    channel = Channel()
    call = channel.new_call(Waiter())
    words = Header(1, 0, RESPONSE_FLAG, "DRAINING: the broker stops")
    channel.receive_data(encode_frame(words, HeaderType.JSON))
    assert channel.last_words == "DRAINING: the broker stops"
    assert not call.done


@pytest.mark.parametrize(
    ("peer", "header_type", "version"),
    [
        (Peer.UNKNOWN, HeaderType.JSON, PROTOCOL_VERSION),
        (Peer.REPUT, HeaderType.MSGPACK, PROTOCOL_VERSION),
        (Peer.ROCKETMQ, HeaderType.JSON, ROCKETMQ_VERSION),
    ],
)
def test_a_request_has_the_form_that_its_peer_reads(peer: Peer, header_type: HeaderType, version: int) -> None:
    frame = Channel(peer=peer).frame(9, 105, {"topic": "t"}, b"body")
    ((found, head, body),) = FrameReader().receive_data(frame)
    header = decode_header(found, head)
    assert (found, header.opaque, header.code, header.version) == (header_type, 9, 105, version)
    assert (header.ext, bytes(body)) == ({"topic": "t"}, b"body")


@pytest.mark.parametrize(("language", "peer"), [(3, Peer.REPUT), (0, Peer.ROCKETMQ)])
def test_the_first_answer_shows_what_the_peer_is(language: int, peer: Peer) -> None:
    channel = Channel(peer=Peer.UNKNOWN)
    call = channel.new_call(Waiter())
    first = Header(0, call.opaque, RESPONSE_FLAG, language=language)
    channel.receive_data(encode_frame(first, HeaderType.JSON))
    assert channel.peer is peer
