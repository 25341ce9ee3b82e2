"""Messages as handlers get them, and what handlers and programs send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self, TypeAlias

from faststream import BatchPublishCommand, Context, PublishCommand, PublishType, Response, StreamMessage
from faststream.exceptions import HandlerException
from faststream.message import AckStatus, decode_message

from reput_client.received import PulledRecords, ReceivedMessage
from reput_protocol.codes import Ack
from reput_protocol.record.delays import DELAY_LEVELS_MS, DelayOptions, delay_level_of

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"


class Delivered(ReceivedMessage):
    """A received message, and what its handler made of it, which takes effect when the handler ends.

    Attributes:
        outcome: None as long as it was neither acknowledged nor refused; the first call counts.
        delay_level: when it is redelivered, if it was rejected with `nack`; 0: later with each attempt.
        error: what the handler raised, or the reason that it gave.
    """

    __slots__ = ("delay_level", "error", "outcome")

    def __init__(self, records: PulledRecords, at: int) -> None:
        super().__init__(records, at)
        self.outcome: AckStatus | None = None
        self.delay_level = 0
        self.error: Exception | None = None

    def settle(self, outcome: AckStatus, delay_level: int = 0, reason: str | None = None) -> None:
        """Keep what becomes of it, unless that is settled."""
        if self.outcome is None:
            self.outcome = outcome
            self.delay_level = delay_level
            self.error = None if reason is None else HandlerException(reason)

    def ack(self) -> None:
        """Count it as handled."""
        self.settle(AckStatus.ACKED)

    async def nack(self, delay_s: float | None = None, *, reason: str | None = None) -> None:
        """Give it back, as `ReceivedMessage.nack`."""
        self.settle(AckStatus.NACKED, 0 if delay_s is None else delay_level_of(delay_s), reason)

    async def reject(self, *, reason: str | None = None) -> None:
        """Make it a dead letter, as `ReceivedMessage.reject`."""
        self.settle(AckStatus.REJECTED, reason=reason)


class ReputStreamMessage(StreamMessage[Delivered]):
    """A message in a handler. `raw_message` is the `ReceivedMessage`; the first call on either of them counts.

    It takes effect when the handler ends.
    """

    async def ack(self) -> None:
        """Count the message as handled."""
        self._settle(AckStatus.ACKED)

    async def nack(self, delay_level: int = 0) -> None:
        """Give the message back to the broker, which redelivers it to the group later.

        Args:
            delay_level: 1 to 18, RocketMQ's fixed delays; 0: longer with each attempt, from 10 s on.
        """
        if not 0 <= delay_level <= len(DELAY_LEVELS_MS):
            raise ValueError(f"delay_level {delay_level} is not from 0 to {len(DELAY_LEVELS_MS)}")
        self._settle(AckStatus.NACKED, delay_level)

    async def reject(self) -> None:
        """Make the message a dead letter; in a broadcasting group, drop it."""
        self._settle(AckStatus.REJECTED)

    def _settle(self, outcome: AckStatus, delay_level: int = 0) -> None:
        self.raw_message.settle(outcome, delay_level)
        self.committed = self.raw_message.outcome


ReputMessage: TypeAlias = Annotated[ReputStreamMessage, Context("message")]
"""The annotation of a handler's argument that gets the message itself."""


async def parse(message: Delivered) -> StreamMessage[Delivered]:
    """Return the message for handlers; properties are its headers.

    Raises:
        DamagedMessage, UnsupportedCompression: it has no body that can be read.
    """
    properties = message.properties
    reply_to = properties.get("REPLY_TO_CLIENT") if message.wants_reply else properties.get(REPLY_TO)
    return ReputStreamMessage(
        message,
        message.body,
        headers=properties,
        reply_to=reply_to or "",
        content_type=properties.get(CONTENT_TYPE),
        correlation_id=properties.get(CORRELATION_ID),
        message_id=message.message_id,
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Return the decoded body."""
    return decode_message(message)


class MessageOptions(DelayOptions, total=False):
    """What a message has besides body and headers, as in `Message`; and `Producer.send`'s options."""

    tag: str | None
    keys: Sequence[str]
    ack: Ack | None
    ordering_key: str | None
    queue_id: int | None


class ReputResponse(Response):
    """A handler's result with the options of the message that is sent with it."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        options: MessageOptions | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options or MessageOptions()

    def as_publish_command(self) -> PublishCommand:
        """Return what publishers send."""
        return ReputPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            _publish_type=PublishType.PUBLISH,
        )


class ReputPublishCommand(BatchPublishCommand):
    """One or several messages to send.

    Attributes:
        destination: the topic.
        request: the message that they reply to, instead of a topic.
        timeout_s: how long to wait for a reply to them; the producer's own if None.
    """

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        options: MessageOptions | None = None,
        request: Delivered | None = None,
        timeout_s: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(body, *bodies, **common)
        self.options = options or MessageOptions()
        self.request = request
        self.timeout_s = timeout_s

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return `cmd` as a command of this class."""
        if isinstance(cmd, cls):
            return cmd
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *others,
            destination=cmd.destination,
            reply_to=cmd.reply_to,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            _publish_type=cmd.publish_type,
        )

    def properties(self, content_type: str | None) -> dict[str, str]:
        """Return the properties of the messages."""
        own = {CONTENT_TYPE: content_type, CORRELATION_ID: self.correlation_id, REPLY_TO: self.reply_to}
        return {name: value for name, value in own.items() if value} | self.headers
