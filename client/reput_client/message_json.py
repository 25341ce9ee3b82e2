"""Messages as objects of JSON, as `reput consume -O json` prints them and the console exports them."""

from __future__ import annotations

from typing import Any, Final

from reput_client.received import ReceivedMessage
from reput_protocol.record.message_fields import body_field, message_fields

NOT_DECODED: Final = object()
"""Stands for a value where there is none; None is a value."""


def message_members(
    message: ReceivedMessage[Any], value: Any = NOT_DECODED, error: str | None = None
) -> dict[str, Any]:
    """Return the members of a message.

    It has the decoded `value`; else the body as `body` if it is UTF-8, or `body_base64`, and the `error` if it could
    not be decoded.

    Raises:
        DamagedMessage: it fails its checksum or cannot be decompressed.
        UnsupportedCompression: without a value: it is compressed with LZ4 or Zstandard.
    """
    fields = message_fields(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        offset_message_id=message.offset_message_id,
        store_timestamp_ms=message.store_timestamp_ms,
        born_timestamp_ms=message.born_timestamp_ms,
        properties=message.properties,
    )
    if value is not NOT_DECODED:
        return {**fields, "value": value}
    return {**fields, **body_field(message.body), **({"error": error} if error else {})}
