"""The properties of a forwarded message: the message's own, not those of its delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reput_protocol import properties as names
from reput_protocol.properties import encode_properties
from reput_protocol.property_rules import check_property, is_reserved

_OF_THE_DELIVERY: Final = frozenset(
    {
        # written by its producer and the broker
        names.UNIQ_KEY,
        names.WAIT,
        names.MSG_REGION,
        names.TRACE_ON,
        names.CLUSTER,
        names.CRC32,
        # written for its consumers
        names.RETRY_TOPIC,
        names.RETRY_REASON,
        names.SEND_BACK_ID,
        names.DLQ_REASON,
        names.DLQ_ORIGIN_TOPIC,
        names.DLQ_ORIGIN_MESSAGE_ID,
        names.ORIGIN_MESSAGE_ID,
        names.MAX_RECONSUME_TIMES,
        names.RECONSUME_TIME,
        names.CONSUME_START_TIME,
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        # of its transaction
        names.PRODUCER_GROUP,
        names.TRANSACTION_ID,
        names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.CHECK_IMMUNITY_TIME,
    }
)
"""Properties that a copy does not get, besides those that only brokers may write."""


def forwarded_properties(properties: Mapping[str, str], unique_id: str | None, added: Mapping[str, str]) -> bytes:
    """Return the encoded properties of a copy.

    Args:
        properties: of the received message.
        unique_id: of the copy, or None.
        added: additional or replaced properties.

    Raises:
        InvalidMessage: an added property may not be set.
    """
    kept = own_properties(properties)
    for name, value in added.items():
        check_property(name, value)
        kept[name] = value
    return encode_properties({names.UNIQ_KEY: unique_id, **kept} if unique_id else kept)


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the message's own properties."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _OF_THE_DELIVERY and not is_reserved(name, in_retries=True)
    }
