"""What a pull brought is looked at as one table where it is one; that says what looking at each record says."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from reput_client.record_positions import Pulled, checked_positions, pulled_positions, table_positions
from reput_protocol.properties import encode_properties
from reput_protocol.record import Record, encode_record

FIRST = 500
ROWS = 66
MANY_ROWS = 406


def records(
    topic: str, gaps: frozenset[int], odd: int, rows: int = ROWS, tags: tuple[str, ...] = ("paid",)
) -> list[bytes]:
    """Messages of one shape, but for number `odd` and the tags; a gap before some of them."""
    encoded, queue_offset = [], FIRST
    for number in range(rows):
        queue_offset += number in gaps
        body = b"x" * (9 if number == odd else 8)
        properties = encode_properties({"UNIQ_KEY": f"{number:032d}", "TAGS": tags[number % len(tags)]})
        record = Record(topic, body, queue_id=3, queue_offset=queue_offset, properties=properties)
        encoded.append(bytes(encode_record(record)))
        queue_offset += 1
    return encoded


flips = st.lists(st.tuples(st.integers(0, ROWS * 180), st.integers(1, 255)), max_size=3)


@given(
    topic=st.sampled_from(["orders", "t" * 127, "t" * 200]),
    gaps=st.frozensets(st.integers(0, ROWS - 1), max_size=2),
    odd=st.sampled_from([-1, -1, -1, 0, 30, ROWS - 1]),
    flips=flips,
    cut=st.sampled_from([0, 0, 0, 1, 50]),
    pulled=st.builds(
        Pulled,
        topic=st.sampled_from(["orders", "t" * 127, "t" * 200]),
        queue_id=st.sampled_from([3, 3, 3, 2]),
        offset=st.sampled_from([FIRST, FIRST, FIRST - 2, FIRST + 1]),
        next_offset=st.sampled_from([FIRST + ROWS, FIRST + ROWS, FIRST + ROWS + 1, FIRST + ROWS + 5, FIRST]),
        filtered=st.booleans(),
    ),
)
def test_a_table_is_what_its_records_are(
    topic: str, gaps: frozenset[int], odd: int, flips: list[tuple[int, int]], cut: int, pulled: Pulled
) -> None:
    data = bytearray(b"".join(records(topic, gaps, odd)))
    for position, change in flips:
        data[position % len(data)] ^= change
    brought = bytes(data[: len(data) - cut])
    expected = checked_positions(brought, pulled)
    assert table_positions(brought, pulled) in (None, expected)
    assert pulled_positions(brought, pulled) == expected


@given(
    gaps=st.frozensets(st.integers(0, MANY_ROWS - 1), max_size=1),
    odd=st.sampled_from([-1, -1, 0, 30, MANY_ROWS - 1]),
    flips=st.lists(st.tuples(st.integers(0, MANY_ROWS * 180), st.integers(1, 255)), max_size=2),
    cut=st.sampled_from([0, 0, 0, 1, 50]),
    queue_id=st.sampled_from([3, 3, 3, 2]),
    offset=st.sampled_from([FIRST, FIRST, FIRST - 2, FIRST + 1]),
    more=st.sampled_from([0, 0, 1, -1]),
    filtered=st.booleans(),
)
def test_records_of_different_sizes_are_looked_at_together(
    gaps: frozenset[int],
    odd: int,
    flips: list[tuple[int, int]],
    cut: int,
    queue_id: int,
    offset: int,
    more: int,
    filtered: bool,
) -> None:
    data = bytearray(b"".join(records("orders", gaps, odd, MANY_ROWS, ("paid", "refunded", "new"))))
    for position, change in flips:
        data[position % len(data)] ^= change
    brought = bytes(data[: len(data) - cut])
    pulled = Pulled("orders", queue_id, offset, FIRST + MANY_ROWS + len(gaps) + more, filtered)
    expected = checked_positions(brought, pulled)
    assert table_positions(brought, pulled) in (None, expected)
    assert pulled_positions(brought, pulled) == expected


def test_an_ordinary_pull_of_different_sizes_is_looked_at_at_once() -> None:
    encoded = records("orders", frozenset(), -1, MANY_ROWS, ("paid", "refunded", "new"))
    pulled = Pulled("orders", 3, FIRST, FIRST + MANY_ROWS)
    assert table_positions(b"".join(encoded), pulled) == list(accumulate(map(len, encoded), initial=0))


def test_an_ordinary_pull_is_a_table() -> None:
    encoded = records("orders", frozenset(), -1)
    pulled = Pulled("orders", 3, FIRST, FIRST + ROWS)
    size = len(encoded[0])
    assert table_positions(b"".join(encoded), pulled) == list(range(0, size * ROWS + 1, size))
