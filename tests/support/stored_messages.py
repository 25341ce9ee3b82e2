"""The messages of a topic, for comparison with those sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reput_client.blocking import PullConsumer
from reput_protocol.record.record import Record, decode_record
from support.faces import Face


async def stored(face: Face, address: str, topic: str, queue_id: int) -> list[Any]:
    """Return all messages of a queue."""
    found: list[Any] = []
    async with face.PullConsumer(address, group="g") as consumer:
        while True:
            result = await consumer.pull(topic, queue_id, len(found), max_messages=500, wait_s=0.0)
            if not len(result.messages):
                return found
            found += result.messages


def bodies_of(address: str, topic: str, queue_id: int = 0) -> list[bytes]:
    """Return the bodies of all messages of a queue, by the synchronous client."""
    found: list[bytes] = []
    offset = 0
    with PullConsumer(address, group="bodies", timeout_s=30.0) as consumer:
        while True:
            result = consumer.pull(topic, queue_id, offset, max_messages=500, wait_s=0.0)
            found += [bytes(message.body) for message in result.messages]
            if result.next_begin_offset >= result.max_offset:
                return found
            offset = result.next_begin_offset


def sent_part(data: bytes) -> Record:
    """Return what of a stored record was the sender's, with its unique id masked."""
    record = decode_record(data)
    unique_key = record.unique_key or "no id"
    return replace(
        record,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        born_timestamp_ms=0,
        born_host=record.store_host,
        properties=record.properties.replace(unique_key.encode(), b"ID"),
    )
