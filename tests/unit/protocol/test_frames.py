"""Frames: any chunking, no copies where none are needed, every length checked before it is used."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from reput_protocol.errors import FrameMalformed, FrameTooLarge
from reput_protocol.wire.frames import (
    FRAME_BYTES_MAX,
    FrameReader,
    decode_header,
    encode_frame,
    encode_frame_head,
)
from reput_protocol.wire.header import Header, HeaderType

HEADER = Header(105, 7, ext={"topic": "TopicTest"})


def frame(body: bytes = b"", header_type: int = HeaderType.MSGPACK) -> bytes:
    return encode_frame(HEADER, header_type, body)


def head(total: int, header_size: int, header_type: int = 0) -> bytes:
    return struct.pack(">II", total & 0xFFFFFFFF, header_type << 24 | header_size)


def test_a_read_of_whole_frames_is_not_copied() -> None:
    data = frame(b"one") + frame() + frame(b"three", HeaderType.JSON)
    reader = FrameReader()
    frames = reader.receive_data(data)
    assert [bytes(item.body) for item in frames] == [b"one", b"", b"three"]
    assert [item.header_type for item in frames] == [0x4D, 0x4D, 0]
    assert all(item.body.obj is data for item in frames)
    assert all(decode_header(item.header_type, item.header).code == 105 for item in frames)
    assert (reader.buffered_bytes, reader.mid_frame) == (0, False)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_is_taken(kind: type[bytes]) -> None:
    reader = FrameReader()
    data = frame(b"x" * 50)
    frames = reader.receive_data(kind(data + data[:20])) + reader.receive_data(kind(data[20:]))
    assert [bytes(item.body) for item in frames] == [b"x" * 50] * 2


def test_one_byte_at_a_time() -> None:
    reader = FrameReader()
    frames = [item for byte in frame(b"abc") + frame() for item in reader.receive_data(bytes([byte]))]
    assert [bytes(item.body) for item in frames] == [b"abc", b""]
    assert not reader.mid_frame


def test_bodies_of_straddling_frames_outlive_later_reads() -> None:
    reader = FrameReader()
    data = frame(b"first") + frame(b"second") + frame(b"third")
    frames = reader.receive_data(data[:20])
    assert reader.mid_frame
    assert reader.buffered_bytes == 20
    frames += reader.receive_data(data[20:60])
    frames += reader.receive_data(data[60:])
    assert [bytes(item.body) for item in frames] == [b"first", b"second", b"third"]


@pytest.mark.parametrize("total", [-1, 0, 3, FRAME_BYTES_MAX - 3, 0x47455420])
def test_a_bad_total_is_refused_with_its_first_four_bytes(total: int) -> None:
    with pytest.raises((FrameTooLarge, FrameMalformed)):
        FrameReader().receive_data(head(total, 0)[:4])
    with pytest.raises((FrameTooLarge, FrameMalformed)):
        FrameReader().receive_data(head(total, 0) + bytes(20))


def test_a_header_longer_than_its_frame_is_malformed() -> None:
    with pytest.raises(FrameMalformed, match="cannot hold its header of 7"):
        FrameReader().receive_data(head(10, 7))


def test_a_long_header_is_refused_before_it_comes() -> None:
    with pytest.raises(FrameTooLarge, match="header of 101 bytes, but at most 100"):
        FrameReader(header_limit=100).receive_data(head(1000, 101))


def test_the_limit_counts_the_length_field() -> None:
    reader = FrameReader(frame_limit=100)
    assert len(reader.receive_data(head(96, 92) + bytes(92))) == 1
    with pytest.raises(FrameTooLarge, match="frame of 101 bytes, but at most 100"):
        reader.receive_data(head(97, 93))


def test_frames_before_a_bad_one_are_still_returned() -> None:
    reader = FrameReader()
    assert len(reader.receive_data(frame(b"good") + head(-1, 0))) == 1
    assert isinstance(reader.failure, FrameTooLarge)
    with pytest.raises(FrameTooLarge):
        reader.receive_data(b"")


def test_memory_follows_what_came_and_not_what_was_announced() -> None:
    reader = FrameReader()
    tracemalloc.start()
    try:
        reader.receive_data(head(FRAME_BYTES_MAX - 4, 100) + bytes(1000))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_large_frame_in_many_reads_is_copied_once() -> None:
    """Copying again at every read would copy 32 GiB here, for minutes."""
    body = bytes(FRAME_BYTES_MAX - 200)
    data = memoryview(frame(body))
    reader = FrameReader()
    frames = [item for at in range(0, len(data), 4096) for item in reader.receive_data(data[at : at + 4096])]
    assert len(frames) == 1
    assert len(frames[0].body) == len(body)


def test_encode_frame_is_head_and_body() -> None:
    assert encode_frame(HEADER, 0, b"body") == encode_frame_head(HEADER, 0, 4) + b"body"
    assert encode_frame(HEADER, 1, memoryview(b"body")) == encode_frame_head(HEADER, 1, 4) + b"body"
    assert encode_frame(HEADER, 1) == encode_frame_head(HEADER, 1, 0)


def test_no_frame_is_written_that_no_peer_takes() -> None:
    with pytest.raises(FrameTooLarge):
        encode_frame_head(HEADER, 0, FRAME_BYTES_MAX)
