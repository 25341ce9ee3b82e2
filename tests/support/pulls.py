"""Pulls made of records, without a broker."""

from __future__ import annotations

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.serving import Serving
from reput_client.consume.pull import MessageSelector, PulledMessages, PullResult, PullStatus
from reput_protocol.record.message import Message, MessageQueue
from reput_protocol.record.put_block import BlockCheck, encode_put_block
from support.stored_blocks import patch_block


def assigned(queue_id: int = 0, topic: str = "t", *, retry: bool = False) -> AssignedQueue:
    """Return a queue as it is when it has just been taken."""
    return AssignedQueue(MessageQueue(topic, "b", queue_id), MessageSelector.of("*", None), 0, None, is_retry=retry)


def add_pull(
    serving: Serving, queue: AssignedQueue, first: int, count: int, *, gap: int = 0, **properties: str
) -> None:
    """Do what a pull does that brought `count` messages from offset `first` on, and left out `gap` after them."""
    topic, _, queue_id = queue.queue
    messages = [Message(topic, b"%d" % n, properties=properties) for n in range(count)]
    block = bytearray(encode_put_block(messages, topic, queue_id, 0))
    patch_block(
        block,
        BlockCheck(count),
        first_queue_offset=first,
        first_physical_offset=0,
        store_timestamp_ms=0,
        born_host=bytes(8),
        store_host=bytes(8),
    )
    found = PulledMessages(topic, bytes(block), broker_name="b")
    end = first + count + gap
    queue.next_offset = end
    queue.undelivered += count
    queue.undelivered_bytes += found.record_bytes
    serving.add(queue, PullResult(PullStatus.FOUND, found, end, 0, end))
