"""What the properties of a dead letter say of the message that it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from reput_protocol import properties as names


class DeadLetterOrigin(NamedTuple):
    """Where a dead letter comes from, and why it is one.

    `topic` is that to which it was sent first, None if it was sent to the dead-letter topic directly; `message_id` its
    id there: the unique id, else the offset id of the first copy. `reason` is one of the broker's `DeadLetterReason`,
    `unknown` if RocketMQ's broker made it a dead letter; `cause` the error that its last consumer reported, if any.
    """

    topic: str | None
    message_id: str
    reason: str
    cause: str | None


def dead_letter_origin(properties: Mapping[str, str], offset_message_id: str) -> DeadLetterOrigin:
    """Return the origin of the dead letter with these properties and this offset message id."""
    return DeadLetterOrigin(
        properties.get(names.RETRY_TOPIC) or properties.get(names.DLQ_ORIGIN_TOPIC),
        properties.get(names.UNIQ_KEY) or properties.get(names.ORIGIN_MESSAGE_ID) or offset_message_id,
        properties.get(names.DLQ_REASON, "unknown"),
        properties.get(names.RETRY_REASON),
    )


def replayed_id(offset_message_id: str) -> str:
    """Return the unique id of the message as which the dead letter with this offset message id is replayed.

    It is always the same, so that a later replay finds what an earlier one has sent.
    """
    return hashlib.sha256(f"dead letter {offset_message_id}".encode()).hexdigest()[:32].upper()
