"""A stored record as members of a JSON object."""

from __future__ import annotations

import base64
from typing import Any

from reput_protocol.message_id import offset_message_id
from reput_protocol.properties import decode_properties
from reput_protocol.record import Record


def record_fields(record: Record) -> dict[str, Any]:
    """Return every field of a record; the body as `body` if it is UTF-8, else as `body_base64`."""
    properties = decode_properties(record.properties)
    fields: dict[str, Any] = {
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "physical_offset": record.physical_offset,
        "message_id": properties.get("UNIQ_KEY")
        or offset_message_id(record.store_host, record.physical_offset),
        "offset_message_id": offset_message_id(record.store_host, record.physical_offset),
        "tag": properties.get("TAGS"),
        "keys": [key for key in properties.get("KEYS", "").split(" ") if key],
        "store_timestamp_ms": record.store_timestamp_ms,
        "born_timestamp_ms": record.born_timestamp_ms,
        "store_host": str(record.store_host),
        "born_host": str(record.born_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "properties": properties,
        "body_bytes": len(record.body),
    }
    try:
        fields["body"] = record.body.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(record.body).decode()
    return fields
