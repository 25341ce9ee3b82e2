"""Copying a record for another queue, with other properties.

The result equals `encode_record` of the decoded record with other fields (a property test compares them), but body, its
checksum and born host are copied unchanged.
"""

from __future__ import annotations

from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX
from reput_protocol.record.layout import (
    BACK,
    FRONT,
    I16,
    I64,
    STORE_HOST_IPV6,
    crc_property,
    topic_field,
)
from reput_protocol.record.view import RecordView


def redirect_record(
    record: RecordView,
    *,
    topic: str,
    queue_id: int,
    properties: bytes,
    prepared_transaction_offset: int,
    store_host: bytes,
    with_crc: bool = False,
) -> bytes:
    """Return a record of the message in `record`; its offsets are still zero.

    Args:
        record: a valid record.
        topic, queue_id: the target; the version follows from the topic.
        properties: encoded, without a whole-record checksum.
        prepared_transaction_offset: of the new record.
        store_host: the packed address, as in a record.
        with_crc: whether to add a whole-record checksum as the last property.

    Raises:
        InvalidMessage: the topic or the properties do not fit into a record.
    """
    magic, topic_bytes = topic_field(topic.encode())
    if with_crc:
        if properties and properties[-1] != 2:
            properties += b"\x02"
        properties += bytes(CRC_PROPERTY_BYTES)
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise InvalidMessage(f"properties of {len(properties)} bytes, but at most {PROPERTIES_BYTES_MAX} fit")
    body, born_host = record.body_view, record.packed_born_host
    sys_flag = record.sys_flag & ~STORE_HOST_IPV6 | (STORE_HOST_IPV6 if len(store_host) == 20 else 0)
    fixed = FRONT.size + len(born_host) + I64.size + len(store_host) + BACK.size
    size = fixed + len(body) + len(topic_bytes) + I16.size + len(properties)
    redirected = b"".join(
        (
            FRONT.pack(
                size,
                magic,
                record.body_crc,
                queue_id,
                record.flag,
                0,
                0,
                sys_flag,
                record.born_timestamp_ms,
            ),
            born_host,
            I64.pack(record.store_timestamp_ms),
            store_host,
            BACK.pack(record.reconsume_times, prepared_transaction_offset, len(body)),
            body,
            topic_bytes,
            I16.pack(len(properties)),
            properties,
        )
    )
    if not with_crc:
        return redirected
    covered = redirected[:-CRC_PROPERTY_BYTES]
    return covered + crc_property(covered)
