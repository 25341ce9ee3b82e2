"""Make room in the properties of a message for what the broker adds.

Producers leave the room (`SENT_PROPERTIES_BYTES_MAX`). Messages in a log that an earlier version or RocketMQ wrote may
have longer properties: these lose what is needed least, since otherwise they could not be delivered at all.
"""

from __future__ import annotations

from typing import Final

import structlog

from reput_protocol import properties as names
from reput_protocol.properties import PROPERTIES_BYTES_MAX, encode_properties

log = structlog.get_logger(__name__)

_INFORMATION: Final = (
    names.RETRY_REASON,
    names.DLQ_REASON,
    names.SEND_BACK_ID,
    names.MSG_REGION,
    names.TRACE_ON,
    names.CLUSTER,
)
"""What goes first, and is not missed."""
_NEEDED: Final = frozenset(
    {
        names.POP_CK,
        names.POP_ORIGIN,
        names.FIRST_POP_TIME,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.ORIGIN_UNPROVEN,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.WAIT,
        names.REPLAY_OF,
    }
)
"""What the broker sets to redeliver a message; it takes less than `BROKER_ROOM` bytes."""


def fitted_properties(properties: dict[str, str], topic: str, *, spare_bytes: int = 0) -> bytes:
    """Return the text of `properties`, from which those are removed that do not fit.

    Args:
        properties: changed in place.
        topic: of the message, for the log.
        spare_bytes: how much more must fit.
    """
    text = encode_properties(properties)
    if len(text) + spare_bytes <= PROPERTIES_BYTES_MAX:
        return text
    for name in _INFORMATION:
        if properties.pop(name, None) is not None:
            text = encode_properties(properties)
            if len(text) + spare_bytes <= PROPERTIES_BYTES_MAX:
                return text
    while len(text) + spare_bytes > PROPERTIES_BYTES_MAX:
        _, size, name = max(  # of those that are needed, one of the broker's is never the longest
            (name not in _NEEDED, len(name) + len(value), name) for name, value in properties.items()
        )
        log.warning(
            "property_dropped",
            topic=topic,
            property=name[:80],
            bytes=size,
            message_id=properties.get(names.UNIQ_KEY, "")[:80],
            hint="the message has no room for what its redelivery needs; producers leave it now",
        )
        del properties[name]
        text = encode_properties(properties)
    return text
