"""Filters on dead letters without an origin topic."""

from __future__ import annotations

import pytest

from reput_cli.dlq.letters import chosen_by, without_origin
from reput_client import ReceivedMessage
from reput_client.admin_dead_letters import DeadLetter
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record, encode_record


def letter(**properties: str) -> DeadLetter:
    record = encode_record(Record("%DLQ%billing", b"x", properties=encode_properties(properties)))
    return DeadLetter(ReceivedMessage.of_record(bytes(record)))


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [(None, [False, False, True, True]), ("n = '1' OR n = '2'", [False, False, True, False])],
)
def test_they_are_those_without_a_topic(expression: str | None, chosen: list[bool]) -> None:
    letters = [
        letter(n="1", RETRY_TOPIC="orders"),
        letter(n="1", DLQ_ORIGIN_TOPIC="orders"),
        letter(n="2"),
        letter(n="3"),
    ]
    assert [one.origin.topic is None for one in letters] == [False, False, True, True]
    assert [*map(chosen_by(without_origin(expression)), letters)] == chosen
