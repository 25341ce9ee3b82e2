"""Receipt handles, by which clients settle messages.

A handle is the text of the broker's own (`PopHandle`) and the message's log offset, so that any proxy can settle what
another one has delivered.
"""

from __future__ import annotations

import math

from reput_client.pop.popped import SPAN_MAX
from reput_protocol.commands.pop import PopHandle, marked_topic
from reput_protocol.record.message import MessageQueue
from reput_proxy.rejections import Code, Rejected


class Delivery:
    """A message that a client has, by its handle; see `reput_client.pop.popped.Delivered`."""

    __slots__ = (
        "_handle",
        "_invisible_until",
        "broker_name",
        "group",
        "is_acknowledged",
        "is_given_back",
        "physical_offset",
        "topic",
    )

    def __init__(self, group: str, topic: str, handle: PopHandle, physical_offset: int) -> None:
        self.group = group
        self.topic = topic
        self.broker_name = handle.broker_name
        self.physical_offset = physical_offset
        self.is_acknowledged = False
        self.is_given_back = False
        self._handle = handle
        self._invisible_until = math.inf  # the broker decides

    @classmethod
    def parse(cls, group: str, topic: str, text: str) -> Delivery:
        """Return the message of a handle; raises `Rejected` if it is not one."""
        try:
            handle = PopHandle.parse(text)
            if not 0 <= handle.queue_offset - handle.start_offset < SPAN_MAX or handle.start_offset < 0:
                raise ValueError(f"offset {handle.queue_offset} of a pop from {handle.start_offset}")
            marked_topic(topic, group, handle.mark)
            last = text.split(" ")[8:9]
            return cls(group, topic, handle, int(last[0]) if last else -1)
        except ValueError as error:
            raise Rejected(
                Code.INVALID_RECEIPT_HANDLE, f"not a receipt handle of this proxy: {error}"
            ) from None

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was popped from."""
        topic = marked_topic(self.topic, self.group, self._handle.mark)
        return MessageQueue(topic, self.broker_name, self._handle.queue_id)

    @property
    def invisible_until_ms(self) -> int:
        """When its invisible time ends, by the broker's clock."""
        return self._handle.pop_time + self._handle.invisible_time

    @property
    def receipt_handle(self) -> str:
        """The handle, as it is now."""
        return receipt_handle(self._handle, self.physical_offset)

    def __repr__(self) -> str:
        handle = self._handle
        return f"<delivery of {self.topic}/{handle.queue_id} at offset {handle.queue_offset} to {self.group}>"


def receipt_handle(handle: PopHandle, physical_offset: int) -> str:
    """Return the text that clients get."""
    return f"{handle} {physical_offset}"
