"""Frames and headers for all inputs: chunking changes nothing, types carry what they can, hostile bytes do no harm."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.commands.send import PutMessageHeader, SendMessageHeader
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import Frame, FrameReader, decode_header, encode_frame, encode_header
from reput_protocol.wire.header import Header, HeaderType

I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), TEXT, st.binary(max_size=40)
)
TEXT_HEADERS = st.builds(
    Header,
    code=st.integers(-(2**15), 2**15 - 1),
    opaque=I32,
    flag=I32,
    remark=st.none() | TEXT.filter(bool),
    ext=st.dictionaries(TEXT, TEXT, max_size=6),
    language=st.integers(0, 13),
    version=st.integers(-(2**15), 2**15 - 1),
)
TYPED_HEADERS = st.builds(
    Header,
    code=I32,
    opaque=st.integers(0, 2**32 - 1),
    flag=I32,
    remark=st.none() | TEXT,
    ext=st.dictionaries(TEXT, VALUES, max_size=6),
    language=st.integers(0, 255),
    version=I32,
)
FRAMES = st.lists(
    st.tuples(TEXT_HEADERS, st.sampled_from(list(HeaderType)), st.binary(max_size=200)), min_size=1, max_size=5
)


def copy(frames: list[Frame]) -> list[tuple[int, bytes, bytes]]:
    return [(frame.header_type, bytes(frame.header), bytes(frame.body)) for frame in frames]


def read_in_chunks(data: bytes, sizes: list[int], **limits: int) -> tuple[list[tuple[int, bytes, bytes]], str]:
    """Feed `data` in chunks of these sizes over and over; return all frames and the failure's text."""
    reader = FrameReader(**limits)
    frames: list[Frame] = []
    at = turn = 0
    try:
        while at < len(data):
            size = sizes[turn % len(sizes)]
            frames += reader.receive_data(data[at : at + size])
            at += size
            turn += 1
    except ProtocolError as error:
        return copy(frames), str(error)
    return copy(frames), str(reader.failure or "")


CHUNKS = st.lists(st.integers(1, 300), min_size=1, max_size=8)


@given(FRAMES, CHUNKS)
def test_any_chunking_yields_the_same_frames(parts: list[tuple[Header, HeaderType, bytes]], sizes: list[int]) -> None:
    data = b"".join(encode_frame(*part) for part in parts)
    frames, failure = read_in_chunks(data, sizes)
    assert failure == ""
    assert [(decode_header(header_type, header), header_type, body) for header_type, header, body in frames] == parts


@given(FRAMES, st.binary(max_size=60), CHUNKS)
def test_garbage_after_frames_is_cut_alike(
    parts: list[tuple[Header, HeaderType, bytes]], garbage: bytes, sizes: list[int]
) -> None:
    data = b"".join(encode_frame(*part) for part in parts) + garbage
    limits = {"frame_limit": 20_000, "header_limit": 10_000}
    whole_frames, whole_failure = read_in_chunks(data, [len(data)], **limits)
    frames, failure = read_in_chunks(data, sizes, **limits)
    assert frames == whole_frames
    assert bool(failure) == bool(whole_failure)


@given(TEXT_HEADERS, st.sampled_from(list(HeaderType)))
def test_text_headers_survive_every_type(header: Header, header_type: HeaderType) -> None:
    decoded = decode_header(header_type, encode_header(header, header_type))
    assert decoded == header
    assert list(decoded.ext) == list(header.ext)


@given(TYPED_HEADERS)
def test_typed_headers_survive_msgpack(header: Header) -> None:
    decoded = decode_header(HeaderType.MSGPACK, encode_header(header, HeaderType.MSGPACK))
    assert decoded == header
    assert [type(value) for value in decoded.ext.values()] == [type(value) for value in header.ext.values()]


@given(st.integers(0, 255) | st.sampled_from(list(HeaderType)), st.binary(max_size=300))
@example(0, b'{"code":1,"opaque":' + b"[" * 60_000)
@example(HeaderType.MSGPACK, b"\x97\x01\x03\x01\x07\x00\xc0\x81\xa1a" + b"\x81\xa1a" * 20_000)
def test_hostile_headers_only_raise_protocol_errors(header_type: int, data: bytes) -> None:
    with suppress(ProtocolError):
        decode_header(header_type, data)


@given(TEXT_HEADERS, st.sampled_from(list(HeaderType)), st.data())
def test_damaged_headers_only_raise_protocol_errors(header: Header, header_type: HeaderType, data: Any) -> None:
    damaged = bytearray(encode_header(header, header_type))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        decode_header(header_type, damaged)


FIELD_NAMES = st.sampled_from(
    ["topic", "queueId", "count", "ack", "consumerGroup", "queueOffset", "maxMsgNums", "sysFlag", *"abcdefghijklmn"]
)


@given(st.dictionaries(FIELD_NAMES, VALUES, max_size=14))
def test_hostile_fields_only_raise_protocol_errors(ext: dict[str, Any]) -> None:
    for read in (PutMessageHeader.from_ext, PullMessageHeader.from_ext, SendMessageHeader.from_ext_v2):
        with suppress(ProtocolError):
            read(ext)
