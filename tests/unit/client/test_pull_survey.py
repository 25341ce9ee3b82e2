"""Pulls with damage: it is named and skipped, and hides no valid message."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reput_client.consume.pull import Pulled, PulledMessages, read_pull, read_records
from reput_client.errors import DamagedMessage, UnsupportedCompression
from reput_client.received import DamagedRecord, ReceivedMessage
from reput_protocol.errors import RecordMalformed
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record, encode_record

FIRST = 100
LONG_TOPIC = "%RETRY%" + "g" * 150
LONG: dict[str, object] = {"topic": LONG_TOPIC, "version": 2}


def body(number: int) -> bytes:
    return b"message %d " % number + bytes(number % 7)


def record(number: int, **changes: object) -> bytes:
    made = Record(
        "orders",
        body(number),
        queue_id=3,
        queue_offset=number,
        physical_offset=5000 + 200 * number,
        properties=b"UNIQ_KEY\x01id%d\x02TAGS\x01paid\x02" % number,
    )
    return bytes(encode_record(replace(made, **changes)))  # type: ignore[arg-type]


def pull(
    *records: bytes, offset: int = FIRST, next_offset: int | None = None, tags: str = "*", topic: str = "orders"
) -> PulledMessages:
    tag_filter = TagFilter.parse(tags)
    end = offset + len(records) if next_offset is None else next_offset
    pulled = Pulled(topic, 3, offset, end, filtered=not tag_filter.matches_all)
    return PulledMessages(topic, b"".join(records), tag_filter, "broker-a", pulled)


def outcome(message: ReceivedMessage) -> bytes | None:
    """The body; None if the message is damaged, also where the checksum does not see it: in the kind of compression."""
    try:
        return message.body
    except (DamagedMessage, UnsupportedCompression) as error:
        named = error
    assert (named.topic, named.queue_id, named.queue_offset) == ("orders", 3, message.queue_offset)
    return None


def outcomes(messages: PulledMessages) -> dict[int, bytes | None]:
    found = {message.queue_offset: outcome(message) for message in messages}
    assert len(found) == len(messages)
    assert list(found) == sorted(found)
    assert [messages[index].queue_offset for index in range(len(messages))] == list(found)
    return found


def expected(*damaged: int, count: int = 5) -> dict[int, bytes | None]:
    return {number: None if number in damaged else body(number) for number in range(FIRST, FIRST + count)}


def five(**changed: bytes) -> list[bytes]:
    """Records 100 to 104, some of them (`r102=...`) replaced."""
    return [changed.get(f"r{number}", record(number)) for number in range(FIRST, FIRST + 5)]


@pytest.mark.parametrize("hosts", [{}, {"born_host": Host("::1", 5)}])
def test_a_sound_pull_needs_no_survey(hosts: dict[str, Host]) -> None:
    records = b"".join(record(number, **hosts) for number in range(FIRST, FIRST + 5))
    assert read_pull(records, Pulled("orders", 3, FIRST, FIRST + 5)) == read_records(records)
    long = b"".join(record(number, **LONG) for number in range(FIRST, FIRST + 5))
    assert read_pull(long, Pulled(LONG_TOPIC, 3, FIRST, FIRST + 5)) == read_records(long)
    assert not read_pull(b"", Pulled("orders", 3, FIRST, FIRST))


@pytest.mark.parametrize(
    "change",
    [
        {"queue_offset": 7},
        {"queue_offset": 104},
        {"queue_offset": 1 << 40},
        {"queue_offset": -1},
        {"queue_id": 4},
        {"topic": "ordert"},
        {"topic": "order"},
        LONG,
    ],
)
@pytest.mark.parametrize("at", [100, 102, 104])
def test_a_record_of_another_message_is_not_returned(
    change: dict[str, object], at: int, caplog: pytest.LogCaptureFixture
) -> None:
    if change == {"queue_offset": at}:
        return
    with caplog.at_level(logging.WARNING, "reput_client"):
        messages = pull(*five(**{f"r{at}": record(at, **change)}))
    assert outcomes(messages) == expected(at)
    assert f"1 of 5 messages are damaged; the first, at offset {at}" in caplog.text
    damaged = messages[at - FIRST]
    assert isinstance(damaged, DamagedRecord)
    assert damaged.record == record(at, **change)
    assert f"at {at}" in repr(damaged)
    for look in ("raw_body", "tag", "keys", "properties", "message_id", "physical_offset", "store_timestamp_ms"):
        with pytest.raises(DamagedMessage, match="the record in its place is message"):
            getattr(damaged, look)
    with pytest.raises(DamagedMessage):
        damaged.get_property("TAGS")


def test_an_entry_that_points_at_another_record_of_the_queue() -> None:
    """The intact record is returned twice, and delivered at its own offset."""
    for there in (100, 101, 103, 104):
        assert outcomes(pull(*five(r102=record(there)))) == expected(102), there


@pytest.mark.parametrize("at", [100, 102, 104])
@pytest.mark.parametrize("position", [0, 1, 2, 3, 4, 7, 39, 84, 87, -26])
def test_a_record_that_cannot_be_read_hides_no_other(at: int, position: int) -> None:
    changed = bytearray(record(at))
    changed[position] ^= 0x10
    assert outcomes(pull(*five(**{f"r{at}": bytes(changed)}))) == expected(at)


def test_several_records_that_cannot_be_read() -> None:
    noise = {f"r{at}": b"\xa5" * len(record(at)) for at in (101, 102, 104)}
    assert outcomes(pull(*five(**noise))) == expected(101, 102, 104)
    all_noise = {f"r{at}": b"\xa5" * len(record(at)) for at in range(100, 105)}
    assert outcomes(pull(*five(**all_noise))) == expected(100, 101, 102, 103, 104)


def test_a_record_within_a_body_is_not_taken_for_the_next() -> None:
    """A copy of an older record of the queue, in the body of one with a damaged size."""
    inner = bytearray(record(101, body=record(97) + record(300)))
    inner[1] ^= 1
    assert outcomes(pull(*five(r101=bytes(inner)))) == expected(101)


def test_with_a_filter_queue_offsets_leave_gaps() -> None:
    wanted = [100, 103, 107, 120]
    sound = [record(number) for number in wanted]
    assert outcomes(pull(*sound, next_offset=150, tags="paid")) == {n: body(n) for n in wanted}
    for change in ({"queue_offset": 149}, {"queue_offset": 3}, {"queue_id": 4}, {"queue_offset": 1 << 50}):
        records = [*sound[:2], record(107, **change), sound[3]]
        found = outcomes(pull(*records, next_offset=150, tags="paid"))
        assert found == {100: body(100), 103: body(103), 104: None, 120: body(120)}, change
    for twice, lost in (([100, 103, 103, 120], 104), ([100, 103, 107, 107], 108), ([100, 100, 107, 120], 101)):
        found = outcomes(pull(*(record(number) for number in twice), next_offset=150, tags="paid"))
        assert found == {lost: None, **{number: body(number) for number in twice}}, twice
    unreadable = [*sound[:2], b"\xa5" * 300, sound[3]]
    found = outcomes(pull(*unreadable, next_offset=150, tags="paid"))
    assert found == {100: body(100), 103: body(103), 104: None, 120: body(120)}


def test_a_filter_leaves_out_other_tags_and_no_damage() -> None:
    records = [record(100), record(101, properties=b"TAGS\x01other\x02"), record(102, queue_id=9)]
    assert outcomes(pull(*records, tags="paid")) == {100: body(100), 102: None}


def test_messages_that_expired_before_the_first_are_not_damage() -> None:
    records = [record(number) for number in range(100, 105)]
    assert outcomes(pull(*records, offset=90, next_offset=105)) == expected()


def test_bytes_without_a_place_for_a_message_are_refused() -> None:
    with pytest.raises(RecordMalformed):
        pull(b"\xa5" * 300, next_offset=FIRST)


def test_a_broker_that_claims_a_lot_of_messages_is_not_believed() -> None:
    assert len(pull(b"\xa5" * 300, next_offset=1 << 60)) == 3


@example(damaged=[0, 3], changes=[(27, 1)], filtered=True)  # queue offsets 101, 101, 102, 102, 104
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
    st.lists(st.tuples(st.integers(0, 130), st.integers(1, 255)), min_size=1, max_size=4),
    st.booleans(),
)
def test_all_messages_but_the_damaged_ones_are_returned(
    damaged: list[int], changes: list[tuple[int, int]], filtered: bool
) -> None:
    records = []
    for number in range(10):
        data = bytearray(record(FIRST + number))
        if number in damaged:
            for position, mask in changes:
                data[position % len(data)] ^= mask
        records.append(bytes(data))
    found = outcomes(pull(*records, tags="paid || x" if filtered else "*"))
    for number in range(10):
        if number not in damaged:
            assert found[FIRST + number] == body(FIRST + number)
    for offset, text in found.items():
        assert text is None or text == body(offset) or offset - FIRST in damaged
