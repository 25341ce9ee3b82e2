"""Unique ids and offset ids: how they are made, and which texts are valid."""

from datetime import datetime

import pytest

from reput_protocol.errors import InvalidMessage
from reput_protocol.record.message_id import Host, UniqueIdGenerator, decode_offset_message_id, offset_message_id
from support.stores import FakeClock

IP = bytes([172, 17, 0, 1])


def at(*moment: int) -> FakeClock:
    return FakeClock(int(datetime(*moment).timestamp() * 1000))  # type: ignore[arg-type]


def test_a_unique_id_is_made_of_address_process_class_time_and_count() -> None:
    clock = at(2024, 2, 1, 0, 0, 1)
    ids = UniqueIdGenerator(IP, 0x1_0001, 0x18B4AAC2, clock)
    assert ids.next() == "AC110001000118B4AAC2000003E80000"
    assert ids.next() == "AC110001000118B4AAC2000003E80001"
    clock.now_ms += 1
    assert ids.next() == "AC110001000118B4AAC2000003E90002"


def test_a_run_of_ids_is_those_that_would_have_come_one_by_one() -> None:
    one_by_one, together = (UniqueIdGenerator(IP, 1, 2, at(2024, 1, 1)) for _ in range(2))
    assert list(together.next_run(0)) == []
    ids = [each for count in (3000, 1, 65_534 - 3001, 4) for each in together.next_run(count)]
    assert ids == [one_by_one.next() for _ in range(65_538)]
    run = together.next_run(3)
    assert [len(run), run[-1], run[1:]] == [3, run[2], [run[1], run[2]]]
    assert {len(each) for each in run} == {together.id_size}


def test_ipv6_makes_longer_ids() -> None:
    assert len(UniqueIdGenerator(bytes(16), 1, -1, at(2024, 1, 1)).next()) == 56


def test_the_count_wraps_without_repeating_within_a_millisecond() -> None:
    ids = UniqueIdGenerator(IP, 1, 2, at(2024, 1, 1))
    made = [ids.next() for _ in range(65_536)]
    assert len(set(made)) == len(made)
    assert ids.next() == made[0]


def test_time_starts_again_with_the_month() -> None:
    clock = at(2024, 12, 31, 23, 59, 59)
    ids = UniqueIdGenerator(IP, 1, 2, clock)
    assert int(ids.next()[20:28], 16) == (31 * 24 * 3600 - 1) * 1000
    clock.now_ms += 1000
    assert int(ids.next()[20:28], 16) == 0


def test_a_clock_set_back_across_the_month_counts_from_its_beginning() -> None:
    clock = at(2024, 3, 1)
    ids = UniqueIdGenerator(IP, 1, 2, clock)
    ids.next()
    clock.now_ms -= 5000
    assert int(ids.next()[20:28], 16) == 0
    clock.now_ms -= 24 * 3600 * 1000  # a large correction starts over in the right month
    assert int(ids.next()[20:28], 16) == (28 * 24 * 3600 - 5) * 1000


@pytest.mark.parametrize("text", ["", "0A", "0A00000200002A9F000000000000100", "x" * 32, "0A 0" * 8, "é" * 32])
def test_invalid_offset_ids(text: str) -> None:
    with pytest.raises(InvalidMessage, match="32 hex digits"):
        decode_offset_message_id(text)


def test_lower_case_ids_are_read_too() -> None:
    host = Host("10.0.0.2", 10911)
    assert decode_offset_message_id(offset_message_id(host, 7).lower()) == (host, 7)
