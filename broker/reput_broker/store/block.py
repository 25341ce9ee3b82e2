"""A block: encoded records of one queue that are appended together."""

from __future__ import annotations

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.record.put_block import BlockCheck


class Block(Struct, gc=False):
    """What one put appends, completely or not at all, into one file of the log.

    If the buffer is writable, the broker's fields are filled in in place, and it belongs to the
    store from then on.
    """

    data: Buffer
    """The records back to back."""
    topic: str
    queue_id: int
    """Topic and queue of every record."""
    count: int
    born_host: bytes
    """Producer: 4 address bytes and a 4-byte port; empty if the records already name both hosts."""
    check: BlockCheck | None = None
    """Result of `check_put_block`; None if these bytes have not been checked."""
    gets_queue_offset: bool = True
    """Whether the records get queue offsets; prepared and rolled back transaction records do not."""
