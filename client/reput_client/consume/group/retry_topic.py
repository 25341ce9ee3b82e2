"""Messages that come back: the retry topic of a group, and how the application sees what it brings.

What a member could not handle is stored again in `%RETRY%group`, with its topic in the property `RETRY_TOPIC`. Every
member consumes that topic besides its own; a message of it shows the topic that it was sent to.
"""

from __future__ import annotations

from typing import Final

from reput_client.errors import DamagedMessage
from reput_client.received import DamagedRecord, PulledRecords, ReceivedMessage
from reput_protocol.message import MessageQueue

RETRY_TOPIC_PROPERTY: Final = "RETRY_TOPIC"


class RetriedMessage(ReceivedMessage):
    """A message out of a retry topic. `topic` is where it was sent, `queue` where it came from now."""

    __slots__ = ("_topic",)

    def __init__(self, records: PulledRecords, at: int) -> None:
        """See `ReceivedMessage`; a damaged one is refused."""
        super().__init__(records, at)
        self._topic = self.get_property(RETRY_TOPIC_PROPERTY) or records.topic

    @classmethod
    def of(cls, pulled: ReceivedMessage) -> ReceivedMessage:
        """Return the message as the application sees it; one that is damaged or names no topic as it is."""
        if isinstance(pulled, DamagedRecord):
            return pulled
        try:
            is_retried = bool(pulled.get_property(RETRY_TOPIC_PROPERTY))
        except DamagedMessage:
            return pulled
        return pulled.with_class(cls) if is_retried else pulled

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        return self._topic

    @property
    def queue(self) -> MessageQueue:
        """The queue of the retry topic that it was pulled from."""
        return MessageQueue(self._records.topic, self.broker_name, self.queue_id)
