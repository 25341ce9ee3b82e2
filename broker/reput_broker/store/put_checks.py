"""What a message that the broker composed must keep to, and its encoding (RocketMQ: HookUtils, MessageExtEncoder).

Blocks from producers are checked by the protocol's `check_put_block`; this is the door for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from reput_broker.store.status import PutStatus
from reput_protocol.host import Host
from reput_protocol.names import RETRY_PREFIX
from reput_protocol.properties import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX
from reput_protocol.record import Record, encode_record
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_COMMIT

TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255


def illegal_record(records: Sequence[Record], body_bytes_max: int, *, with_crc: bool) -> PutStatus | None:
    """Check records that are to be put together; None if all may be stored."""
    assert records, "there is something to put"
    topic, queue_id = records[0].topic, records[0].queue_id
    topic_size = len(topic.encode())
    limit = RETRY_TOPIC_BYTES_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
    if not 0 < topic_size <= limit or queue_id < 0:
        return PutStatus.MESSAGE_ILLEGAL
    for record in records:
        assert (record.topic, record.queue_id) == (topic, queue_id), "a batch goes to one queue"
        properties_size = len(record.properties) + (CRC_PROPERTY_BYTES if with_crc else 0)
        if properties_size > PROPERTIES_BYTES_MAX:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if len(record.body) > body_bytes_max:
            return PutStatus.MESSAGE_ILLEGAL
    return None


def encode_records(records: Sequence[Record], store_host: Host, *, with_crc: bool) -> list[bytes]:
    """Encode records of one queue whose offsets and store timestamp are filled in at the append."""
    return [encode_record(record, with_crc=with_crc, store_host=store_host) for record in records]


def has_queue_entry(record: Record) -> bool:
    """Whether a record takes a place in its queue: all but prepared and rolled back transaction records do."""
    return record.sys_flag & TRANSACTION_BITS in (0, TRANSACTION_COMMIT)
