"""msgpack headers: typed values, and limits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.frames import decode_msgpack_header, encode_msgpack_header
from reput_protocol.wire.header import Header

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
def test_an_invalid_header_is_malformed(data: bytes) -> None:
    with pytest.raises(HeaderMalformed):
        decode_msgpack_header(data)


@pytest.mark.parametrize(
    ("ext", "reason"), [({"n": 2**64}, "does not fit msgpack"), ({"t": "\ud800"}, "surrogates")]
)
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
