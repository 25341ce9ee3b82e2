"""The kernel reads valid, odd and damaged records as an independent reader does."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import (
    COLUMNS,
    checksum_faults,
    follow_records,
    queue_records,
    read_record,
    record_starts,
    scan_records,
    unit_records,
)
from reput_protocol.kernel.tables import distinct, gather, property_columns, property_places
from reput_protocol.properties import decode_properties
from reput_protocol.record.layout import encode_blank
from reput_protocol.record.message_id import Host
from reput_protocol.record.put_block import DEFAULT_LIMITS, BlockCheck, BlockLimits, check_put_block
from reput_protocol.record.record import Record, encode_record
from reput_protocol.record.scan import SEEN, DispatchRows, scan_dispatch
from support import reference_records as reference

TOPICS = ["orders", "%RETRY%" + "g" * 140, "größe"]
ODD_TEXTS = [
    b"",
    b"TAGS\x01x\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01a\x02TAGS\x01b\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01a\x02TAGS\x01\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01gr\xc3\xbcn\x02",
    b"UNIQ_KEY\x01U\x02KEYS\x01a  b \x02",
    b"KEYS\x01schl\xc3\xbcssel \xd0\xba\x02",
    b"KEYS\x01first\x02KEYS\x01second\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01\xff\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01x",
    b"UNIQ_KEY\x01U\x02TAGS\x01x\x02\x02",
    b"UNIQ_KEY\x01U\x02TAGS\x01x\x01y\x02",
    b"UNIQ_KEY\x01U\x02\x01x\x02",
    b"UNIQ_KEY\x01U\x02DELAY\x013\x02",
    b"DELAY\x013\x02TAGS\x01x\x02",
    b"ELAY\x013\x02TAGS\x01x\x02",
    b"DE\x013\x02D\x014\x02",
    b"UNIQ_KEY\x01U\x02REAL_TOPIC\x01t\x02",
    b"UNIQ_KEY\x01U\x02a\x01\x00\x02",
    b"UNIQ_KEY\x01U\x02__CRC32#\x010123456789\x02",
    b"__CRC32#\x010123456789\x02",
    b"a__CRC32#\x010123456789\x02",
    b"__CRC32#\x01012345678x\x02",
    b"__CRC32#\x010123456789\x02a\x01b\x02",
    b"a" * 3000 + b"\x01long\x02",
    b"noise",
]


def parts_of(random: Random, count: int, odd: tuple[int, bytes] | None) -> list[tuple[bytes, bytes]]:
    """Bodies and properties of ordinary messages, and an odd one among them."""
    parts = []
    for number in range(count):
        text = f"UNIQ_KEY\x01{random.getrandbits(128):032X}\x02TAGS\x01t{random.randrange(16)}\x02"
        if random.random() < 0.5:
            text += f"KEYS\x01o-{number * 7}{' other' if random.random() < 0.1 else ''}\x02"
        parts.append((random.randbytes(random.randint(0, 40)), text.encode()))
    if odd is not None:
        parts[odd[0] % count] = (b"odd body", odd[1])
    return parts


def bounds_of(encoded: Sequence[bytes | bytearray]) -> list[int]:
    return [0, *accumulate(map(len, encoded))]


def damaged(data: bytes, starts: list[int], damage: list[tuple[int, int, int]]) -> bytes:
    """Change bytes: each of a record, a place counted from its start or, if negative, its end, and what is added."""
    changed = bytearray(data)
    for record, place, change in damage:
        at = (starts[record % (len(starts) - 1) + (place < 0)] + place) % len(changed)
        changed[at] = (changed[at] + change) & 0xFF
    return bytes(changed)


odds = st.none() | st.tuples(st.sampled_from([0, 1, 17, -1]), st.sampled_from(ODD_TEXTS))
damages = st.lists(
    st.tuples(st.sampled_from([0, 1, 20, -1]), st.integers(-70, 100), st.sampled_from([1, -1, 16, 128])), max_size=2
)


# -- checking a put block --------------------------------------------------------------------------------------------


def verdict(block: Any, topic: str, count: int, limits: BlockLimits) -> Any:
    try:
        return check_put_block(block, topic=topic, queue_id=2, count=count, limits=limits)
    except RecordMalformed as refused:
        return type(refused), refused.index, refused.position, refused.reason


def expected_verdict(block: Any, topic: str, count: int, limits: BlockLimits) -> Any:
    try:
        return BlockCheck(count, reference.check_block(bytes(block), topic, 2, count, limits))
    except RecordMalformed as refused:
        return type(refused), refused.index, refused.position, refused.reason


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 30),
    odds,
    damages,
    st.sampled_from(TOPICS),
    st.sampled_from([0, 0, 0, -1, 1]),
    st.sampled_from([DEFAULT_LIMITS, DEFAULT_LIMITS, BlockLimits(39, 70, 100_000)]),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_put_blocks_have_the_same_result(
    seed: int,
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
        encode_record(
            Record(topic, body, 2, random.randint(-9, 9), sys_flag=random.choice([0, 0x301]), properties=text)
        )
        for body, text in parts_of(random, count, odd)
    ]
    block = kind(damaged(b"".join(encoded), bounds_of(encoded), damage))
    assert verdict(block, topic, count + miscount, limits) == expected_verdict(block, topic, count + miscount, limits)


@given(st.binary(max_size=300), st.booleans(), st.integers(-1, 3))
def test_any_bytes_have_the_same_result(noise: bytes, magic: bool, count: int) -> None:
    if magic:
        noise = noise[:4] + b"\xda\xa3\x20\xa7" + noise[8:]
    assert verdict(noise, "orders", count, DEFAULT_LIMITS) == expected_verdict(noise, "orders", count, DEFAULT_LIMITS)


def test_every_byte_of_a_put_record_counts() -> None:
    encoded = [encode_record(Record("orders", body, 2, properties=text)) for body, text in parts_of(Random(4), 3, None)]
    block = b"".join(encoded)
    for at in range(len(block)):
        for change in (1, 128):
            changed = bytearray(block)
            changed[at] = (changed[at] + change) & 0xFF
            assert verdict(changed, "orders", 3, DEFAULT_LIMITS) == expected_verdict(
                changed, "orders", 3, DEFAULT_LIMITS
            ), at


# -- following the log -----------------------------------------------------------------------------------------------


def read(rows: DispatchRows) -> list[reference.ReadRecord]:
    """What the rows say, in the words of the reference."""
    numbers = zip(
        *(rows.column(name) for name in ("position", "size", "queue_offset", "physical_offset", "store_timestamp_ms")),
        rows.tags_codes,
        strict=True,
    )
    queues = [(run.topic, run.queue_id, run.transaction) for run in rows.runs for _ in range(run.start, run.stop)]
    of_rows = []
    for row, ((topic, queue_id, transaction), (position, size, queue_offset, physical, stored, code)) in enumerate(
        zip(queues, numbers, strict=True)
    ):
        text = rows.properties(row)
        of_rows.append(
            reference.ReadRecord(
                position, size, topic, queue_id, queue_offset, physical, stored, transaction, text, code, []
            )
        )
    return of_rows


def assert_same(data: bytes, base: int | None) -> None:
    rows, expected = scan_dispatch(data, base_physical_offset=base), reference.read_log(data, base)
    assert read(rows) == [record._replace(keys=[]) for record in expected]
    assert list(rows.keys()) == [
        number
        for record in expected
        for key in record.keys
        for number in (key, record.physical_offset, record.store_timestamp_ms)
    ]
    assert rows.consumed == (expected[-1].position + expected[-1].size if expected else 0)
    assert (rows.stopped_by is None) == (rows.consumed == len(data))


def log_of(random: Random, count: int, topic: str, odd: tuple[int, bytes] | None) -> list[bytes]:
    encoded: list[bytes] = []
    end = 0
    for number, (body, text) in enumerate(parts_of(random, count, odd)):
        record = Record(
            topic if random.random() < 0.9 else "others",
            body,
            queue_id=number // 10 % 3,
            queue_offset=number if random.random() < 0.9 else 0,
            physical_offset=end,
            properties=text,
            sys_flag=random.choice([0] * 30 + [4, 8, 12, 1]),
            store_timestamp_ms=1_700_000_000_000 + number,
            born_host=Host("::1" if random.random() < 0.1 else "10.0.0.1", 1),
            store_host=Host("::1" if random.random() < 0.1 else "10.0.0.1", 1),
        )
        encoded.append(bytes(encode_record(record)))
        end += len(encoded[-1])
    return encoded


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 40),
    odds,
    damages,
    st.sampled_from(TOPICS),
    st.sampled_from([b"", b"", encode_blank(77), bytes(100), b"\0\0", b"\0\0\1\0\xda\xa3\x20\xa7"]),
    st.sampled_from([0, None]),
)
def test_the_log_is_followed_alike(
    seed: int,
    count: int,
    odd: tuple[int, bytes] | None,
    damage: list[tuple[int, int, int]],
    topic: str,
    rest: bytes,
    base: int | None,
) -> None:
    encoded = log_of(Random(seed), count, topic, odd)
    assert_same(damaged(b"".join(encoded), bounds_of(encoded), damage) + rest, base)


def holds(data: bytes, found: reference.ReadRecord) -> bool:
    """Whether the checksums of a record fit: the body's, and that of the whole record where there is one."""
    record, text = data[found.position : found.position + found.size], found.properties
    if crc32(reference.parts_of(record)[1]) & 0x7FFF_FFFF != int.from_bytes(record[8:12], "big", signed=True):
        return False
    ends_with_checksum = len(text) >= 20 and text[-20:-11] == b"__CRC32#\x01" and text[-1:] == b"\x02"
    if not ends_with_checksum or text[-21:-20] not in (b"", b"\x02"):
        return True
    return text[-11:-1] == str(crc32(record[:-20]) & 0x7FFF_FFFF)[::-1].ljust(10, "0").encode()


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 40),
    odds,
    damages,
    st.booleans(),
    st.sampled_from([0, 1, 300, 1 << 20]),
    st.sampled_from([0, 300, 1 << 20]),
    st.sampled_from([0, 1 << 40]),
)
def test_records_of_known_queues_are_followed_alike(
    seed: int,
    count: int,
    odd: tuple[int, bytes] | None,
    damage: list[tuple[int, int, int]],
    check_crc: bool,
    stop: int,
    end: int,
    base: int,
) -> None:
    encoded = log_of(Random(seed), count, "orders", odd)
    sound = bytearray(b"".join(encoded))
    for start in bounds_of(encoded)[:-1]:
        sound[start + 28 : start + 36] = (base + start).to_bytes(8, "big")
    data = damaged(bytes(sound), bounds_of(encoded), damage)
    known = [("orders", 0), ("others", 0), ("orders", 2), ("orders", 1)][: 2 + seed % 3]
    found = {(topic.encode(), queue_id): array("q") for topic, queue_id in known}
    expected = {queue: array("q") for queue in found}
    position, last = 0, -1
    for record in reference.read_log(data[:end], base):
        queue = record.topic.encode(), record.queue_id
        if record.position >= stop or record.transaction in (4, 12) or queue not in expected:
            break
        if check_crc and not holds(data, record):
            break
        expected[queue].extend((record.queue_offset, record.physical_offset, record.size))
        position, last = record.position + record.size, record.position
    assert follow_records(data, 0, stop, end, base, check_crc, found) == (position, last)
    assert found == expected


@pytest.mark.parametrize("base", [0, None])
def test_every_byte_of_a_stored_record_counts(base: int | None) -> None:
    data = b"".join(log_of(Random(5), 3, "orders", None))
    for at in range(len(data)):
        for change in (1, 128):
            changed = bytearray(data)
            changed[at] = (changed[at] + change) & 0xFF
            assert_same(bytes(changed), base)


@given(st.integers(0, 1 << 32), st.integers(1, 40))
def test_runs_are_maximal_and_their_queue_offsets_consecutive(seed: int, count: int) -> None:
    rows = scan_dispatch(b"".join(log_of(Random(seed), count, "orders", None)))
    offsets = rows.column("queue_offset")
    assert [run.start for run in rows.runs] == [0, *(run.stop for run in rows.runs[:-1])]
    for run in rows.runs:
        if run.transaction in SEEN:
            assert list(offsets[run.start : run.stop]) == list(
                range(offsets[run.start], offsets[run.start] + run.stop - run.start)
            )
    for before, after in zip(rows.runs, rows.runs[1:], strict=False):
        assert before[:2] + before[4:] != after[:2] + after[4:] or offsets[after.start] != offsets[after.start - 1] + 1


# -- reading a queue -------------------------------------------------------------------------------------------------

WIDTH = len(COLUMNS)
NUMBER = {name: number for number, name in enumerate(COLUMNS)}


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 30),
    odds,
    damages,
    st.sampled_from([0, 0, -1, 3, 1 << 40]),
    st.booleans(),
    st.sampled_from([0, 0, 1]),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_a_queue_is_read_up_to_what_is_not_of_it(
    seed: int,
    count: int,
    odd: tuple[int, bytes] | None,
    damage: list[tuple[int, int, int]],
    first: int,
    is_gapless: bool,
    queue_id: int,
    kind: Any,
) -> None:
    random = Random(seed)
    encoded = [
        encode_record(
            Record(
                "others" if random.random() < 0.01 else "orders",
                body,
                queue_id=queue_id if random.random() < 0.01 else 0,
                queue_offset=number + (random.random() < 0.03),
                properties=text,
            )
        )
        for number, (body, text) in enumerate(parts_of(random, count, odd), first)
    ]
    data = b"before" + damaged(b"".join(encoded), bounds_of(encoded), damage)
    expected = []
    least = first
    for record in reference.read_log(data[6:], None):
        offset = record.queue_offset
        if (record.topic, record.queue_id) != ("orders", 0) or offset < least or (is_gapless and offset > least):
            break
        expected.append(6 + record.position)
        least = offset + 1
    table, end = queue_records(kind(data), 6, len(data), b"orders", 0, first, is_gapless)
    assert list(table[::WIDTH]) == expected
    assert end == (table[-WIDTH] + table[1 - WIDTH] if table else 6)
    scanned = scan_records(data, 6, len(data))[0]
    assert table == scanned[: len(table)]


@given(st.integers(0, 1 << 32), st.integers(1, 30), odds, damages, st.booleans())
def test_checksums_that_do_not_hold_are_named(
    seed: int, count: int, odd: tuple[int, bytes] | None, damage: list[tuple[int, int, int]], bodies: bool
) -> None:
    encoded = log_of(Random(seed), count, "orders", odd)
    data = damaged(b"".join(encoded), bounds_of(encoded), damage)
    table = scan_records(data, 0, len(data))[0]
    expected = []
    for row, record in enumerate(reference.read_log(data, None)):
        is_sealed = holds_checksum(record.properties)
        if (bodies or is_sealed) and not holds(data, record):
            end = record.position + record.size
            expected.append((row, read_record(data, record.position, end, True, False)[2]))
    assert checksum_faults(data, table, bodies) == expected


def holds_checksum(text: bytes) -> bool:
    unit = text[-20:-11] == b"__CRC32#\x01" and text[-1:] == b"\x02"
    return len(text) >= 20 and unit and text[-21:-20] in (b"", b"\x02")


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 20),
    damages,
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1, 1, 91, 1 << 40, -(1 << 62)])), max_size=2),
    st.sampled_from([0, 1 << 40]),
    st.sampled_from([bytes, memoryview]),
)
def test_units_lead_to_the_very_records_that_they_mean(
    seed: int, count: int, damage: list[tuple[int, int, int]], changes: list[tuple[int, int]], base: int, kind: Any
) -> None:
    random = Random(seed)
    queues = [(b"orders", 0), (b"others", 1)]
    numbers = array("q")
    encoded: list[bytes] = []
    for number in range(count):
        owner = random.randrange(2)
        topic, queue_id = queues[owner]
        place = base + sum(map(len, encoded))
        text = f"TAGS\x01t{number}\x02".encode()
        record = Record(
            topic.decode(), b"x" * number, queue_id, queue_offset=number, physical_offset=place, properties=text
        )
        encoded.append(bytes(encode_record(record)))
        numbers.extend((place, len(encoded[-1]), number, owner))
    for column, change in changes:
        at = 4 * random.randrange(count) + column
        numbers[at] = random.randrange(2) if column == 3 else numbers[at] + change
    data = damaged(b"".join(encoded), bounds_of(encoded), damage)
    expected, wrong = [], []
    for row in range(count):
        place, size, number, owner = numbers[4 * row : 4 * row + 4]
        found = data[place - base : place - base + size] if place >= base else b""
        records = reference.read_log(found, place) if len(found) == size else []
        if [(record.size, record.queue_offset, record.topic.encode(), record.queue_id) for record in records] == [
            (size, number, *queues[owner])
        ]:
            expected.append(place - base)
        else:
            wrong.append(row)
    table, found_wrong = unit_records(kind(data), base, numbers, queues)
    assert (list(table[::WIDTH]), found_wrong) == (expected, wrong)


# -- columns ---------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 20),
    st.lists(st.sampled_from(ODD_TEXTS), max_size=3),
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "DELAY", "", "größe"]),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_columns_of_properties_are_what_decoding_each_gives(
    seed: int, count: int, odd: list[bytes], name: str, kind: Any
) -> None:
    random = Random(seed)
    texts = [text for _, text in parts_of(random, count, None)] + odd
    texts += [b"a\x01\xc3\x02", b"gr\xc3\xb6\xc3\x9fe\x01\xe2\x82\xac\x02\xff\x01a\x02\xfe\x01b\x02"]
    random.shuffle(texts)
    expected = [decode_properties(text) for text in texts]
    data = kind(b"".join(encode_record(Record("orders", b"b", properties=text)) for text in texts))
    table = scan_records(data, 0, len(data))[0]
    values = [properties.get(name, "") for properties in expected]

    places = property_places(data, table, name.encode())
    kept, codes = distinct(data, places, 0, 2)
    assert [kept[code].decode("utf-8", "replace") for code in codes] == values
    assert len(set(kept)) == len(kept)
    column = {"TAGS": "tag", "KEYS": "keys", "UNIQ_KEY": "unique_id"}.get(name)
    if column is not None:
        assert distinct(data, table, NUMBER[f"{column}_position"], WIDTH) == (kept, codes)
    assert gathered(gather(data, places, 0, 2, True)) == values

    firsts, name_ends, joined_names, value_ends, joined_values = property_columns(data, table)
    names = [joined_names[start:end].decode() for start, end in pairwise(name_ends)]
    parts = [joined_values[start:end].decode() for start, end in pairwise(value_ends)]
    assert len(names) == len(parts) == firsts[-1]
    assert (len(joined_names), len(joined_values)) == (name_ends[-1], value_ends[-1])
    found = [list(zip(names[start:end], parts[start:end], strict=True)) for start, end in pairwise(firsts)]
    assert found == [list(properties.items()) for properties in expected]


def test_a_repeated_name_is_found_among_very_many() -> None:
    """Names of a record are found by a table that the next record takes over as it is."""

    def text(name: str, count: int, repeated: int) -> bytes:
        units = [f"{name}{number:x}\x01{number % 8}\x02" for number in range(count)]
        return "".join([*units, *(f"{name}{number:x}\x01again\x02" for number in range(repeated))]).encode()

    texts = [text("", 4000, 1), text("a", 3500, 1), text("b", 3500, 7), text("", 4000, 0), text("a", 3, 3), b""]
    data = b"".join(encode_record(Record("orders", b"b", properties=one)) for one in texts)
    firsts, name_ends, names, value_ends, values = property_columns(data, scan_records(data, 0, len(data))[0])
    pairs = [
        (names[name : name_ends[at + 1]].decode(), values[value : value_ends[at + 1]].decode())
        for at, (name, value) in enumerate(zip(name_ends[:-1], value_ends[:-1], strict=True))
    ]
    assert [pairs[start:end] for start, end in pairwise(firsts)] == [
        list(decode_properties(one).items()) for one in texts
    ]


def test_properties_are_right_after_records_with_nearly_the_same_names() -> None:
    """The names of the record before are expected first; each of these is like them, but for something."""
    usual = b"KEYS\x01k\x02TAGS\x01paid\x02n\x011\x02"
    others = [
        b"",
        b"KEYS\x01k",
        b"KEYS\x01\x02TAGS\x01paid\x02n\x011\x02",
        b"KEYS\x01k\x02TAGS\x01\x02n\x011\x02",
        b"KEYS\x01k\x02KEYS\x01other\x02n\x011\x02",
        b"KEYS\x01k\x02TAGS\x01paid\x02n\x011\x02KEYS\x01other\x02",
        b"KEYS\x01k\x02TAGS\x01paid\x02n\x011\x02more\x012\x02",
        b"KEYS\x01k\x02TAGS\x01paid\x02",
        b"KEYSx\x01k\x02TAGS\x01paid\x02n\x011\x02",
        b"KEYS\x01k\x02TAG\x01paid\x02n\x011\x02",
        b"KEYS\x01k\x01l\x02TAGS\x01paid\x02n\x011",
        b"KEYS\x02TAGS\x01paid\x02n\x01",
        b"KEYS\x01gr\xc3\xb6\xc3\x9fe\x02TAGS\x01\xff\x02n\x011\x02",
        b"TAGS\x01paid\x02KEYS\x01k\x02n\x011\x02",
        b"\x01k\x02TAGS\x01paid\x02n\x011\x02",
    ]
    texts = [text for other in others for text in (usual, usual, other, other, usual)] + others
    data = b"".join(encode_record(Record("orders", b"b", properties=text)) for text in texts)
    firsts, name_ends, names, value_ends, values = property_columns(data, scan_records(data, 0, len(data))[0])
    pairs = list(zip(pieces(names, name_ends), pieces(values, value_ends), strict=True))
    assert [pairs[start:end] for start, end in pairwise(firsts)] == [
        list(decode_properties(text).items()) for text in texts
    ]


def pieces(joined: bytearray, ends: array[int]) -> list[str]:
    return [joined[start:end].decode() for start, end in pairwise(ends)]


def gathered(found: tuple[Any, bytearray, bytearray, int]) -> list[str]:
    """The values as text; bounds, presence bits and their number must agree."""
    bounds, data, present, missing = found
    values = [data[start:end].decode() for start, end in pairwise(bounds)]
    assert [bool(present[row // 8] >> row % 8 & 1) for row in range(len(values))] == list(map(bool, values))
    assert missing == values.count("")
    assert bounds[-1] == len(data)
    return values


@given(st.binary(max_size=30), st.lists(st.binary(max_size=3), max_size=20), st.integers(0, 20))
def test_values_are_copied_or_replaced(data: bytes, others: list[bytes], row: int) -> None:
    places = array("q")
    for number in range(len(others)):
        start = number * 7 % (len(data) + 1)
        places.extend((start, min(number % 4, len(data) - start)))
    expected = [data[start : start + size] for start, size in zip(places[::2], places[1::2], strict=True)]
    replaced = {number: value for number, value in enumerate(others) if number >= row}
    bounds, joined, _, _ = gather(data, places, 0, 2, False, replaced)
    assert [bytes(joined[start:end]) for start, end in pairwise(bounds)] == [
        replaced.get(number, value) for number, value in enumerate(expected)
    ]


@pytest.mark.parametrize("place", [(-1, 1), (0, 11), (11, 0), (5, -1), (1 << 62, 1 << 62), (10, 1)])
def test_places_outside_of_the_buffer_are_refused(place: tuple[int, int]) -> None:
    places = array("q", (0, 10, *place))
    for look in (gather, distinct):
        with pytest.raises(ValueError, match="are not in a buffer of 10 bytes"):
            look(bytes(10), places, 0, 2)
        for first, step in ((0, 1), (-1, 2), (1, 2), (0, 3)):
            with pytest.raises(ValueError, match="4 numbers have no place"):
                look(bytes(10), places, first, step)
    for read in (checksum_faults, property_columns):
        data = encode_record(Record("orders", b"body", properties=b"a\x01b\x02"))
        with pytest.raises(ValueError, match="a buffer of"):
            read(data[:-1], scan_records(data, 0, len(data))[0])
    for column, value in ((12, -1), (12, 1 << 43), (13, 1 << 43), (13, -1), (16, -1), (16, 1 << 43)):
        table = scan_records(data, 0, len(data))[0]
        table[column] = value
        with pytest.raises(ValueError, match="a buffer of"):
            checksum_faults(data, table)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 11), (20, 30)])
def test_a_range_outside_of_the_buffer_is_refused(start: int, end: int) -> None:
    for read in (
        lambda: scan_records(bytes(10), start, end),
        lambda: queue_records(bytes(10), start, end, b"orders", 0, 0, True),
        lambda: read_record(bytes(10), start, end, True, False),
        lambda: record_starts(bytes(10), start, end),
    ):
        with pytest.raises(ValueError, match=f"bytes {start} to {end} are not in a buffer of 10"):
            read()
