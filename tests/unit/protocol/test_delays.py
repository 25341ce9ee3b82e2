"""A sender's options for the delivery time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from reput_protocol.errors import InvalidMessage
from reput_protocol.property_rules import properties_fault
from reput_protocol.record.delays import priority_of
from reput_protocol.record.message import Message, encode_properties_text


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "XXX-9")
        time.tzset()
        yield
    time.tzset()


def text_of(**delay: Any) -> bytes:
    return encode_properties_text(Message("orders", b"x", **delay), None)


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        ({"delay_level": 1}, b"DELAY\x011\x02"),
        ({"delay_level": 18}, b"DELAY\x0118\x02"),
        ({"delay_s": 60.0}, b"TIMER_DELAY_MS\x0160000\x02"),
        ({"delay_s": 3}, b"TIMER_DELAY_MS\x013000\x02"),
        ({"delay_s": 0.0001}, b"TIMER_DELAY_MS\x011\x02"),
        ({"delay_s": 16.1}, b"TIMER_DELAY_MS\x0116100\x02"),
        ({"delay_s": 1.001}, b"TIMER_DELAY_MS\x011001\x02"),
        ({"delay_s": 1.0011}, b"TIMER_DELAY_MS\x011002\x02"),
        ({"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, b"TIMER_DELIVER_MS\x011893456000000\x02"),
        ({"deliver_at": datetime(1970, 1, 1, 0, 0, 0, 1, UTC)}, b"TIMER_DELIVER_MS\x011\x02"),
        (
            {"deliver_at": datetime(2030, 1, 1, 5, 30, tzinfo=timezone(timedelta(hours=5, minutes=30)))},
            b"TIMER_DELIVER_MS\x011893456000000\x02",
        ),
    ],
)
def test_each_way_has_its_property(delay: dict[str, Any], text: bytes) -> None:
    assert text_of(**delay) == text
    assert Message("orders", b"x", **delay).is_delayed


@pytest.mark.parametrize(
    ("text", "priority"), [("0", 0), ("3", 3), ("+3", 3), ("003", 3), ("1000000000", 10**9), ("2147483647", 2**31 - 1)]
)
def test_priorities_are_those_that_the_broker_takes(text: str, priority: int) -> None:
    assert priority_of(text) == priority


@pytest.mark.parametrize(
    "text", [None, "", "-1", "2147483648", "9999999999", "10000000000", "1_0", " 1", "1\n", "²", "high"]
)
def test_other_priorities_have_no_effect(text: str | None) -> None:
    assert priority_of(text) is None


def test_without_a_zone_it_is_local_time(far_east: None) -> None:
    assert text_of(deliver_at=datetime(2030, 1, 1, 9)) == b"TIMER_DELIVER_MS\x011893456000000\x02"


def test_no_delay_and_a_delay_of_nothing_are_the_same() -> None:
    assert not Message("orders", b"x").is_delayed
    assert not Message("orders", b"x", delay_s=0.0).is_delayed
    assert not Message("orders", b"x", priority=3).is_delayed
    assert text_of(delay_s=0) == b""


def test_the_delay_comes_last_and_no_block_takes_it() -> None:
    message = Message("orders", b"x", tag="t", properties={"a": "1"}, delay_level=3)
    text = encode_properties_text(message, "ID")
    assert text == b"UNIQ_KEY\x01ID\x02TAGS\x01t\x02a\x011\x02DELAY\x013\x02"
    assert properties_fault(text) == "property 'DELAY' is reserved for the broker"


@pytest.mark.parametrize(
    ("delay", "hint"),
    [
        ({"delay_level": 0}, "from 1 to 18"),
        ({"delay_level": 19}, "from 1 to 18"),
        ({"delay_level": True}, "from 1 to 18"),
        ({"delay_level": "3"}, "from 1 to 18"),
        ({"delay_s": -0.1}, "from 0 on"),
        ({"delay_s": float("nan")}, "from 0 on"),
        ({"delay_s": float("inf")}, "from 0 on"),
        ({"delay_s": "3"}, "int or a float"),
        ({"delay_s": timedelta(seconds=3)}, r"total_seconds\(\)"),
        ({"deliver_at": 1893456000000}, "must be a datetime"),
        ({"deliver_at": datetime(1969, 1, 1, tzinfo=UTC)}, "before 1970"),
        ({"deliver_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))}, "beyond"),
        ({"delay_level": 3, "delay_s": 1.0}, "one delay"),
        ({"delay_s": 1.0, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "one delay"),
        ({"delay_s": 1.0, "priority": 1}, "one delay, or a priority"),
        ({"priority": -1}, "priority -1 must be"),
        ({"priority": 1 << 31}, "from 0 to"),
        ({"priority": True}, "must be an int"),
    ],
)
def test_invalid_delays(delay: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidMessage, match=hint):
        Message("orders", b"x", **delay)
