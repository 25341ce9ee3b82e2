"""Half messages and the records made of them, without a broker."""

from __future__ import annotations

from reput_broker.transactions.half_messages import (
    check_body,
    committed_record,
    discarded_record,
    half_message_of,
    half_record,
    renewed_record,
)
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, decode_record

SENT = {"UNIQ_KEY": "U1", "PGROUP": "shop", "TRAN_MSG": "true", "TAGS": "paid", "KEYS": "a b"}


def stored(properties: dict[str, str] | None = None) -> Record:
    """A half record as it is in the log."""
    record = half_record(
        Record("orders", b"body", queue_id=3, flag=7, sys_flag=0x301 | 4, born_timestamp_ms=9),
        dict(SENT if properties is None else properties),
    )
    record.queue_offset, record.physical_offset = 5, 4096
    record.store_host = Host("10.0.0.2", 10911)
    return record


def test_a_half_record_says_where_its_message_goes() -> None:
    record = stored()
    half = half_message_of(record)
    assert half is not None
    assert (half.topic, half.queue_id, half.producer_group, half.unique_key) == ("orders", 3, "shop", "U1")
    assert (half.first_offset, half.check_times, half.immunity_ms(6000)) == (5, None, None)
    assert record.sys_flag == 0x301, "the transaction bits are cleared, how the body is compressed stays"


def test_other_records_are_not_half_records() -> None:
    record = stored()
    for wrong in (
        Record("orders", b"", properties=record.properties),
        Record(record.topic, b"", properties=encode_properties(SENT)),
        Record(record.topic, b"", properties=encode_properties({"REAL_TOPIC": "t", "REAL_QID": "x"})),
        Record(record.topic, b"", properties=encode_properties({"REAL_TOPIC": "t", "REAL_QID": "-1"})),
        Record(record.topic, b"", properties=encode_properties({"REAL_TOPIC": "t", "REAL_QID": "9999999999"})),
    ):
        assert half_message_of(wrong) is None


def test_a_time_of_its_own_is_never_shorter_than_the_brokers() -> None:
    for text, expected in (("100", 100_000), ("1", 6000), ("x", 6000), ("-4", 6000)):
        half = half_message_of(stored({**SENT, "CHECK_IMMUNITY_TIME_IN_SECONDS": text}))
        assert half is not None
        assert half.immunity_ms(6000) == expected


def test_a_copy_counts_the_question_and_names_the_first() -> None:
    half = half_message_of(stored())
    assert half is not None
    copy = renewed_record(half, 1)
    copy.queue_offset = 9
    again = half_message_of(copy)
    assert again is not None
    assert (again.first_offset, again.check_times, again.topic) == (5, 1, "orders")
    assert (copy.flag, copy.body, copy.born_timestamp_ms) == (7, b"body", 9)
    third = renewed_record(again, None)
    assert third.property_map()["TRAN_PREPARED_QUEUE_OFFSET"] == "5"
    assert third.property_map()["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_first_offset_behind_the_record_itself_is_not_believed() -> None:
    record = stored()
    record.properties += b"TRAN_PREPARED_QUEUE_OFFSET\x01999\x02"
    half = half_message_of(record)
    assert half is not None
    assert half.first_offset == 5


def test_the_committed_message_is_the_one_that_was_sent() -> None:
    half = half_message_of(stored())
    assert half is not None
    record, properties = committed_record(half)
    assert decode_properties(record.properties) == properties
    assert properties == {
        "UNIQ_KEY": "U1", "PGROUP": "shop", "TAGS": "paid", "KEYS": "a b", "__transactionId__": "U1",
    }  # fmt: skip
    assert (record.topic, record.queue_id, record.flag, record.body) == ("orders", 3, 7, b"body")
    assert (record.sys_flag, record.prepared_transaction_offset) == (0x301 | 8, 4096)


def test_one_put_aside_keeps_everything() -> None:
    half = half_message_of(stored())
    assert half is not None
    record = discarded_record(half)
    assert (record.topic, record.queue_id, record.prepared_transaction_offset) == (
        "TRANS_CHECK_MAX_TIME_TOPIC", 0, 4096,
    )  # fmt: skip
    assert record.property_map() == half.properties


def test_a_question_shows_the_message_in_its_own_topic() -> None:
    half = half_message_of(stored())
    assert half is not None
    record = decode_record(check_body(half))
    assert (record.topic, record.queue_id, record.queue_offset, record.physical_offset) == (
        "orders", 3, 5, 4096,
    )  # fmt: skip
    assert record.property_map() == half.properties
    assert record.store_host == Host("10.0.0.2", 10911)
