"""Filters on dead letters without an origin topic."""

from __future__ import annotations

import pytest

from reput_cli.dlq.letters import chosen_by, without_origin
from reput_client import ReceivedMessage
from reput_client.admin.undelivered import DeadLetter
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record, encode_record


def letter(**properties: str) -> DeadLetter:
    record = encode_record(Record("%DLQ%billing", b"x", properties=encode_properties(properties)))
    return DeadLetter(ReceivedMessage.of_record(bytes(record)))


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [(None, [False, True, True, True]), ("n = '1' OR n = '2'", [False, True, True, False])],
)
def test_they_are_those_that_no_broker_has_put_there(expression: str | None, chosen: list[bool]) -> None:
    letters = [
        letter(n="1", RETRY_TOPIC="orders", DLQ_REASON="consumer"),
        letter(n="1", RETRY_TOPIC="orders"),
        letter(n="2", DLQ_REASON="max_reconsume_times"),
        letter(n="3"),
    ]
    assert [*map(chosen_by(without_origin(expression)), letters)] == chosen
