"""Blocks of records: how a producer makes them, what the broker checks and fills in."""

from typing import Any

import pytest

from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.kernel.records import record_starts
from reput_protocol.record.message import Message
from reput_protocol.record.message_id import Host
from reput_protocol.record.put_block import (
    DEFAULT_LIMITS,
    BlockCheck,
    BlockLimits,
    RecordTooLarge,
    check_put_block,
    encode_put_block,
)
from reput_protocol.record.record import Record, decode_record, encode_record
from support.stored_blocks import patch_block

BORN_AT = 1_700_000_000_000
BORN_HOST = Host("10.0.0.1", 40000)
STORE_HOST = Host("10.0.0.2", 10911)
COUNTS = pytest.mark.parametrize("count", [1, 5, 300])


def check(block: Any, topic: str, queue_id: int, count: int, limits: BlockLimits) -> BlockCheck:
    return check_put_block(block, topic=topic, queue_id=queue_id, count=count, limits=limits)


def put_record(topic: str, body: bytes, properties: bytes) -> bytes:
    return bytes(encode_record(Record(topic, body, properties=properties)))


def starts_of(block: Any) -> list[int]:
    return list(record_starts(block, 0, len(block)))


def messages_of(count: int) -> list[Message]:
    return [
        Message("orders", b"x" * (number % 90), "paid" if number % 3 else None, [f"o-{number}"])
        for number in range(count)
    ]


def block_of(count: int) -> bytearray:
    return encode_put_block(messages_of(count), "orders", 3, BORN_AT, map(str, range(count)))


@COUNTS
def test_a_producers_block_passes_and_is_patched_in_place(count: int) -> None:
    block = block_of(count)
    checked = check_put_block(block, topic="orders", queue_id=3, count=count)
    assert checked == BlockCheck(count)
    for base in (1000, 4096):  # patched again when it moves to the next file
        patch_block(
            block,
            checked,
            first_queue_offset=70,
            first_physical_offset=base,
            store_timestamp_ms=BORN_AT + 5,
            born_host=BORN_HOST.packed(),
            store_host=STORE_HOST.packed(),
        )
    for number, (message, position) in enumerate(zip(messages_of(count), starts_of(block), strict=True)):
        record = decode_record(block, position)
        assert (record.topic, record.queue_id, record.body) == ("orders", 3, message.body)
        assert (record.queue_offset, record.physical_offset) == (70 + number, 4096 + position)
        assert (record.born_timestamp_ms, record.store_timestamp_ms) == (BORN_AT, BORN_AT + 5)
        assert (record.born_host, record.store_host) == (BORN_HOST, STORE_HOST)
        assert (record.unique_key, record.tag, record.keys) == (str(number), message.tag, message.keys)
        assert (record.reconsume_times, record.prepared_transaction_offset, record.sys_flag) == (0, 0, 0)


def test_a_block_within_a_buffer_is_patched_alone() -> None:
    one = put_record("t", b"body", b"a\x01b\x02")
    checked = check_put_block(one * 3, topic="t", queue_id=0, count=3)
    run = bytearray(one * 5)
    patch_block(
        run,
        checked,
        first_queue_offset=70,
        first_physical_offset=4096,
        store_timestamp_ms=BORN_AT,
        born_host=BORN_HOST.packed(),
        store_host=STORE_HOST.packed(),
        start=len(one),
        size=3 * len(one),
    )
    assert run[: len(one)] == run[4 * len(one) :] == one
    assert [decode_record(run, n * len(one)).queue_offset for n in range(1, 4)] == [70, 71, 72]
    assert decode_record(run, 3 * len(one)).physical_offset == 4096 + 2 * len(one)


def test_without_unique_ids_none_are_written() -> None:
    block = encode_put_block([Message("t", b"a"), Message("t", b"b", unique_id="B")], "t", 0, BORN_AT)
    assert [decode_record(block, position).unique_key for position in starts_of(block)] == [None, "B"]


def test_one_message_encodes_the_same_alone_and_in_a_block() -> None:
    alone = encode_record(Record("t", b"a", queue_id=3, flag=9, born_timestamp_ms=BORN_AT))
    assert encode_put_block([Message("t", b"a", flag=9)], "t", 3, BORN_AT) == alone


@pytest.mark.parametrize(
    ("position", "data", "reason"),
    [
        (0, b"\x7f", "TOTALSIZE is 21"),
        (0, b"\0\0\0\0", "TOTALSIZE is 0"),
        (4, b"\xda\xa3\x20\xab", "MAGIC is 0xdaa320ab, but a topic of 6 characters takes version 1"),
        (8, b"\xff\xff\xff\xff", "BODYCRC is 0xffffffff"),
        (12, b"\0\0\0\x04", "QUEUEID is 4, but the header says 3"),
        (20, b"\0\0\0\0\0\0\0\x04", "QUEUEOFFSET is 4, but it must be 0"),
        (28, b"\0\0\0\0\0\0\0\x04", "PHYSICALOFFSET is 4"),
        (36, b"\0\0\0\x10", "SYSFLAG is 0x10, but a client may set only bits of 0x701"),
        (36, b"\0\0\0\x04", "SYSFLAG is 0x4"),
        (48, b"\x0a", "BORNHOST is 0a00000000000000"),
        (56, b"\0\0\0\0\0\0\0\x04", "STORETIMESTAMP is 4"),
        (71, b"\x01", "STOREHOST is 0000000000000001"),
        (72, b"\0\0\0\x02", "RECONSUMETIMES is 2"),
        (76, b"\0\0\0\0\0\0\0\x04", "PREPARED_TRANSACTION_OFFSET is 4"),
        (84, b"\xff\xff\xff\xff", "BODYLEN is -1"),
        (84, b"\0\0\x7f\xff", "BODYLEN is 32767"),
        (-1, b"\x03", "properties do not end with 0x02"),
        (-2, b"\x01", "the value of property 'a' holds 0x01"),
        (-2, b"\xff", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("index", [0, 7, 99])
def test_the_first_bad_record_refuses_the_block(position: int, data: bytes, reason: str, index: int) -> None:
    record = encode_record(Record("orders", b"body", queue_id=3, properties=b"a\x01value\x02"))
    block = bytearray(record * 100)
    start = index * len(record)
    at = start + position % len(record)
    block[at : at + len(data)] = data
    block[-3:-2] = b"\x02"  # the last record is bad, too
    with pytest.raises(RecordMalformed) as refused:
        check(block, "orders", 3, 100, DEFAULT_LIMITS)
    if index < 99 or "propert" not in reason:
        assert reason in refused.value.reason
    assert (refused.value.index, refused.value.position) == (index, start)


@pytest.mark.parametrize(
    ("name", "fault"), [("DELAY", "reserved"), ("INNER_NUM", "reserved"), ("REAL_TOPIC", "reserved"), ("PROP", None)]
)
def test_reserved_properties(name: str, fault: str | None) -> None:
    good = put_record("t", b"", b"")
    properties = f"größe\x01m\x02{name}\x011\x02".encode()
    block = good + put_record("t", b"", properties)
    if fault is None:
        assert check(block, "t", 0, 2, DEFAULT_LIMITS).count == 2
    else:
        with pytest.raises(RecordMalformed, match=fault) as refused:
            check(block, "t", 0, 2, DEFAULT_LIMITS)
        assert refused.value.index == 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"name\x01value\x02more\x01text\x02", None),
        (b"name\x01other\x02more\x01TEXT\x02", None),  # other values
        (b"game\x01value\x02more\x01text\x02", None),  # another name of the same length
        (b"nam\x01values\x02more\x01text\x02", None),  # separators in other places
        (b"name\x01value that is x\x02", None),
        (b"name\x01val\xc3\xbc\x02more\x01text\x02", None),  # not ASCII
        (b"DELAY\x01alue\x02more\x01text\x02", "'DELAY' is reserved"),
        (b"REAL_\x01alue\x02more\x01text\x02", "'REAL_' is reserved"),
        (b"name\x01va\x01ue\x02more\x01text\x02", "the value of property 'name' holds 0x01"),
        (b"name\x01value\x02more\x01texts", "do not end with 0x02"),
        (b"name\x01val\xffe\x02more\x01text\x02", "not UTF-8"),
        (b"name\x01value\x02\x01oretext\x02\x02"[:21], "has an empty name"),
    ],
)
@pytest.mark.parametrize("index", [0, 29])
def test_properties_of_one_size(text: bytes, fault: str | None, index: int) -> None:
    """Records of one size are judged each by its own text."""
    texts = [b"name\x01value\x02more\x01text\x02"] * 30
    assert len(text) == len(texts[0])
    texts[index] = text
    block = b"".join(put_record("t", b"body", each) for each in texts)
    if fault is None:
        assert check(block, "t", 0, 30, DEFAULT_LIMITS).count == 30
    else:
        with pytest.raises(RecordMalformed, match=fault) as refused:
            check(block, "t", 0, 30, DEFAULT_LIMITS)
        assert refused.value.index == index


@pytest.mark.parametrize("topic", ["orders2", "order", "Orders"])
def test_a_record_of_another_topic(topic: str) -> None:
    block = put_record(topic, b"", b"") * 3
    with pytest.raises(RecordMalformed, match=r"topic in the header|bytes are left|leaves room|must be"):
        check(block, "orders", 0, 3, DEFAULT_LIMITS)


def test_a_long_retry_topic_takes_version_2() -> None:
    topic = "%RETRY%" + "g" * 140
    block = encode_record(Record(topic, b"x", sys_flag=0x301, properties=b"a\x01b\x02")) * 3
    assert check(block, topic, 0, 3, DEFAULT_LIMITS).count == 3
    with pytest.raises(RecordMalformed, match=r"takes version 1|bytes are left"):
        check(block, "orders", 0, 3, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("count", "index", "rest"),
    [(99, 99, "bytes follow"), (101, 100, "nothing follows"), (0, 0, "bytes follow"), (-1, 0, "bytes follow")],
)
def test_the_count_must_be_right(count: int, index: int, rest: str) -> None:
    with pytest.raises(
        RecordMalformed, match=f"the header says {count} records, but after {index} .*{rest}"
    ) as refused:
        check(block_of(100), "orders", 3, count, DEFAULT_LIMITS)
    assert refused.value.index == index


def test_records_that_were_not_announced_are_not_looked_at() -> None:
    """A header that says 1 must not cause eight megabytes of checking."""
    with pytest.raises(RecordMalformed, match="the header says 1 records, but after 1 5 bytes follow"):
        check(block_of(1) + b"noise", "orders", 3, 1, DEFAULT_LIMITS)


def test_a_block_has_at_least_one_record() -> None:
    with pytest.raises(RecordMalformed, match="empty"):
        check(b"", "orders", 3, 0, DEFAULT_LIMITS)


def test_remaining_bytes_refuse_the_block() -> None:
    with pytest.raises(RecordMalformed, match="5 bytes are left") as refused:
        check(block_of(100) + b"12345", "orders", 3, 101, DEFAULT_LIMITS)
    assert refused.value.index == 100


def test_limits() -> None:
    block = put_record("t", b"12345", b"ab\x01cd\x02") * 2
    assert check(block, "t", 0, 2, BlockLimits(5, 6, len(block))).count == 2
    for limits, reason in (
        (BlockLimits(4, 6, len(block)), "body has 5 bytes, but at most 4"),
        (BlockLimits(5, 5, len(block)), "properties have 6 bytes, but at most 5"),
        (BlockLimits(5, 6, len(block) - 1), f"block has {len(block)} bytes, but at most {len(block) - 1}"),
    ):
        with pytest.raises(RecordTooLarge, match=reason):
            check(block, "t", 0, 2, limits)


@pytest.mark.parametrize("count", [3, 100])
def test_a_checksum_property_is_renewed(count: int) -> None:
    """A producer may leave room for the whole-record checksum; the broker fills it in."""
    unsealed = put_record("t", b"body", b"")
    sealed = encode_record(decode_record(unsealed), with_crc=True)
    block = bytearray(unsealed + sealed + sealed * (count - 2))
    checked = check_put_block(block, topic="t", queue_id=0, count=count)
    assert checked.sealed == count - 1
    patch_block(
        block,
        checked,
        first_queue_offset=1,
        first_physical_offset=2,
        store_timestamp_ms=3,
        born_host=BORN_HOST.packed(),
        store_host=STORE_HOST.packed(),
    )
    for position in starts_of(block):
        assert decode_record(block, position).store_timestamp_ms == 3  # verifies the checksum as well


def test_a_topic_that_no_record_can_hold() -> None:
    with pytest.raises(InvalidMessage):
        check_put_block(block_of(1), topic="", queue_id=3, count=1)


def test_views_are_checked_and_patched_too_and_none_is_kept() -> None:
    for count in (2, 200):
        block = block_of(count)
        checked = check_put_block(memoryview(block), topic="orders", queue_id=3, count=count)
        patch_block(
            memoryview(block),
            checked,
            first_queue_offset=0,
            first_physical_offset=0,
            store_timestamp_ms=0,
            born_host=bytes(8),
            store_host=bytes(8),
        )
        block += b"a bytearray with a view left on it could not grow"
