"""Records whose tags, keys and bodies differ in length: many at once are judged, followed and read as one by one."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.columns import COLUMNS_THRESHOLD
from reput_protocol.dispatch_rows import COLUMNS, DispatchRows
from reput_protocol.dispatch_scan import scan_dispatch
from reput_protocol.errors import RecordMalformed
from reput_protocol.index_keys import hash_keys
from reput_protocol.put_block import DEFAULT_LIMITS, BlockCheck, BlockLimits, check_records
from reput_protocol.put_block_columns import SIZES_THRESHOLD, check_columns
from reput_protocol.put_block_sizes import positions_of_sound
from reput_protocol.record import Record, encode_blank, encode_put_record, encode_record
from reput_protocol.record_run import read_run
from reput_protocol.record_table import read_table

TOPICS = ["orders", "%RETRY%" + "g" * 140, "größe"]
ODD_TEXTS = [
    b"",
    b"TAGS\x01x\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01a\x02TAGS\x01b\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01gr\xc3\xbcn\x02",
    b"UNIQ_KEY\x01U\x02KEYS\x01a  b \x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01\xff\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01x",
    b"UNIQ_KEY\x01U\x02TAGS\x01x\x02\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01x\x01y\x02",
    b"UNIQ_KEY\x01U\x02\x01x\x02",
    b"UNIQ_KEY\x01U\x02DELAY\x013\x02",
    b"DELAY\x013\x02TAGS\x01x\x02",
    b"ELAY\x013\x02TAGS\x01x\x02",
    b"UNIQ_KEY\x01U\x02REAL_TOPIC\x01t\x02",
    b"UNIQ_KEY\x01U\x02a\x01\x00\x02",
    b"UNIQ_KEY\x01U\x02__CRC32#\x010123456789\x02",
    b"a" * 3000 + b"\x01long\x02",
    b"noise",
]
WAYS_TO_DIFFER = ["tags", "keys", "bodies", "all", "none"]


def part_sizes(random: Random, differ: str, number: int) -> tuple[bytes, bytes]:
    """The body and the properties of an ordinary message."""
    body = random.randbytes(random.randint(3, 40) if differ in ("bodies", "all") else 12)
    tag = f"t{random.randrange(16 if differ in ('tags', 'all') else 10)}"
    text = f"UNIQ_KEY\x01{random.getrandbits(128):032X}\x02TAGS\x01{tag}\x02"
    if differ in ("keys", "all"):
        text += f"KEYS\x01o-{number * 7}{' other' if random.random() < 0.1 else ''}\x02"
    return body, text.encode()


def parts_of(
    random: Random, differ: str, count: int, odd: tuple[int, bytes] | None
) -> list[tuple[bytes, bytes]]:
    parts = [part_sizes(random, differ, number) for number in range(count)]
    if odd is not None:
        parts[odd[0] % count] = (b"odd body", odd[1])
    return parts


def damaged(data: bytes, starts: list[int], damage: list[tuple[int, int, int]]) -> bytes:
    """Change bytes: each of a record, a place counted from its start or, if negative, its end, and what is added."""
    changed = bytearray(data)
    for record, place, change in damage:
        at = (starts[record % (len(starts) - 1) + (place < 0)] + place) % len(changed)
        changed[at] = (changed[at] + change) & 0xFF
    return bytes(changed)


differs = st.sampled_from(WAYS_TO_DIFFER)
odds = st.none() | st.tuples(st.sampled_from([0, 1, 17, -1]), st.sampled_from(ODD_TEXTS))
damages = st.lists(
    st.tuples(st.sampled_from([0, 1, 20, -1]), st.integers(-70, 100), st.sampled_from([1, -1, 16, 128])),
    max_size=2,
)


def bounds_of(encoded: list[bytes]) -> list[int]:
    return np.cumsum([0, *map(len, encoded)]).tolist()


# -- the door --------------------------------------------------------------------------------------------------------


def outcome(check: Any, block: bytes, topic: str, count: int, limits: BlockLimits) -> Any:
    try:
        return check(block, topic, 2, count, limits)
    except RecordMalformed as refused:
        return type(refused), refused.index, refused.position, refused.reason


@given(
    st.integers(0, 1 << 32),
    differs,
    st.integers(SIZES_THRESHOLD - 4, 70),
    odds,
    damages,
    st.sampled_from(TOPICS),
    st.sampled_from([0, 0, 0, -1, 1]),
    st.sampled_from([DEFAULT_LIMITS, DEFAULT_LIMITS, BlockLimits(39, 70, 100_000)]),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_both_doors_judge_records_of_different_sizes_alike(
    seed: int,
    differ: str,
    count: int,
    odd: tuple[int, bytes] | None,
    damage: list[tuple[int, int, int]],
    topic: str,
    miscount: int,
    limits: BlockLimits,
    kind: Any,
) -> None:
    random = Random(seed)
    encoded = [
        encode_put_record(
            topic.encode(), 2, body, text, random.randint(-9, 9), random.choice([0, 0, 0x301]), seed
        )
        for body, text in parts_of(random, differ, count, odd)
    ]
    block = kind(damaged(b"".join(encoded), bounds_of(encoded), damage))
    verdict = outcome(check_records, block, topic, count + miscount, limits)
    assert outcome(check_columns, block, topic, count + miscount, limits) == verdict
    positions = positions_of_sound(block, topic, 2, count + miscount, limits)
    assert positions is None or verdict == BlockCheck(positions, [])


@pytest.mark.parametrize("differ", WAYS_TO_DIFFER)
@pytest.mark.parametrize("topic", TOPICS)
def test_ordinary_blocks_are_not_judged_record_by_record(differ: str, topic: str) -> None:
    encoded = [
        encode_put_record(topic.encode(), 2, body, text, 0, number % 2, 5)
        for number, (body, text) in enumerate(parts_of(Random(1), differ, 64, None))
    ]
    positions = positions_of_sound(b"".join(encoded), topic, 2, 64, DEFAULT_LIMITS)
    assert positions == bounds_of(encoded)[:-1]


@pytest.mark.parametrize("index", [0, 1, 30, 63])
@pytest.mark.parametrize("text", ODD_TEXTS)
def test_whatever_is_odd_is_named_by_the_record_it_is_in(index: int, text: bytes) -> None:
    parts = parts_of(Random(2), "all", 64, (index, text))
    encoded = [encode_put_record(b"orders", 2, *part, 0, 0, 5) for part in parts]
    block = b"".join(encoded)
    verdict = outcome(check_columns, block, "orders", 64, DEFAULT_LIMITS)
    assert verdict == outcome(check_records, block, "orders", 64, DEFAULT_LIMITS)
    assert isinstance(verdict, BlockCheck) or verdict[1:3] == (index, bounds_of(encoded)[index])


@pytest.mark.parametrize("index", [0, 1, 25, 49])
def test_every_byte_of_a_record_counts_in_both_doors(index: int) -> None:
    parts = parts_of(Random(4), "all", 50, None)
    encoded = [encode_put_record(b"orders", 2, *part, 0, 0, 5) for part in parts]
    start, stop = bounds_of(encoded)[index : index + 2]
    for at in range(start, stop):
        for change in (1, 128):
            block = bytearray(b"".join(encoded))
            block[at] = (block[at] + change) & 0xFF
            verdict = outcome(check_records, block, "orders", 50, DEFAULT_LIMITS)
            assert outcome(check_columns, block, "orders", 50, DEFAULT_LIMITS) == verdict, at - start
            positions = positions_of_sound(block, "orders", 2, 50, DEFAULT_LIMITS)
            assert positions is None or isinstance(verdict, BlockCheck), at - start


def test_limits_hold_for_every_record() -> None:
    parts = [(b"b" * (number % 3), b"a\x01%d\x02" % 10 ** (number % 4)) for number in range(30)]
    block = b"".join(encode_put_record(b"t", 0, *part, 0, 0, 5) for part in parts)
    assert positions_of_sound(block, "t", 0, 30, BlockLimits(2, 7, len(block))) is not None
    assert positions_of_sound(block, "t", 0, 30, BlockLimits(1, 7, len(block))) is None
    assert positions_of_sound(block, "t", 0, 30, BlockLimits(2, 6, len(block))) is None


# -- following the log -----------------------------------------------------------------------------------------------


def assert_same(one: DispatchRows, other: DispatchRows) -> None:
    for name in (*COLUMNS, "runs", "consumed", "stopped_by"):
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, np.ndarray):
            assert left.tolist() == right.tolist(), name
        else:
            assert left == right, name


def log_of(random: Random, differ: str, count: int, topic: str, odd: tuple[int, bytes] | None) -> list[bytes]:
    encoded: list[bytes] = []
    end = 0
    for number, (body, text) in enumerate(parts_of(random, differ, count, odd)):
        record = Record(
            topic,
            body,
            queue_id=number // 10 % 3,
            queue_offset=number,
            physical_offset=end,
            properties=text,
            sys_flag=random.choice([0] * 30 + [4, 8, 12, 1]),
            store_timestamp_ms=1_700_000_000_000 + number,
        )
        encoded.append(bytes(encode_record(record)))
        end += len(encoded[-1])
    return encoded


@given(
    st.integers(0, 1 << 32),
    differs,
    st.integers(COLUMNS_THRESHOLD, 80),
    odds,
    damages,
    st.sampled_from([*TOPICS, "SCHEDULE_TOPIC_XXXX"]),
    st.sampled_from([b"", b"", encode_blank(77), bytes(100), b"\0\0", b"\0\0\1\0\xda\xa3\x20\xa7"]),
    st.sampled_from([0, None]),
)
def test_both_ways_of_following_a_log_of_different_sizes_agree(
    seed: int,
    differ: str,
    count: int,
    odd: tuple[int, bytes] | None,
    damage: list[tuple[int, int, int]],
    topic: str,
    rest: bytes,
    base: int | None,
) -> None:
    encoded = log_of(Random(seed), differ, count, topic, odd)
    data = damaged(b"".join(encoded), bounds_of(encoded), damage) + rest
    rows = scan_dispatch(data, base_physical_offset=base, columns=True)
    twin = scan_dispatch(data, base_physical_offset=base, columns=False)
    assert_same(twin, rows)
    if len(rows):
        keys, of_twin = hash_keys(data, rows), hash_keys(data, twin)
        assert [np.asarray(column).tolist() for column in keys] == [list(column) for column in of_twin]


@pytest.mark.parametrize("index", [0, 1, 30, COLUMNS_THRESHOLD - 1])
@pytest.mark.parametrize("base", [0, None])
def test_every_byte_of_a_record_counts_in_both_ways_of_following_the_log(
    index: int, base: int | None
) -> None:
    encoded = log_of(Random(5), "all", COLUMNS_THRESHOLD, "orders", None)
    start, stop = bounds_of(encoded)[index : index + 2]
    for at in range(start, stop):
        for change in (1, 128):
            data = bytearray(b"".join(encoded))
            data[at] = (data[at] + change) & 0xFF
            rows = scan_dispatch(data, base_physical_offset=base, columns=True)
            assert_same(scan_dispatch(data, base_physical_offset=base, columns=False), rows)


@pytest.mark.parametrize("differ", WAYS_TO_DIFFER[:-1])
@pytest.mark.parametrize("topic", TOPICS)
def test_an_ordinary_log_is_one_run(differ: str, topic: str) -> None:
    encoded = log_of(Random(3), differ, 64, topic, None)
    data = b"".join(encoded)
    assert read_table(data, 0, 8) is None
    run = read_run(data, 0, 8)
    assert run is not None
    assert run.position.tolist() == bounds_of(encoded)[:-1]
    assert (run.topic, run.end, run.stopped_by) == (topic.encode(), len(data), None)
    assert not len(run.texts(data).alone)
    elsewhere = read_run(data, 1, 8)
    assert elsewhere is None
    other = bytes(encode_record(Record("others", b"", physical_offset=len(data))))
    assert read_run(data + other, 0, 8) is None
