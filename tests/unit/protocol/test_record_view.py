"""Views of records have the values of decoded ones, and report damage."""

import pytest

from reput_protocol.errors import RecordMalformed
from reput_protocol.record.layout import encode_blank
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, RecordView, decode_record, encode_record, record_views

PROPERTIES = b"UNIQ_KEY\x01U\x02TAGS\x01paid\x02KEYS\x01a b\x02"
FIELDS = (
    "topic", "body", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp_ms",
    "born_host", "store_timestamp_ms", "store_host", "reconsume_times", "prepared_transaction_offset", "properties",
    "version", "tag", "keys", "unique_key", "offset_message_id",
)  # fmt: skip
RECORDS = [
    Record(topic, b"body", 1, 2, 3, 4, 8, 5, born, 6, store, 7, 8, properties)
    for topic in ("orders", "TAGS", "%RETRY%" + "g" * 130)
    for born in (Host("10.0.0.1", 1), Host("::1", 2))
    for store in (Host("10.0.0.2", 3), Host("::2", 4))
    for properties in (PROPERTIES, b"", b"a\x01b\x02")
]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_view_says_what_the_decoded_record_says(kind: type) -> None:
    buffer = kind(b"".join(encode_record(record) for record in RECORDS))
    position = 0
    for view in record_views(buffer):
        record = decode_record(buffer, position)
        assert view.position == position
        assert {name: getattr(view, name) for name in FIELDS} == {name: getattr(record, name) for name in FIELDS}
        assert view.property_map() == record.property_map()
        assert view.body_view == record.body
        position += view.size
    assert position == len(buffer)


def test_damage_is_found_by_index_and_position() -> None:
    first, second = encode_record(RECORDS[0]), bytearray(encode_record(RECORDS[1]))
    second[90] ^= 1
    with pytest.raises(RecordMalformed, match="BODYCRC") as damaged:
        record_views(first + second)
    assert (damaged.value.index, damaged.value.position) == (1, len(first))
    assert len(record_views(first + second, check_crc=False)) == 2
    with pytest.raises(RecordMalformed, match="blank"):
        record_views(first + encode_blank(100))
    with pytest.raises(RecordMalformed, match="only"):
        record_views(first, 0, len(first) - 1)


@pytest.mark.parametrize(
    ("data", "reason"), [(b"\0\0", "too few"), (bytes(100), "magic"), (encode_blank(100), "blank")]
)
def test_an_invalid_record_has_no_view(data: bytes, reason: str) -> None:
    with pytest.raises(RecordMalformed, match=reason):
        RecordView(b"before" + data, 6)
