"""Bytes that RocketMQ itself produced or accepted: hashes, checksums, properties, records, ids, client batches."""

import struct

import pytest

from reput_protocol.kernel.records import patch_block
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.layout import crc31, encode_blank, tags_code
from reput_protocol.record.message_id import Host, decode_offset_message_id, offset_message_id
from reput_protocol.record.put_block import BatchItem, decode_batch, encode_batch
from reput_protocol.record.record import Record, decode_record, encode_record
from reput_protocol.record.scan import ScanStatus, scan_record

BORN_AT = 1_700_000_000_000
TAG_AND_KEYS = bytes.fromhex("544147530154616741024b455953014b31204b3202")
V1 = Record(
    topic="TopicTest",
    body=b"hello",
    queue_id=1,
    queue_offset=5,
    physical_offset=4096,
    born_timestamp_ms=BORN_AT,
    born_host=Host("10.0.0.1", 40000),
    store_timestamp_ms=BORN_AT + 123,
    store_host=Host("10.0.0.2", 10911),
    properties=TAG_AND_KEYS,
)
V1_BYTES = bytes.fromhex(
    "0000007e daa320a7 3610a686 00000001 00000000 0000000000000005 0000000000001000 00000000 0000018bcfe56800"
    "0a000001 00009c40 0000018bcfe5687b 0a000002 00002a9f 00000000 0000000000000000 00000005 68656c6c6f"
    "09 546f70696354657374 0015 544147530154616741024b455953014b31204b3202"
)
V1_CRC_UNIT = bytes.fromhex("5f5f43524333322301 34323938313930383831 02")


@pytest.mark.parametrize(
    ("data", "value"), [(b"", 0), (b"a", 0x68B7BE43), (b"hello", 0x3610A686), (b"Hello RocketMQ", 0x69C865ED)]
)
def test_crc(data: bytes, value: int) -> None:
    assert crc31(data) == value


def test_properties() -> None:
    properties = {"TAGS": "TagA", "KEYS": "K1 K2"}
    assert encode_properties(properties) == TAG_AND_KEYS
    assert decode_properties(TAG_AND_KEYS) == properties


def test_version_1_record() -> None:
    assert encode_record(V1) == V1_BYTES
    assert decode_record(V1_BYTES) == V1
    assert V1.offset_message_id == "0A00000200002A9F0000000000001000"


def test_record_with_checksum_property() -> None:
    encoded = encode_record(V1, with_crc=True)
    assert encoded[:4] == bytes.fromhex("00000092")
    assert encoded[103:105] == bytes.fromhex("0029")
    assert encoded[-20:] == V1_CRC_UNIT
    assert crc31(encoded[:-20]) == 1880918924
    assert scan_record(encoded, 0, 146, check_crc=True, check_properties_crc=True).status is ScanStatus.RECORD
    assert decode_record(encoded).properties == TAG_AND_KEYS + V1_CRC_UNIT
    # Encoding what was decoded replaces the old checksum by the same one.
    assert encode_record(decode_record(encoded), with_crc=True) == encoded
    # And so does patching: the same fields give the same bytes, from any state.
    buffer = bytearray(encoded)
    for queue_offset, store_timestamp_ms in ((77, 1), (5, BORN_AT + 123)):
        hosts = V1.born_host.packed() + V1.store_host.packed()
        patch_block(buffer, 0, len(buffer), queue_offset, 1, 4096, store_timestamp_ms, hosts, True)
        assert scan_record(buffer, 0, 146, check_crc=True, check_properties_crc=True).status is ScanStatus.RECORD
    assert buffer == encoded


def test_queue_unit_and_blank() -> None:
    unit = struct.pack(">qiq", V1.physical_offset, len(V1_BYTES), tags_code(V1.tag))
    assert unit == bytes.fromhex("0000000000001000 0000007e 000000000027a807")
    assert encode_blank(1000) == bytes.fromhex("000003e8 cbd43194")
    assert scan_record(encode_blank(1000), 0, 8, check_crc=True) == (ScanStatus.BLANK, 1000, "")


@pytest.mark.parametrize(
    ("host", "message_id"),
    [
        (Host("10.0.0.2", 10911), "0A00000200002A9F0000000000001000"),
        (Host("::1", 10911), "0000000000000000000000000000000100002A9F0000000000001000"),
    ],
)
def test_offset_message_id(host: Host, message_id: str) -> None:
    assert offset_message_id(host, 4096) == message_id
    assert decode_offset_message_id(message_id) == (host, 4096)


def test_version_2_record() -> None:
    record = Record(
        topic="%RETRY%" + "g" * 121,
        body=b"x",
        born_timestamp_ms=BORN_AT,
        born_host=Host("10.0.0.1", 1),
        store_timestamp_ms=BORN_AT + 123,
        store_host=Host("10.0.0.2", 2),
    )
    encoded = encode_record(record)
    assert record.version == 2
    assert len(encoded) == 221
    assert encoded.startswith(bytes.fromhex("000000dd daa320ab 0cdc1683"))
    assert encoded[88:91] == bytes.fromhex("78 0080")
    assert encoded[-2:] == bytes(2)
    assert decode_record(encoded) == record


def test_ipv6_hosts() -> None:
    record = Record(
        topic="T",
        body=b"x",
        sys_flag=0x30,
        born_timestamp_ms=BORN_AT,
        born_host=Host("::1", 1),
        store_timestamp_ms=BORN_AT + 123,
        store_host=Host("::1", 2),
    )
    encoded = encode_record(record)
    assert len(encoded) == 117
    assert encoded[36:40] == bytes.fromhex("00000030")
    assert encoded[48:68] == bytes.fromhex("00000000000000000000000000000001 00000001")
    assert encoded[76:96] == bytes.fromhex("00000000000000000000000000000001 00000002")
    assert decode_record(encoded) == record


MINIATURE_STORE = {
    0: (
        "T", 0, 0, 0, 0, {"TAGS": "TagA", "KEYS": "k1 k2"},
        "00000073daa320a7375337b9000000000000000000000000000000000000000000000000000000000000018bcfe56800"
        "0a00000100009c400000018bcfe568000a00000200002a9f000000000000000000000000000000026d30015400155441"
        "47530154616741024b455953016b31206b3202",
    ),
    115: (
        "T", 0, 1, 0, 1000, {},
        "0000005edaa320a74054072f000000000000000000000000000000010000000000000073000000000000018bcfe56800"
        "0a00000100009c400000018bcfe56be80a00000200002a9f000000000000000000000000000000026d3101540000",
    ),
    209: (
        "SCHEDULE_TOPIC_XXXX", 2, 0, 0, 1001, {"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": "3", "TAGS": "TagA"},
        "0000009adaa320a7595d56950000000200000000000000000000000000000000000000d1000000000000018bcfe56800"
        "0a00000100009c400000018bcfe56be90a00000200002a9f000000000000000000000000000000026d32135343484544"
        "554c455f544f5049435f58585858002a5245414c5f544f5049430154025245414c5f51494401300244454c4159013302"
        "54414753015461674102",
    ),
    363: (
        "T", 0, 0, 4, 2500, {"UNIQ_KEY": "U3"},
        "0000006adaa320a72e5a660300000000000000000000000000000000000000000000016b000000040000018bcfe56800"
        "0a00000100009c400000018bcfe571c40a00000200002a9f000000000000000000000000000000026d330154000c554e"
        "49515f4b455901553302",
    ),
    512: (
        "T", 0, 0, 0xC, 2501, {"KEYS": "k9"},
        "00000066daa320a7303ef3a00000000000000000000000000000000000000000000002000000000c0000018bcfe56800"
        "0a00000100009c400000018bcfe571c50a00000200002a9f000000000000000000000000000000026d34015400084b45"
        "5953016b3902",
    ),
    614: (
        "T", 0, 2, 8, 4000, {"KEYS": "k1", "TAGS": "TagB"},
        "00000070daa320a74739c336000000000000000000000000000000020000000000000266000000080000018bcfe56800"
        "0a00000100009c400000018bcfe577a00a00000200002a9f000000000000000000000000000000026d35015400124b45"
        "5953016b310254414753015461674202",
    ),
    726: (
        "T", 0, 3, 0, 4001, {"TAGS": "order-created"},
        "00000071daa320a75e30928c0000000000000000000000000000000300000000000002d6000000000000018bcfe56800"
        "0a00000100009c400000018bcfe577a10a00000200002a9f000000000000000000000000000000026d36015400135441"
        "4753016f726465722d6372656174656402",
    ),
}  # fmt: skip


@pytest.mark.parametrize("position", MINIATURE_STORE)
def test_records_of_the_miniature_store(position: int) -> None:
    topic, queue_id, queue_offset, sys_flag, dt, properties, text = MINIATURE_STORE[position]
    number = list(MINIATURE_STORE).index(position)
    record = Record(
        topic=topic,
        body=b"m%d" % number,
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=position,
        sys_flag=sys_flag,
        born_timestamp_ms=BORN_AT,
        store_timestamp_ms=BORN_AT + dt,
        properties=encode_properties(properties),
        born_host=Host("10.0.0.1", 40000),
        store_host=Host("10.0.0.2", 10911),
    )
    assert encode_record(record).hex() == text
    assert decode_record(bytes.fromhex(text)) == record


def test_client_batch() -> None:
    body = bytes.fromhex(
        "000000390000000000000000000000000000000748656c6c6f2d31001c4b455953016b31025741495401747275650254414753015461674102"
        "000000390000000000000000000000000000000748656c6c6f2d32001c4b455953016b32025741495401747275650254414753015461674102"
    )
    items = decode_batch(body)
    assert [item.body for item in items] == [b"Hello-1", b"Hello-2"]
    assert decode_properties(items[1].properties) == {"KEYS": "k2", "WAIT": "true", "TAGS": "TagA"}
    assert encode_batch([BatchItem(item.flag, item.body, item.properties) for item in items]) == body


def test_stored_record_of_a_pull() -> None:
    encoded = bytes.fromhex(
        "00000073daa320a777d189820000000100000000000000000000000500000000000004d2000000000000018bcfe568007f0000010000c350"
        "0000018bcfe568017f00000100002a9f0000000000000000000000000000000548656c6c6f09546f70696354657374000a54414753015461"
        "674102"
    )
    record = Record(
        topic="TopicTest",
        body=b"Hello",
        queue_id=1,
        queue_offset=5,
        physical_offset=1234,
        born_timestamp_ms=BORN_AT,
        born_host=Host("127.0.0.1", 50000),
        store_timestamp_ms=BORN_AT + 1,
        store_host=Host("127.0.0.1", 10911),
        properties=b"TAGS\x01TagA\x02",
    )
    assert crc31(b"Hello") == 2010220930
    assert decode_record(encoded) == record
    assert encode_record(record) == encoded
    assert record.offset_message_id == "7F00000100002A9F00000000000004D2"
    assert record.tag == "TagA"
