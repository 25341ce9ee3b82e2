"""The offsets of a stream in its checkpoint: versioned JSON by topic, broker and queue.

    {"version": 2, "topics": {"orders": {"broker-a": {"0": 17, "1": 4}}},
     "generations": {"orders": {"broker-a": "5f3c"}}}

An offset is that of the queue's next message. Version 1 has no generations (`reput_client.arrow.queues.Generations`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from reput_client.arrow.queues import Generations, QueueKey
from reput_protocol.errors import ReputError

VERSION: Final = 2
_VERSIONS: Final = (1, VERSION)


class OffsetsUnreadable(ReputError):
    """The offsets of a checkpoint cannot be read by this version."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the checkpoint's offsets cannot be read: {reason}; use the version of Reput that wrote it, or a new "
            "checkpoint with startingOffsets"
        )


class StreamOffsets(NamedTuple):
    """The position of a stream."""

    queues: dict[QueueKey, int]
    generations: Generations
    """Of the queues' topics, if known."""


def encode_offsets(queues: Mapping[QueueKey, int], generations: Generations) -> dict[str, Any]:
    """Return offsets and generations as Spark keeps them."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    kept: dict[str, dict[str, str]] = {}
    for queue in sorted(queues):
        brokers = topics.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker, {})[str(queue.queue_id)] = int(queues[queue])
        generation = generations.get((queue.topic, queue.broker))
        if generation is not None:
            kept.setdefault(queue.topic, {})[queue.broker] = generation
    return {"version": VERSION, "topics": topics, "generations": kept}


def decode_offsets(data: Mapping[str, Any]) -> StreamOffsets:
    """Return the offsets that Spark has kept.

    Raises:
        OffsetsUnreadable: they have another version, or an unknown form.
    """
    version = data.get("version")
    if version not in _VERSIONS:
        raise OffsetsUnreadable(f"their version is {version!r}, and this program reads up to version {VERSION}")
    try:
        queues = {
            QueueKey(topic, broker, int(queue_id)): int(offset)
            for topic, brokers in data["topics"].items()
            for broker, offsets in brokers.items()
            for queue_id, offset in offsets.items()
        }
        generations = {
            (topic, broker): str(generation)
            for topic, brokers in data.get("generations", {}).items()
            for broker, generation in brokers.items()
        }
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise OffsetsUnreadable(f"they do not have the expected form ({error!r})") from None
    return StreamOffsets(queues, generations)
