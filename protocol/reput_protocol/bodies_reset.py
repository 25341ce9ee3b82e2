"""JSON bodies about offsets that are told to or by members: a reset, and the state of a group.

(RocketMQ: ResetOffsetBody, ResetOffsetBodyForC, GetConsumerStatusBody.)
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Self

from msgspec import field

from reput_protocol.body import I64, Body, LargeBody, Members
from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.message import MessageQueue


class ResetOffsetBody(LargeBody):
    """Body of 220 and answer body of 222: where a group goes on in each queue.

    Java's and Go's clients take this map keyed by queue, the C++ client a `ResetOffsetList`.
    """

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, I64] = {}

    @classmethod
    def from_json(cls, data: Buffer, *, is_trusted: bool | None = None) -> Self:
        """Read the body in either form; see `Body.from_json`."""
        try:
            return super().from_json(data, is_trusted=is_trusted)
        except BodyMalformed:
            with suppress(BodyMalformed):
                listed = _OffsetList.from_json(data).offset_table
                return cls(
                    {MessageQueue(one.topic, one.broker_name, one.queue_id): one.offset for one in listed}
                )
            raise


class _QueueOffset(Members):
    broker_name: str
    queue_id: I64
    topic: str
    offset: I64


class _OffsetList(Body):
    offset_table: list[_QueueOffset]


class ResetOffsetList(LargeBody):
    """The same for clients of `LanguageCode.CPP`."""

    offset_table: dict[MessageQueue, I64] = {}

    def to_members(self) -> dict[str, Any]:
        """Return the members; each queue is an object with its offset."""
        queues = self.offset_table.items()
        listed = [
            _QueueOffset(queue.broker_name, queue.queue_id, queue.topic, offset) for queue, offset in queues
        ]
        return {"offsetTable": listed}


class ConsumerStatusBody(LargeBody):
    """Answer body of 221 (one member's `offsets`) and of 223 (`members`: offsets by client id).

    (RocketMQ: GetConsumerStatusBody, which calls them `messageQueueTable` and `consumerTable`.)
    """

    IS_TRUSTED: ClassVar[bool] = True

    offsets: dict[MessageQueue, I64] = field(default_factory=dict, name="messageQueueTable")
    members: dict[str, dict[MessageQueue, I64]] = field(default_factory=dict, name="consumerTable")
