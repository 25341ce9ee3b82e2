"""JSON bodies about offsets that are told to or by members: a reset, and the state of a group.

(RocketMQ: ResetOffsetBody, ResetOffsetBodyForC, GetConsumerStatusBody.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from reput_protocol.body_members import as_object, integer_member, map_member
from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json, write_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_map_member, queue_members, queue_of, write_queue_map

_I64_MIN = -0x8000_0000_0000_0000
_I64_MAX = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
class ResetOffsetBody(LargeBody):
    """Body of 220 and answer body of 222: where a group goes on in each queue.

    Java's and Go's clients take this map keyed by queue, the C++ client a `ResetOffsetList`.
    """

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"offsetTable": self.offset_table}

    @classmethod
    def from_json(cls, data: Buffer, *, loose_bytes_max: int | None = None) -> Self:
        """Read the body in either form, the first up to so many bytes (see `read_json`); raises BodyMalformed."""
        members = read_json(data, loose_bytes_max=len(data) if loose_bytes_max is None else loose_bytes_max)
        table = members.get("offsetTable")
        if type(table) is list and all(type(item) is dict for item in table):
            return cls({queue_of(item): integer_member(item, "offset") for item in table})
        return cls(queue_map_member(members, "offsetTable", _offset))


@dataclass(slots=True)
class ResetOffsetList(LargeBody):
    """The same for clients of `LanguageCode.CPP`."""

    offset_table: dict[MessageQueue, int]

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        queues = ({**queue_members(queue), "offset": offset} for queue, offset in self.offset_table.items())
        return {"offsetTable": queues}


@dataclass(slots=True)
class ConsumerStatusBody:
    """Answer body of 221 (one member's `offsets`) and of 223 (`members`: offsets by client id).

    (RocketMQ: GetConsumerStatusBody, which calls them `messageQueueTable` and `consumerTable`.)
    """

    offsets: dict[MessageQueue, int] = field(default_factory=dict)
    members: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return the body with objects as keys, which is not strict JSON."""
        members = ",".join(
            f"{write_json(client_id).decode()}:{write_queue_map(offsets)}"
            for client_id, offsets in self.members.items()
        )
        return (
            f'{{"consumerTable":{{{members}}},"messageQueueTable":{write_queue_map(self.offsets)}}}'.encode()
        )

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        content = read_json(data, loose_bytes_max=len(data))
        table = as_object(map_member(content, "consumerTable"), "'consumerTable'")
        return cls(
            queue_map_member(content, "messageQueueTable", _offset),
            {_client_id(client_id): queue_map_member(table, client_id, _offset) for client_id in table},
        )


def _client_id(key: Any) -> str:
    if type(key) is not str:
        raise BodyMalformed("a key of 'consumerTable' is not a client id")
    return key


def _offset(value: object) -> int:
    if type(value) is not int or not _I64_MIN <= value <= _I64_MAX:
        raise BodyMalformed("an offset is not a 64-bit integer")
    return value
