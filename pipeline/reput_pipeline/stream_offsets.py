"""The offsets of a stream, as they stand in its checkpoint: versioned JSON by topic, broker and queue.

    {"version": 1, "topics": {"orders": {"broker-a": {"0": 17, "1": 4}}}}

Of every queue it is the offset of the next message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from reput_pipeline.places import QueueKey
from reput_protocol.errors import ReputError

VERSION: Final = 1


class OffsetsUnreadable(ReputError):
    """A checkpoint holds offsets that this version cannot read."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the checkpoint's offsets cannot be read: {reason}; use the version of Reput that wrote it, or a new "
            "checkpoint with startingOffsets"
        )


def encode_offsets(offsets: Mapping[QueueKey, int]) -> dict[str, Any]:
    """Return offsets as Spark keeps them."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = int(offsets[queue])
    return {"version": VERSION, "topics": topics}


def decode_offsets(data: Mapping[str, Any]) -> dict[QueueKey, int]:
    """Return the offsets that Spark kept.

    Raises:
        OffsetsUnreadable: they are of another version, or of no form that is known.
    """
    version = data.get("version")
    if version != VERSION:
        raise OffsetsUnreadable(f"their version is {version!r}, and this one reads version {VERSION}")
    try:
        return {
            QueueKey(topic, broker, int(queue_id)): int(offset)
            for topic, brokers in data["topics"].items()
            for broker, queues in brokers.items()
            for queue_id, offset in queues.items()
        }
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise OffsetsUnreadable(f"they are not of the form that they should have ({error!r})") from None
