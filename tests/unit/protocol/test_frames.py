"""Frames: any chunking, no copies where none are needed, every length checked before it is used."""

from __future__ import annotations

import json
import struct
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from reput_protocol.codes import LanguageCode
from reput_protocol.errors import FrameMalformed, FrameTooLarge, HeaderMalformed
from reput_protocol.wire.frames import (
    FRAME_BYTES_MAX,
    FrameReader,
    decode_binary_header,
    decode_header,
    decode_json_header,
    decode_msgpack_header,
    encode_binary_header,
    encode_frame,
    encode_frame_head,
    encode_json_header,
    encode_msgpack_header,
)
from reput_protocol.wire.header import Header, HeaderType, Value

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


SAMPLE = Header(310, 8, 1, "remark", {"a": "PG", "empty": "", "ü": "\U0001f600"}, 9, 317)


def test_round_trip() -> None:
    assert decode_binary_header(encode_binary_header(SAMPLE)) == SAMPLE


def test_a_view_is_read_and_not_kept() -> None:
    data = bytearray(encode_binary_header(SAMPLE))
    assert decode_binary_header(memoryview(data)) == SAMPLE
    data.clear()


def test_an_empty_remark_is_none() -> None:
    assert decode_binary_header(encode_binary_header(Header(0, 1, remark=""))).remark is None


def test_every_truncation_is_malformed() -> None:
    data = encode_binary_header(SAMPLE)
    for size in range(len(data)):
        with pytest.raises(HeaderMalformed):
            decode_binary_header(data[:size])


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("00690001df0000000700000000ffffffff00000000"),  # remark of -1 bytes
        bytes.fromhex("00690001df0000000700000000000000007fffffff"),  # fields of 2 GiB
        bytes.fromhex("00690001df000000070000000000000000ffffffff"),  # fields of -1 bytes
        bytes.fromhex("00690001df000000070000000000000000000000000000"),  # bytes left over
        bytes.fromhex("00690001df00000007000000000000000000000006ffff00000000"),  # name of -1 bytes
        bytes.fromhex("00690001df00000007000000000000000000000007000161ffffffff"),  # value of -1 bytes
        bytes.fromhex("00690001df0000000700000000000000000000000800016100000005ff"),  # value past the end
        bytes.fromhex("00690001df0000000700000000000000000000000800016100000001ff"),  # value is no UTF-8
        bytes.fromhex("00690001df000000070000000000000001ff00000000"),  # remark is no UTF-8
    ],
)
def test_bad_lengths_and_texts_are_malformed(data: bytes) -> None:
    with pytest.raises(HeaderMalformed):
        decode_binary_header(data)


@pytest.mark.parametrize(
    "header", [Header(700001, 1), Header(1, 2**31), Header(1, 1, language=256), Header(1, 1, ext={"n" * 40_000: "v"})]
)
def test_values_that_do_not_fit_are_not_written(header: Header) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_binary_header(header)


def test_go_sends_an_empty_remark() -> None:
    header = decode_json_header(
        b'{"code":10,"language":"GO","version":317,"opaque":2,"flag":0,"remark":"","extFields":{"topic":"GoT"}}'
    )
    assert header == Header(10, 2, 0, "", {"topic": "GoT"}, LanguageCode.GO, 317)


def test_ali_ons_sends_bare_numbers_and_booleans() -> None:
    header = decode_json_header(
        b'{"code":11,"opaque":6,"extFields":{"queueId":0,"commitOffset":-1,"unitMode":false,"rate":1.50,"none":null}}'
    )
    assert header.ext == {"queueId": "0", "commitOffset": "-1", "unitMode": "false", "rate": "1.50"}
    assert (header.flag, header.version, header.remark) == (0, 0, None)


@pytest.mark.parametrize("language", ['"COBOL"', "null", "-1", "[]", "1e3"])
def test_an_unknown_language_is_served_as_other(language: str) -> None:
    assert decode_json_header(b'{"code":1,"language":%b}' % language.encode()).language == LanguageCode.OTHER


def test_a_missing_or_null_ext_is_empty() -> None:
    assert decode_json_header(b'{"code":1}').ext == {}
    assert decode_json_header(b'{"code":1,"extFields":null}').ext == {}


def test_unknown_members_are_ignored_and_the_last_of_two_counts() -> None:
    assert decode_json_header(b'{"code":1,"code":2,"x":{"y":[1]}}').code == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"code":1',
        b'{"code":1}x',
        b"{code:1}",
        b'{"code":1,}',
        b'{"code":"1"}',
        b'{"code":1.0}',
        b'{"code":true}',
        b'{"code":2147483648}',
        b'{"code":1,"opaque":NaN}',
        b'{"code":1,"opaque":[]}',
        b'{"code":1,"remark":1}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"extFields":{"a":NaN}}',
        b'{"code":1,"extFields":{"a":"\\ud800"}}',
        b'{"code":1,"extFields":{"\\uDFFF":"a"}}',
        b'{"code":1,"remark":"\xff"}',
        b'\xef\xbb\xbf{"code":1}',
        b'{"code":' + b"9" * 60_000 + b"}",
        b'{"code":1,"extFields":{"n":' + b"9" * 60_000 + b"}}",
        b"[" * 65_000,
        b'{"a":' * 13_000,
    ],
)
def test_an_invalid_json_header_is_malformed(data: bytes) -> None:
    with pytest.raises(HeaderMalformed):
        decode_json_header(data)


def test_a_real_surrogate_pair_is_a_character() -> None:
    assert decode_json_header(b'{"code":1,"remark":"\\ud83d\\ude00"}').remark == "\U0001f600"


def test_written_headers_hold_text_only() -> None:
    """The Go client cannot read a bare number in ext."""
    ext = {"n": 7, "b": True, "f": 1.5, "raw": b"abc", "none": None, "t": "x"}
    members = json.loads(encode_json_header(Header(0, 1, 1, None, ext)))  # type: ignore[arg-type]
    assert members["extFields"] == {"n": "7", "b": "true", "f": "1.5", "raw": "abc", "t": "x"}
    assert "remark" not in members


def test_bytes_that_are_not_text_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        encode_json_header(Header(0, 1, ext={"a": b"\xff"}))


def test_an_unknown_language_number_is_written_as_other() -> None:
    assert json.loads(encode_json_header(Header(0, 1, language=99)))["language"] == "OTHER"


@pytest.mark.parametrize(
    "data",
    [
        b'{"code":10,"extFields":{"a":[' + b",".join([b"[]"] * 300_000) + b"]}}",
        b'{"code":10,"extFields":{' + b",".join(b'"%x":"1"' % number for number in range(90_000)) + b"}}",
        b'{"code":10,"extFields":{' + b",".join(b'"%x\\\\" :1' % number for number in range(90_000)) + b"}}",
    ],
)
def test_a_large_header_makes_few_objects(data: bytes) -> None:
    """Each made a third of a million objects, and took a tenth of a second and more."""
    tracemalloc.start()
    try:
        with pytest.raises(HeaderMalformed):
            decode_json_header(data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data) + 100_000
    finally:
        tracemalloc.stop()


def test_containers_where_no_field_is_make_no_objects() -> None:
    lists = b"[" + b",".join([b"[]"] * 300_000) + b"]"
    tracemalloc.start()
    try:
        header = decode_json_header(b'{"code":10,"language":%b,"unknown":%b}' % (lists, lists))
        assert tracemalloc.get_traced_memory()[1] < 4 * len(lists) + 100_000
    finally:
        tracemalloc.stop()
    assert (header.code, header.language) == (10, LanguageCode.OTHER)


def test_a_large_header_with_long_texts_is_read() -> None:
    ext: dict[str, Value] = {"i": 'a "quoted" \\ text ' * 10_000, "j": "x"}
    assert decode_json_header(encode_json_header(Header(310, 1, ext=ext))).ext == ext


@pytest.mark.parametrize("pair", [b'\\"', b'"\\', b"\\\\", b'""'])
def test_a_text_without_an_end_is_read_once(pair: bytes) -> None:
    """Escaped quotation marks without an end were each searched to the end of the header: a minute for 64 KiB."""
    with pytest.raises(HeaderMalformed):
        decode_json_header(b'{"code":1,"remark":"' + pair * 500_000)


FIXED = [105, 3, 1, 7, 0, None]


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def test_values_keep_their_types() -> None:
    ext = {"i": 2**63, "n": -1, "b": True, "f": 0.5, "t": "ü", "raw": b"\x00\xff", "none": None}
    header = Header(700001, 2**32 - 1, 3, "no route", ext, 3, 1)  # type: ignore[arg-type]
    assert decode_msgpack_header(encode_msgpack_header(header)) == header


def test_elements_beyond_the_seventh_are_ignored() -> None:
    data = msgpack.packb([*FIXED, {}, "reserved", {"a": [b"x", {"b": 1}]}])
    assert decode_msgpack_header(data) == Header(105, 7, 0, None, {}, 3, 1)


def test_depth_four_is_the_deepest() -> None:
    decode_msgpack_header(msgpack.packb([*FIXED, {}, nested(3)]))
    with pytest.raises(HeaderMalformed, match="deeper"):
        decode_msgpack_header(msgpack.packb([*FIXED, {}, nested(4)]))


@pytest.mark.parametrize("count", [1024, 1025])
def test_1024_fields_are_the_most(count: int) -> None:
    data = msgpack.packb([*FIXED, {str(number): 0 for number in range(count)}])
    if count == 1024:
        assert len(decode_msgpack_header(data).ext) == 1024
    else:
        with pytest.raises(HeaderMalformed):
            decode_msgpack_header(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb({}),
        msgpack.packb(FIXED),
        msgpack.packb([*FIXED, None]),
        msgpack.packb([*FIXED, []]),
        msgpack.packb([*FIXED, {}]) + b"\x00",
        msgpack.packb([*FIXED, {}])[:-1],
        msgpack.packb(["105", 3, 1, 7, 0, None, {}]),
        msgpack.packb([True, 3, 1, 7, 0, None, {}]),
        msgpack.packb([1, 3, 1, 7.0, 0, None, {}]),
        msgpack.packb([1, 3, 1, 2**32, 0, None, {}]),
        msgpack.packb([1, 3, 1, 7, 0, b"raw", {}]),
        msgpack.packb([*FIXED, {"a": []}]),
        msgpack.packb([*FIXED, {"a": {"b": {}}}]),
        msgpack.packb([*FIXED, {1: "a"}]),
        msgpack.packb([*FIXED, {b"k": "a"}]),
        msgpack.packb([*FIXED, {"a": msgpack.ExtType(5, b"x")}]),
        msgpack.packb([*FIXED, {"a": msgpack.ExtType(5, b"")}]),
        msgpack.packb([*FIXED, {"a": msgpack.Timestamp(1)}]),
        msgpack.packb([*FIXED, {}, msgpack.ExtType(5, b"x")]),
        msgpack.packb([*FIXED, {}, list(range(1025))]),
        msgpack.packb([*FIXED, {}]).replace(b"\xc0", b"\xa1\xff"),  # remark is no UTF-8
        b"\xdd\x7f\xff\xff\xff" + b"\xc0" * 100,  # array of 2^31 elements
        b"\x97" + b"\x00" * 5 + b"\xc0" + b"\xdf\x7f\xff\xff\xff" + b"\xc0" * 100,  # map of 2^31 entries
        b"\x97" + b"\x00" * 5 + b"\xdb\x7f\xff\xff\xff" + b"x" * 100,  # remark of 2 GiB
        b"\x91" * 60_000,
        b"\x81" * 60_000,
    ],
)
def test_an_invalid_msgpack_header_is_malformed(data: bytes) -> None:
    with pytest.raises(HeaderMalformed):
        decode_msgpack_header(data)


@pytest.mark.parametrize(("ext", "reason"), [({"n": 2**64}, "does not fit msgpack"), ({"t": "\ud800"}, "surrogates")])
def test_values_that_msgpack_cannot_encode_are_a_value_error(ext: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode_msgpack_header(Header(1, 1, ext=ext))  # type: ignore[arg-type]
    assert decode_msgpack_header(encode_msgpack_header(Header(1, 1))) == Header(1, 1)


def test_threads_encode_at_once() -> None:
    """A packer has state: threads that share one would mix up their headers."""
    wrong: list[int] = []

    def encode(number: int) -> None:
        expected = Header(number, number, ext={"k": str(number) * 50})
        decoded = [decode_msgpack_header(encode_msgpack_header(expected)) for _ in range(300)]
        wrong.extend(number for header in decoded if header != expected)

    threads = [threading.Thread(target=encode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", [list, dict])
def test_a_large_header_is_left_after_a_few_containers(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each empty array costs its sender a byte and the reader a microsecond."""
    made = []
    unpack = msgpack.unpackb

    def watching(hook: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        def watch(value: Any) -> Any:
            made.append(value)
            return hook(value) if hook else value

        return watch

    def watched(data: bytes, **options: Any) -> Any:
        for name in ("list_hook", "object_hook"):
            options[name] = watching(options.get(name))
        return unpack(data, **options)

    monkeypatch.setattr(msgpack, "unpackb", watched)
    for value in ([kind()] * 1000, [[kind()] * 15] * 64):
        data = msgpack.packb([*FIXED, {"properties": "x" * 3000}, value])
        made.clear()
        with pytest.raises(HeaderMalformed, match="more than 64 arrays and maps"):
            decode_msgpack_header(data)
        assert len(made) <= 65


def test_a_large_header_of_text_is_read() -> None:
    header = Header(10, 1, ext={"properties": "x" * 60_000, "n": 1})
    assert decode_msgpack_header(encode_msgpack_header(header)) == header
