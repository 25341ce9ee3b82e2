"""Records: their versions, sizes and checksums, and what a scan finds wrong with them."""

from dataclasses import replace

import pytest

from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.kernel.records import patch_block
from reput_protocol.record.layout import crc31, encode_blank, record_bytes, record_version_for, topic_field
from reput_protocol.record.message_id import Host
from reput_protocol.record.put_block import encode_block
from reput_protocol.record.record import Record, decode_record, encode_record
from reput_protocol.record.scan import ScanStatus, scan_record

PROPERTIES = b"UNIQ_KEY\x01U\x02TAGS\x01paid\x02KEYS\x01a b\x02"
RECORD = Record(
    topic="orders",
    body=b"hello",
    queue_id=3,
    flag=-7,
    queue_offset=11,
    physical_offset=1 << 40,
    sys_flag=0x8,
    born_timestamp_ms=1_700_000_000_000,
    born_host=Host("10.0.0.1", 40000),
    store_timestamp_ms=1_700_000_000_123,
    store_host=Host("10.0.0.2", 10911),
    reconsume_times=2,
    prepared_transaction_offset=99,
    properties=PROPERTIES,
)


def test_properties_of_a_record() -> None:
    assert RECORD.tag == "paid"
    assert RECORD.keys == ("a", "b")
    assert RECORD.unique_key == "U"
    assert RECORD.property_map() == {"UNIQ_KEY": "U", "TAGS": "paid", "KEYS": "a b"}
    assert Record("t", b"").tag is None
    assert Record("t", b"").keys == ()


@pytest.mark.parametrize(
    ("topic", "version"), [("a" * 127, 1), ("a" * 128, 2), ("é" * 127, 1), ("😀" * 63, 1), ("😀" * 64, 2)]
)
def test_the_version_follows_the_topic_in_utf16_units(topic: str, version: int) -> None:
    assert record_version_for(topic) == version


def test_a_topic_that_its_version_cannot_hold() -> None:
    with pytest.raises(InvalidMessage, match="254 bytes"):
        encode_record(Record("é" * 127, b""))
    with pytest.raises(InvalidMessage, match="254 bytes"):
        topic_field(("é" * 127).encode())
    with pytest.raises(InvalidMessage, match="0 bytes"):
        topic_field(b"")
    with pytest.raises(InvalidMessage, match="UTF-8"):
        topic_field(b"\xff")


def test_sizes() -> None:
    assert record_bytes(5, "orders", len(PROPERTIES)) == len(encode_record(RECORD))
    long = replace(RECORD, topic="x" * 128, version=2)
    assert record_bytes(5, "x" * 128, len(PROPERTIES)) == len(encode_record(long))


def test_a_put_record_is_a_record_with_zeros_where_the_broker_writes() -> None:
    for topic in ("orders", "%RETRY%" + "g" * 140):
        put, _ = encode_block([b"hello"], [PROPERTIES], topic, 3, 1_700_000_000_000, flags=[-7])
        assert decode_record(put) == Record(
            topic=topic, body=b"hello", queue_id=3, flag=-7, born_timestamp_ms=1_700_000_000_000, properties=PROPERTIES
        )


def test_properties_that_do_not_fit() -> None:
    assert decode_record(encode_record(Record("t", b"", properties=bytes(32_767))))
    with pytest.raises(InvalidMessage, match="32768 bytes"):
        encode_record(Record("t", b"", properties=bytes(32_768)))
    with pytest.raises(InvalidMessage, match="32768 bytes"):
        encode_record(Record("t", b"", properties=bytes(32_747) + b"\x02"), with_crc=True)


def test_the_checksum_property_gets_a_separator_where_one_is_missing() -> None:
    encoded = encode_record(replace(RECORD, properties=b"a\x01b"), with_crc=True)
    assert decode_record(encoded).properties[:4] == b"a\x01b\x02"
    assert decode_record(encoded).property_map()["a"] == "b"


@pytest.mark.parametrize(
    ("position", "data", "status", "size", "reason"),
    [
        (0, b"\0\0\0\0", ScanStatus.INVALID, 0, "TOTALSIZE 0 is too small"),
        (0, b"\xff\xff\xff\xff", ScanStatus.INVALID, 0, "TOTALSIZE -1"),
        (0, b"\0\0\x10\0", ScanStatus.TRUNCATED, 4096, "only 139 bytes are left"),
        (4, b"\0\0\0\0", ScanStatus.INVALID, 0, "magic 0x00000000"),
        (8, b"\0\0\0\0", ScanStatus.INVALID, 139, "BODYCRC is 0x00000000"),
        (12, b"\x80\0\0\0", ScanStatus.INVALID, 139, "QUEUEID -2147483648 is negative"),
        (36, b"\0\0\0\x30", ScanStatus.INVALID, 139, "does not fit"),
        (84, b"\xff\xff\xff\xff", ScanStatus.INVALID, 139, "BODYLEN -1"),
        (84, b"\x7f\xff\xff\xff", ScanStatus.INVALID, 139, "BODYLEN 2147483647"),
        (93, b"\x80", ScanStatus.INVALID, 139, "TOPICLEN -128"),
        (93, b"\x00", ScanStatus.INVALID, 139, "TOPICLEN 0"),
        (93, b"\x7f", ScanStatus.INVALID, 139, "TOPICLEN 127"),
        (100, b"\xff\xff", ScanStatus.INVALID, 139, "PROPLEN is -1"),
        (100, b"\x00\x01", ScanStatus.INVALID, 139, "PROPLEN is 1"),
    ],
)
def test_scan_names_what_is_wrong(position: int, data: bytes, status: ScanStatus, size: int, reason: str) -> None:
    buffer = bytearray(encode_record(RECORD))
    buffer += bytes(139 - len(buffer))
    buffer[0:4] = (139).to_bytes(4, "big")
    buffer[100:102] = (139 - 102).to_bytes(2, "big")
    assert scan_record(buffer, 0, 139, check_crc=True) == (ScanStatus.RECORD, 139, "")
    buffer[position : position + len(data)] = data
    scan = scan_record(buffer, 0, 139, check_crc=True)
    assert (scan.status, scan.size) == (status, size)
    assert reason in scan.reason
    with pytest.raises(RecordMalformed, match=r"^record 0 at byte 0: "):
        decode_record(buffer)


def test_the_end_of_a_log_is_a_value() -> None:
    encoded = encode_record(RECORD)
    assert scan_record(encoded, len(encoded), len(encoded), check_crc=True).status is ScanStatus.TRUNCATED
    assert scan_record(encoded, 0, 7, check_crc=True).status is ScanStatus.TRUNCATED
    assert scan_record(encoded, 0, 20, check_crc=True)[:2] == (ScanStatus.TRUNCATED, len(encoded))
    assert scan_record(bytes(100), 0, 100, check_crc=True).status is ScanStatus.INVALID
    assert scan_record(encode_blank(4096), 0, 8, check_crc=True)[:2] == (ScanStatus.BLANK, 4096)
    with pytest.raises(RecordMalformed, match="blank record"):
        decode_record(encode_blank(4096))


def test_the_whole_record_checksum_covers_every_byte() -> None:
    encoded = encode_record(RECORD, with_crc=True)
    end = len(encoded)
    for position in range(end):
        buffer = bytearray(encoded)
        buffer[position] ^= 0x10
        scan = scan_record(buffer, 0, end, check_crc=True, check_properties_crc=True)
        assert scan.status is not ScanStatus.RECORD, position
    plain = encode_record(RECORD)
    assert scan_record(plain, 0, len(plain), check_crc=True).status is ScanStatus.RECORD
    assert "no checksum" in scan_record(plain, 0, len(plain), check_crc=True, check_properties_crc=True).reason


@pytest.mark.parametrize("host", [Host("10.1.1.1", 5), Host("::5", 5)])
@pytest.mark.parametrize("with_crc", [False, True])
def test_patching_gives_what_encoding_would(host: Host, with_crc: bool) -> None:
    before = replace(RECORD, born_host=host, store_host=host)
    is_ipv4 = host.ip == "10.1.1.1"
    other = Host("10.9.9.9", 9) if is_ipv4 else host
    after = replace(before, queue_offset=1, physical_offset=2, store_timestamp_ms=3, born_host=other, store_host=other)
    prefix = b"before"
    buffer = bytearray(prefix + encode_record(before, with_crc=with_crc) + b"after")
    hosts = 2 * other.packed() if is_ipv4 else b""
    patch_block(buffer, len(prefix), len(buffer) - len(b"after"), 1, 1, 2, 3, hosts, with_crc)
    assert buffer == prefix + encode_record(after, with_crc=with_crc) + b"after"


def test_crc_of_nothing_is_zero() -> None:
    assert crc31(b"") == 0
    assert decode_record(encode_record(Record("t", b""))).body == b""
