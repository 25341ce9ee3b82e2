"""What a producer gets back for a stored message."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from reput_protocol.codes import AckLevel
from reput_protocol.host import Host
from reput_protocol.message_id import offset_message_id_of


class SendReceipt(NamedTuple):
    """Where one message lies and what is known of it. A receipt is made only for a message that is stored.

    `queue_offset` is its number in its queue, `physical_offset` its byte position in the broker's commit log,
    `store_timestamp_ms` the broker's clock, `ack` the level that was reached.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    store_host: str
    ack: AckLevel
    unique_id: str | None = None

    @property
    def offset_message_id(self) -> str:
        """The id that names the broker and the place in its log (RocketMQ: offsetMsgId)."""
        return offset_message_id_of(_packed_host(self.store_host), self.physical_offset)

    @property
    def message_id(self) -> str:
        """The producer's unique id (`UNIQ_KEY`), or the offset id where the producer wrote none."""
        return self.unique_id or self.offset_message_id


@lru_cache(maxsize=64)
def _packed_host(host: str) -> bytes:
    return Host.parse(host).packed()
