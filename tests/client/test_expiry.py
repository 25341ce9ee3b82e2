"""Messages that expire, as programs send and receive them, with each API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reput_client import Message
from reput_protocol.errors import InvalidMessage
from support.faces import Face, scenario


@scenario
async def test_a_message_expires_alone_with_a_delay_and_with_a_priority(face: Face, real_address: str) -> None:
    topic = f"expiring-{face.name}"
    soon = datetime.now(UTC) + timedelta(milliseconds=100)
    async with face.Producer(real_address) as producer:
        await producer.send(Message(topic, b"kept", ttl_s=60.0), queue_id=0)
        await producer.send(Message(topic, b"short", ttl_s=0.1), queue_id=0)
        await producer.send(Message(topic, b"moment", expires_at=soon), queue_id=0)
        await producer.send(Message(topic, b"urgent", priority=0, ttl_s=0.1))
        await producer.send(Message(topic, b"delayed", delay_s=0.3, ttl_s=60.0), queue_id=0)
    async with face.PullConsumer(real_address, group=f"g-{face.name}") as consumer:
        while await consumer.max_offset(topic, 0) < 5:
            await face.sleep(0.05)
        result = await consumer.pull(topic, 0, 0)
        assert [message.body for message in result.messages] == [b"kept", b"delayed"]
        for message in result.messages:
            assert message.expires_at_ms == message.store_timestamp_ms + 60_000


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ttl_s": 0}, "ttl_s is 0"),
        ({"ttl_s": -1}, "ttl_s -1 must be seconds"),
        ({"ttl_s": "1"}, "ttl_s must be an int or a float"),
        ({"expires_at": 1}, "expires_at must be a datetime"),
        ({"properties": {"EXPIRES_AFTER_MS": "1"}}, "pass ttl_s="),
        ({"properties": {"EXPIRES_AT_MS": "1"}}, "pass expires_at="),
    ],
)
def test_what_is_no_time_to_live_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessage, match=reason):
        Message("t", b"", **options)
