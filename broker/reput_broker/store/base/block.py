"""A block: encoded records of one queue that are appended together."""

from __future__ import annotations

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.record.put_block import BlockCheck


class Block(Struct, gc=False):
    """What one put appends, completely or not at all, into one file of the log.

    A writable buffer is changed in place, and belongs to the store from then on.
    """

    data: Buffer
    topic: str
    queue_id: int
    """Topic and queue of every record."""
    count: int
    born_host: bytes | None
    """Producer: 4 address bytes and a 4-byte port. None for records of the broker itself, which name both hosts
    already and are not checked."""
    check: BlockCheck | None = None
    """Result of `check_put_block`; None if they have not been checked."""
    gets_queue_offset: bool = True
    """Whether the records get queue offsets; prepared and rolled back transaction records do not."""
