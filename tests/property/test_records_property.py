"""All readers of records agree on any bytes, and damage is a result, never a crash."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.kernel.records import COLUMNS, record_starts, scan_records
from reput_protocol.properties import decode_properties, encode_properties, find_property
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.layout import record_version_for
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.message_id import Host
from reput_protocol.record.put_block import check_put_block, encode_put_block
from reput_protocol.record.record import Record, RecordView, decode_record, encode_record, record_views, redirect_record
from reput_protocol.record.scan import ScanStatus, scan_record

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
ipv4 = st.ip_addresses(v=4).map(str)
ipv6 = st.ip_addresses(v=6).map(str)
hosts = st.builds(Host, ipv4 | ipv6, st.integers(0, 65_535))
topics = st.sampled_from(["t", "orders", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 140, "größe"]) | st.text(
    st.characters(codec="utf-8"), min_size=1, max_size=40
)
# Mostly separators and short names, so that every odd arrangement of them turns up.
rough_text = st.lists(
    st.sampled_from(
        ["\x01", "\x02", "TAGS", "KEYS", "DELAY", "a", "TAGS\x01x\x02", "__CRC32#", "0123456789", "é", "\x00"]
    )
).map(lambda parts: "".join(parts).encode())
property_names = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8)
property_maps = st.dictionaries(property_names | st.sampled_from(["TAGS", "KEYS", "DELAY"]), property_names, max_size=4)
# What ends like the checksum property is one, and then it has to be right; `with_crc` adds those.
properties_texts = (rough_text | property_maps.map(encode_properties)).filter(
    lambda text: text[-20:-11] != b"__CRC32#\x01"
)
bodies = st.binary(max_size=40)

records = st.builds(
    Record,
    topic=topics,
    body=bodies,
    queue_id=st.integers(0, 3),
    flag=i32,
    queue_offset=i64,
    physical_offset=i64,
    sys_flag=st.sampled_from([0, 4, 8, 12, 0x301]),
    born_timestamp_ms=i64,
    born_host=hosts,
    store_timestamp_ms=i64,
    store_host=hosts,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
    properties=properties_texts,
)


def with_host_bits(record: Record) -> Record:
    bits = (0x10 if record.born_host.is_ipv6 else 0) | (0x20 if record.store_host.is_ipv6 else 0)
    return replace(record, sys_flag=record.sys_flag | bits)


@given(records, st.booleans(), st.binary(max_size=9))
def test_records_round_trip(record: Record, with_crc: bool, before: bytes) -> None:
    encoded = encode_record(record, with_crc=with_crc)
    decoded = decode_record(before + encoded, len(before))
    if with_crc:
        decoded.properties = record.properties
    assert decoded == with_host_bits(record)
    assert scan_record(encoded, 0, len(encoded), check_crc=True) == (ScanStatus.RECORD, len(encoded), "")


@given(records, topics, hosts, properties_texts, i64, st.booleans(), st.binary(max_size=9))
def test_a_redirected_record_is_the_record_encoded_with_other_fields(
    record: Record, topic: str, host: Host, text: bytes, prepared: int, with_crc: bool, before: bytes
) -> None:
    assume(not find_property(text, b"__CRC32#"))
    encoded = before + encode_record(record)
    redirected = redirect_record(
        RecordView(encoded, len(before)),
        topic=topic,
        queue_id=7,
        properties=text,
        prepared_transaction_offset=prepared,
        store_host=host.packed(),
        with_crc=with_crc,
    )
    expected = replace(
        record,
        topic=topic,
        queue_id=7,
        queue_offset=0,
        physical_offset=0,
        store_host=host,
        prepared_transaction_offset=prepared,
        properties=text,
        version=record_version_for(topic),
    )
    assert redirected == encode_record(expected, with_crc=with_crc)


@given(st.lists(records, max_size=20), st.integers(0, 7))
def test_columns_read_what_structs_read(items: list[Record], start: int) -> None:
    buffer = bytes(start) + b"".join(map(encode_record, items))
    columns = RecordColumns(buffer, scan_records(buffer, start, len(buffer))[0])
    views = record_views(buffer, start)
    assert columns.position.tolist() == [view.position for view in views]
    for name in (
        "size", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp_ms",
        "store_timestamp_ms", "reconsume_times",
    ):  # fmt: skip
        assert getattr(columns, name).tolist() == [getattr(view, name) for view in views], name
    for row, view in enumerate(views):
        record = decode_record(buffer, view.position)
        assert record == with_host_bits(items[row])
        assert bytes(columns.body(row)) == view.body == record.body
        assert str(columns.topic(row), "utf-8") == view.topic == record.topic
        assert bytes(columns.properties(row)) == view.properties == record.properties
        assert columns.born_host(row) == view.born_host == record.born_host
        assert columns.store_host(row) == view.store_host == record.store_host
        assert (view.tag, view.keys, view.unique_key) == (record.tag, record.keys, record.unique_key)
    assert columns.checksum_faults() == []


@given(st.lists(records, min_size=1, max_size=8), st.data())
def test_damage_is_refused_alike_and_never_crashes(items: list[Record], data: st.DataObject) -> None:
    buffer = bytearray(b"".join(map(encode_record, items)))
    for _ in range(data.draw(st.integers(1, 3))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(buffer)) | st.just(len(buffer)))
    table, stop, *_ = scan_records(buffer, 0, end)
    starts = list(table[:: len(COLUMNS)])
    if stop < end:
        with pytest.raises(RecordMalformed) as refused:
            record_views(buffer, 0, end, check_crc=False)
        assert (refused.value.index, refused.value.position) == (len(starts), stop)
    assert [view.position for view in record_views(buffer, 0, stop, check_crc=False)] == starts
    for view in record_views(buffer, 0, stop, check_crc=False):
        # Every attribute of a sound record can be read, with any values.
        assert [getattr(view, name) for name in ("topic", "body", "tag", "keys", "born_host", "store_host")]
        assert view.offset_message_id


@given(records, st.data())
def test_damage_under_a_checksum_is_found(record: Record, data: st.DataObject) -> None:
    """The body is covered by BODYCRC; with the checksum property, so is every other byte."""
    encoded = bytearray(encode_record(record, with_crc=data.draw(st.booleans(), "with_crc")))
    sealed = find_property(decode_record(bytes(encoded)).properties, b"__CRC32#") is not None
    covers_all = sealed and encoded[-20:-11] == b"__CRC32#\x01" and len(encoded) > len(encode_record(record))
    body_at = 88 + 12 * record.born_host.is_ipv6 + 12 * record.store_host.is_ipv6
    low, high = (0, len(encoded) - 1) if covers_all else (body_at, body_at + len(record.body) - 1)
    assume(low <= high)
    position = data.draw(st.integers(low, high), "position")
    encoded[position] ^= data.draw(st.integers(1, 255), "flip")
    scan = scan_record(encoded, 0, len(encoded), check_crc=True, check_properties_crc=covers_all)
    assert scan.status is not ScanStatus.RECORD


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_an_answer(noise: bytes, magic: bool) -> None:
    if magic:
        noise = noise[:4] + b"\xda\xa3\x20\xa7" + noise[8:]
    scan_record(noise, 0, len(noise), check_crc=True, check_properties_crc=True)
    for read in (decode_record, record_views):
        with suppress(RecordMalformed):
            read(noise)


message_texts = st.text(min_size=1, max_size=12)


@given(
    st.lists(
        st.tuples(bodies, st.none() | message_texts, st.lists(message_texts, max_size=3), property_maps),
        min_size=1,
        max_size=70,
    )
)
def test_any_block_of_a_producer_is_accepted(items: list[tuple[bytes, str | None, list[str], dict[str, str]]]) -> None:
    messages = []
    for body, tag, keys, properties in items:
        try:
            message = Message("orders", body, tag, keys, properties)
            encode_properties_text(message, "ID")
        except InvalidMessage:
            continue
        messages.append(message)
    assume(messages)
    block = encode_put_block(messages, "orders", 1, 7, ["ID"] * len(messages))
    check_put_block(block, topic="orders", queue_id=1, count=len(messages))
    for message, position in zip(messages, record_starts(block, 0, len(block)), strict=True):
        record = decode_record(block, position)
        expected = {"UNIQ_KEY": "ID", **message.properties}
        if message.tag is not None:
            expected["TAGS"] = message.tag
        if message.keys:
            expected["KEYS"] = " ".join(message.keys)
        assert record.property_map() == expected
        assert record.body == message.body


@given(properties_texts | st.binary(max_size=30))
@example(b"TAGS\x01\x02")
@example(b"x\x01TAGS\x01a\x02")
def test_find_property_finds_what_decoding_finds(text: bytes) -> None:
    decoded = decode_properties(text)
    for name in ("TAGS", "KEYS", "DELAY", "a", *list(decoded)):
        if "\ufffd" not in name:
            value = find_property(text, name.encode())
            assert (None if value is None else value.decode("utf-8", "replace")) == decoded.get(name)


@given(property_maps)
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties
