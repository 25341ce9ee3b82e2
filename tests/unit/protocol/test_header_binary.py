"""Binary headers: every length is checked against the buffer."""

from __future__ import annotations

import pytest

from reput_protocol.errors import HeaderMalformed
from reput_protocol.wire.frames import decode_binary_header, encode_binary_header
from reput_protocol.wire.header import Header

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
    "header",
    [Header(700001, 1), Header(1, 2**31), Header(1, 1, language=256), Header(1, 1, ext={"n" * 40_000: "v"})],
)
def test_values_that_do_not_fit_are_not_written(header: Header) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_binary_header(header)
