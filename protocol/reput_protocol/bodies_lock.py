"""JSON bodies of 41 and 42: who may consume a queue in order (RocketMQ: LockBatchRequestBody and its kin)."""

from __future__ import annotations

from msgspec import field

from reput_protocol.body import Body, LargeBody
from reput_protocol.message import MessageQueue


class LockBatchBody(Body):
    """Body of 41 and 42: the queues that one member of a group wants to lock, or gives back.

    `only_this_broker` belongs to RocketMQ's locks by majority of several brokers; its Go client leaves it out.
    """

    client_id: str = ""
    consumer_group: str = ""
    queues: list[MessageQueue] = field(default_factory=list, name="mqSet")
    only_this_broker: bool = False


class LockBatchResult(LargeBody):
    """Answer body of 41: the queues that are the asking member's now. What is missing here is not locked."""

    locked: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")
