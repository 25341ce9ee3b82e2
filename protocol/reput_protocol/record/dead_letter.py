"""What the properties of a dead letter say of the message that it was, and those of its replay of the dead letter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple, Self

from reput_protocol import properties as names
from reput_protocol.properties import find_property


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


class ReplayOf(NamedTuple):
    """The dead letter that a message replays: the value of the property REPUT_REPLAY_OF.

    The broker that replays it writes the property, and its log offset in PREPARED_TRANSACTION_OFFSET. Copies of the
    message, which have the property too, do not name it there, and are no replays.
    """

    physical_offset: int
    queue_offset: int
    topic: str
    """The dead-letter topic."""

    @property
    def text(self) -> str:
        """The value of the property."""
        return f"{self.physical_offset}-{self.queue_offset}-{self.topic}"

    @property
    def key(self) -> str:
        """The key of the index under which all replays from this dead-letter topic are found."""
        return replays_key(self.topic)

    @property
    def prepared_offset(self) -> int:
        """The PREPARED_TRANSACTION_OFFSET of the replay, where 0 stands for no record."""
        return self.physical_offset or -1

    @classmethod
    def of_properties(cls, properties: bytes, prepared_offset: int) -> Self | None:
        """Return what a message with these encoded properties replays; None if it is no replay."""
        if not prepared_offset:
            return None
        text = find_property(properties, names.REPLAY_OF.encode())
        if text is None:
            return None
        physical, _, rest = text.decode("utf-8", "replace").partition("-")
        queue, _, topic = rest.partition("-")
        if not (physical.isascii() and physical.isdecimal() and len(physical) < 20):
            return None
        if not (queue.isascii() and queue.isdecimal() and len(queue) < 20 and topic):
            return None
        found = cls(int(physical), int(queue), topic)
        return found if found.prepared_offset == prepared_offset else None


def replays_key(topic: str) -> str:
    """Return the key of the index that all replays from a dead-letter topic have besides their own."""
    return f"{topic}#{names.REPLAY_OF}"
