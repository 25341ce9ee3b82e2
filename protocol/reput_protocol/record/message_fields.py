"""A stored message as members of a JSON object, as all commands print it and `reput produce` reads it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from reput_protocol.properties import KEYS, TAGS, UNIQ_KEY, split_keys


def message_fields(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    offset_message_id: str,
    store_timestamp_ms: int,
    born_timestamp_ms: int,
    properties: Mapping[str, str],
) -> dict[str, Any]:
    """Return a message's members except its body; `message_id` is the producer's id if it has one."""
    return {
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "message_id": properties.get(UNIQ_KEY) or offset_message_id,
        "offset_message_id": offset_message_id,
        "tag": properties.get(TAGS),
        "keys": list(split_keys(properties.get(KEYS))),
        "store_timestamp_ms": store_timestamp_ms,
        "born_timestamp_ms": born_timestamp_ms,
        "properties": dict(properties),
    }


def body_field(body: bytes) -> dict[str, str]:
    """Return the body as `body` if it is UTF-8, else as `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def body_of(fields: Mapping[str, Any]) -> bytes:
    """Return the body from the members written by `body_field`.

    Raises:
        KeyError, TypeError, ValueError: there is none, or it is not text, or not base64.
    """
    if "body_base64" in fields:
        return base64.b64decode(fields["body_base64"])
    body: str = fields["body"]
    return body.encode()
