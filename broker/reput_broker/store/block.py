"""Records of one queue that are put together: as a producer sent them, or encoded by the broker."""

from __future__ import annotations

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.record.put_block import BlockCheck


class Block(Struct, gc=False):
    """What one put appends: all of it or nothing, in one file of the log.

    A buffer that can be written to gets the broker's fields in place and belongs to the store from then on.
    """

    data: Buffer
    """The records back to back."""
    topic: str
    queue_id: int
    """The topic and the queue that every record names."""
    count: int
    """How many records there are."""
    born_host: bytes
    """The producer as 4 address bytes and a 4-byte port; empty if the records name both hosts already."""
    check: BlockCheck | None = None
    """What `check_put_block` has found; None if these bytes have not been checked."""
    takes_place: bool = True
    """Whether the records take a place in their queue; prepared and rolled back transaction records do not."""
