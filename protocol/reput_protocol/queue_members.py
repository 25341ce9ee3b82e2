"""Message queues in JSON bodies: as objects, in arrays, and as the keys of maps (RocketMQ: MessageQueue).

A map keyed by message queue is written as RocketMQ writes it, with objects as keys, because every client reads that.
It is read in that form and as an array of `[queue, value]` pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from reput_protocol.body_members import as_object, integer_member, list_member, text_member
from reput_protocol.errors import BodyMalformed
from reput_protocol.loose_json import write_object_keyed_map
from reput_protocol.message import MessageQueue

T = TypeVar("T")


def queue_members(queue: MessageQueue) -> dict[str, Any]:
    """Return the members of a queue's JSON object."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_of(members: Mapping[Any, Any]) -> MessageQueue:
    """Read a queue's members; raises BodyMalformed."""
    return MessageQueue(
        text_member(members, "topic"),
        text_member(members, "brokerName"),
        integer_member(members, "queueId"),
    )


def queue_list_member(members: Mapping[Any, Any], name: str) -> list[MessageQueue]:
    """Return an array of queues; raises BodyMalformed for anything else."""
    return [queue_of(as_object(item, f"an item of {name!r}")) for item in list_member(members, name)]


def write_queue_map(entries: Mapping[MessageQueue, object]) -> str:
    """Return the text of a map keyed by queue, its values as JSON. This is not strict JSON."""
    return write_object_keyed_map(
        {tuple(queue_members(queue).items()): value for queue, value in entries.items()}
    )


def queue_map_member(
    members: Mapping[Any, Any], name: str, read: Callable[[Any], T]
) -> dict[MessageQueue, T]:
    """Return a map keyed by queue, each value as `read` makes it; empty if it is missing.

    Raises:
        BodyMalformed: it is no such map; and what `read` raises.
    """
    content = members.get(name)
    if content is None:
        return {}
    found: dict[MessageQueue, T] = {}
    if type(content) is list:
        for pair in content:
            if type(pair) is not list or len(pair) != 2:
                raise BodyMalformed(f"an item of {name!r} is not a pair of queue and value")
            found[queue_of(as_object(pair[0], f"a queue of {name!r}"))] = read(pair[1])
        return found
    for key, value in as_object(content, f"member {name!r}").items():
        if type(key) is not tuple:
            raise BodyMalformed(f"a key of {name!r} is not a message queue")
        found[queue_of(dict(key))] = read(value)
    return found
