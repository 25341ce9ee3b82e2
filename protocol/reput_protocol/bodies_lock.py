"""JSON bodies of 41 and 42: who may consume a queue in order (RocketMQ: LockBatchRequestBody and its kin)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from reput_protocol.body_members import flag_member, text_member
from reput_protocol.buffers import Buffer
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json, write_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_list_member, queue_members


@dataclass(slots=True)
class LockBatchBody:
    """Body of 41 and 42: the queues that one member of a group wants to lock, or gives back.

    `only_this_broker` belongs to RocketMQ's locks by majority of several brokers; its Go client leaves it out.
    """

    client_id: str
    consumer_group: str
    queues: list[MessageQueue] = field(default_factory=list)
    only_this_broker: bool = False

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json(
            {
                "clientId": self.client_id,
                "consumerGroup": self.consumer_group,
                "mqSet": [queue_members(queue) for queue in self.queues],
                "onlyThisBroker": self.only_this_broker,
            }
        )

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            text_member(members, "clientId"),
            text_member(members, "consumerGroup"),
            queue_list_member(members, "mqSet"),
            flag_member(members, "onlyThisBroker"),
        )


@dataclass(slots=True)
class LockBatchResult(LargeBody):
    """Answer body of 41: the queues that are the asking member's now. What is missing here is not locked."""

    locked: list[MessageQueue] = field(default_factory=list)

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"lockOKMQSet": self.locked}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(queue_list_member(read_json(data), "lockOKMQSet"))
