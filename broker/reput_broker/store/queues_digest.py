"""A checksum of where all queues begin and end: an orderly stop leaves it, and the next start asks whether it holds."""

from __future__ import annotations

from collections.abc import Iterable

from reput_broker.store.consume_queue_table import ConsumeQueueTable
from reput_protocol.checksum import crc32


def queues_digest(queues: ConsumeQueueTable) -> int:
    """A checksum of where every queue's files begin and its entries end."""
    return digest_of_ends(
        (
            queue.topic,
            queue.queue_id,
            queue.first_queue_offset,
            queue.max_queue_offset,
            queue.max_physical_offset,
        )
        for queue in queues
        if queue.has_files
    )


def digest_of_ends(ends: Iterable[tuple[str, int, int, int, int]]) -> int:
    """Return the checksum of queues: topic, queue id, first and next queue offset, end of the last record, of each."""
    return crc32(repr(sorted(ends)).encode())
