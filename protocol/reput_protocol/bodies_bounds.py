"""Bodies of QUERY_QUEUE_BOUNDS: topics, and where each of their queues begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from reput_protocol.body_members import map_member, text_list_member, text_map_member, text_member
from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json, write_json


@dataclass(slots=True)
class QueueBoundsRequest:
    """Body of the request: the topics that are asked about."""

    topics: list[str]

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"topics": self.topics})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(text_list_member(read_json(data), "topics"))


class QueueBounds(NamedTuple):
    """Where one queue begins and ends; only what is durable counts."""

    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(slots=True)
class QueueBoundsTable(LargeBody):
    """Body of the answer: the readable queues of every topic that exists. A topic that may not be read has none."""

    broker_name: str
    topics: Mapping[str, list[QueueBounds]]
    generations: Mapping[str, str] = field(default_factory=dict)
    """The generation of each topic, another one after it was deleted and created again: empty if the topic has none,
    which is older than generations. An old broker names none at all."""

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object; each queue is an array of three integers."""
        return {"brokerName": self.broker_name, "generations": self.generations, "topics": self.topics}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        topics = {name: _bounds(name, queues) for name, queues in map_member(members, "topics").items()}
        return cls(text_member(members, "brokerName"), topics, text_map_member(members, "generations"))


def _bounds(topic: object, queues: object) -> list[QueueBounds]:
    if type(topic) is not str or type(queues) is not list:
        raise BodyMalformed("an item of 'topics' is no array of queues")
    found: list[QueueBounds] = []
    for queue in queues:
        if type(queue) is not list or len(queue) != 3 or not all(type(part) is int for part in queue):
            raise BodyMalformed(f"a queue of topic {topic!r} is not an array of three integers")
        found.append(QueueBounds(*queue))
    return found
