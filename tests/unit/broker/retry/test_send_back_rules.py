"""What is stored of a message that was sent back, without a broker."""

from __future__ import annotations

import pytest

from reput_broker.send.retry_records import (
    REASON_BYTES_MAX,
    DeadLetterReason,
    reason_when_resent,
    returned_message,
    truncate_reason,
)
from reput_protocol.properties import encode_properties
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record


def consumed(reconsume_times: int = 0, **properties: str) -> Record:
    return Record(
        "orders",
        b"body",
        queue_id=3,
        physical_offset=4096,
        reconsume_times=reconsume_times,
        store_host=Host("10.0.0.2", 10911),
        prepared_transaction_offset=77,
        properties=encode_properties(properties),
    )


@pytest.mark.parametrize(
    ("reconsume_times", "level", "limit", "expected"),
    [
        (0, 0, 16, 3),
        (4, 0, 16, 7),
        (15, 0, 16, 18),
        (40, 0, 100, 43),  # clipped where it is stored
        (0, 5, 16, 5),
        (16, 0, 16, 0),
        (16, 5, 16, 0),
        (0, -1, 16, 0),
        (0, 0, 0, 0),
        (0, 0, -1, 0),
    ],
)
def test_the_level_follows_from_the_attempts(reconsume_times: int, level: int, limit: int, expected: int) -> None:
    returned = returned_message(
        consumed(reconsume_times), "g", retry_queue_id=1, delay_level=level, max_reconsume_times=limit
    )
    assert returned.delay_level == expected
    assert returned.is_dead_letter == (expected == 0)
    assert returned.record.topic == ("%DLQ%g" if expected == 0 else "%RETRY%g")
    assert returned.record.queue_id == (0 if expected == 0 else 1)
    assert returned.record.reconsume_times == reconsume_times + 1
    assert returned.record.property_map() == returned.properties
    assert returned.properties["DELAY"] == str(expected)
    assert returned.properties["WAIT"] == "false"
    assert returned.record.prepared_transaction_offset == 0


def test_the_origin_is_recorded_once() -> None:
    first = returned_message(consumed(), "g", retry_queue_id=0, delay_level=0, max_reconsume_times=16)
    assert first.properties["RETRY_TOPIC"] == "orders"
    assert first.properties["ORIGIN_MESSAGE_ID"] == consumed().offset_message_id
    again = first.record
    again.physical_offset = 9999
    second = returned_message(again, "g", retry_queue_id=0, delay_level=0, max_reconsume_times=16)
    assert second.properties["RETRY_TOPIC"] == "orders"
    assert second.properties["ORIGIN_MESSAGE_ID"] == consumed().offset_message_id
    assert second.origin_topic == "orders"


@pytest.mark.parametrize(
    ("times", "limit", "ordered", "expected"),
    [
        (16, 16, False, None),
        (17, 16, False, DeadLetterReason.MAX_RECONSUME_TIMES),
        (0, 16, True, DeadLetterReason.ORDERED),
        (17, 16, True, DeadLetterReason.MAX_RECONSUME_TIMES),
    ],
)
def test_a_direct_send_has_one_try_more(
    times: int, limit: int, ordered: bool, expected: DeadLetterReason | None
) -> None:
    assert reason_when_resent(times, limit, consumes_in_order=ordered) is expected


def test_a_reason_becomes_one_short_line() -> None:
    assert truncate_reason("a\nb\x01\x02c  ") == "a b  c"
    long = truncate_reason("ä" * 5000)
    assert len(long.encode()) <= REASON_BYTES_MAX
    assert set(long) == {"ä"}
    assert truncate_reason("half \ud800 a character") == "half   a character"
