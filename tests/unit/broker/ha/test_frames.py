"""The bytes between master and slave: golden ones of RocketMQ, however they are split or joined."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.ha.frames import HEADER, REPORT, HAProtocolError, Hello, ReportReader, TransferReader, encode_hello

FILE = 8192


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(places)]


cuts = st.lists(st.integers(0, 1 << 16), max_size=20)


def test_golden_bytes() -> None:
    """As recorded from RocketMQ: the report of 16806, a frame at 16384, a heartbeat."""
    assert REPORT.pack(16806).hex() == "00000000000041a6"
    assert HEADER.pack(16384, 422).hex() == "0000000000004000000001a6"
    assert HEADER.pack(16806, 0).hex() == "00000000000041a600000000"
    assert encode_hello(Hello(2, 7)).hex() == "fffffffffffffffd0000000000000007"


@given(st.none() | st.integers(0, 1 << 31), st.lists(st.integers(0, 1 << 62), min_size=1, max_size=30), cuts)
def test_reports_in_any_pieces(member: int | None, offsets: list[int], places: list[int]) -> None:
    hello = None if member is None else Hello(member, 3)
    data = b"" if hello is None else encode_hello(hello)
    data += b"".join(map(REPORT.pack, offsets))
    reader = ReportReader()
    assert [offset for piece in split(data, places) for offset in reader.feed(piece)] == offsets
    assert reader.hello == hello


@pytest.mark.parametrize("data", [REPORT.pack(5) + REPORT.pack(-1), encode_hello(Hello(1, 1)) + REPORT.pack(-9)])
def test_a_negative_report_is_refused(data: bytes) -> None:
    with pytest.raises(HAProtocolError, match="which is negative"):
        ReportReader().feed(data)


def frames_of(log: bytes, start: int, sizes: list[int]) -> bytes:
    """The log from an offset on as a master sends it, with a heartbeat for each size of 0."""
    data, offset = b"", start
    for size in [*sizes, len(log)]:
        length = min(size, start + len(log) - offset, FILE - offset % FILE)
        data += HEADER.pack(offset, length) + log[offset - start : offset - start + length]
        offset += length
    return data


@given(st.integers(0, 3 * FILE), st.binary(max_size=3 * FILE), st.lists(st.integers(0, 3000), max_size=20), cuts)
def test_frames_in_any_pieces(start: int, log: bytes, sizes: list[int], places: list[int]) -> None:
    data = frames_of(log, start, sizes)
    reader = TransferReader(FILE, start)
    found = b""
    for piece in split(data, places):
        for offset, part in reader.feed(piece):
            assert offset == start + len(found)
            found += part
    assert log.startswith(found)
    assert reader.offset == start + len(found)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (HEADER.pack(99, 5), "from offset 99 on, but this log continues at 100"),
        (HEADER.pack(101, 0), "from offset 101 on, but this log continues at 100"),
        (HEADER.pack(-100, 5), "from offset -100 on"),
        (HEADER.pack(100, -1), "announces -1 bytes"),
        (HEADER.pack(100, FILE - 99), f"where {FILE - 100} are left in the file"),
        (HEADER.pack(100, (1 << 31) - 1), "announces 2147483647 bytes"),
    ],
)
def test_a_frame_that_does_not_continue_the_log_is_refused(frame: bytes, message: str) -> None:
    with pytest.raises(HAProtocolError, match=message):
        list(TransferReader(FILE, 100).feed(frame))


def test_an_empty_slave_begins_at_the_start_of_a_file() -> None:
    reader = TransferReader(FILE, None)
    assert [offset for offset, _ in reader.feed(HEADER.pack(2 * FILE, 3) + b"abc")] == [2 * FILE]
    with pytest.raises(HAProtocolError, match=r"at log offset 8193, where no file of 8192 bytes starts; set store\."):
        list(TransferReader(FILE, None).feed(HEADER.pack(FILE + 1, 0)))
