"""A stored record as members of a JSON object."""

from __future__ import annotations

from typing import Any

from reput_protocol.message_fields import body_field, message_fields
from reput_protocol.record import Record


def record_fields(record: Record) -> dict[str, Any]:
    """Return every field of a record."""
    return {
        **common_fields(record),
        "physical_offset": record.physical_offset,
        "store_host": str(record.store_host),
        "born_host": str(record.born_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_bytes": len(record.body),
        **body_field(record.body),
    }


def common_fields(record: Record) -> dict[str, Any]:
    """Return the fields of a record that a consumer prints too, without its body."""
    return message_fields(
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        offset_message_id=record.offset_message_id,
        store_timestamp_ms=record.store_timestamp_ms,
        born_timestamp_ms=record.born_timestamp_ms,
        properties=record.property_map(),
    )
