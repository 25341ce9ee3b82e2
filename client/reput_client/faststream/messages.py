"""Messages as handlers get them, and how what handlers and programs publish is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, Unpack

from faststream import BatchPublishCommand, Context, PublishCommand, PublishType, Response, StreamMessage
from faststream._internal.configs import BrokerConfig, PublisherSpecificationConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import HandlerException, IncorrectState
from faststream.message import AckStatus, decode_message
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as DescribedMessage
from faststream.specification.schema import Operation, PublisherSpec

from reput_client.errors import RequesterGone
from reput_client.produce.producer import Producer
from reput_client.receipts import SendReceipt
from reput_client.received import PulledRecords, ReceivedMessage
from reput_protocol.codes import Ack
from reput_protocol.record.delays import DELAY_LEVELS_MS, DelayOptions, delay_level_of
from reput_protocol.record.message import Message

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.configs import PublisherUsecaseConfig
    from faststream._internal.types import CustomCallable
    from faststream.types import PublisherMiddleware

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


_OF_SENDS = ("ack", "ordering_key", "queue_id")


class ReputProducer(ProducerProto[ReputPublishCommand]):
    """Encodes messages and sends them with a `Producer`, while connected."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self.client: Producer | None = None

    async def encode(self, command: ReputPublishCommand) -> list[Message]:
        """Return the messages of a command; those of a reply have its request's topic.

        Raises:
            InvalidName, InvalidMessage: they cannot be sent.
        """
        topic = command.destination if command.request is None else command.request.topic
        options: dict[str, Any] = {name: value for name, value in command.options.items() if name not in _OF_SENDS}
        messages = []
        # An empty body is a message, too.
        for each in command.batch_bodies or (None,):
            body, content_type = await self.codec.encode(each, self.serializer)
            messages.append(Message(topic, body, properties=command.properties(content_type), **options))
        return messages

    async def publish(self, cmd: ReputPublishCommand) -> SendReceipt | None:
        """Send one message; None for a reply, which is not stored as others are."""
        (message,) = await self.encode(cmd)
        if cmd.request is None:
            return await self._connected.send(message, **_send_options(cmd))
        with suppress(RequesterGone):
            await self._connected.reply(
                cmd.request, message.body, tag=message.tag, keys=message.keys, properties=message.properties
            )
        return None

    async def publish_batch(self, cmd: ReputPublishCommand) -> list[SendReceipt]:
        """Send several messages of one topic to one of its queues."""
        return await self._connected.send_batch(await self.encode(cmd), **_send_options(cmd))

    async def request(self, cmd: ReputPublishCommand) -> Delivered:
        """Send one message and return the reply."""
        (message,) = await self.encode(cmd)
        reply = await self._connected.request(message, timeout_s=cmd.timeout_s, **_send_options(cmd))
        return reply._with_class(Delivered)

    @property
    def _connected(self) -> Producer:
        if self.client is None:
            raise IncorrectState("the broker is not connected; call connect() or start() first")
        return self.client


def _send_options(command: ReputPublishCommand) -> dict[str, Any]:
    return {name: value for name, value in command.options.items() if name in _OF_SENDS}


@dataclass(kw_only=True)
class ReputPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What a publisher's description is made from."""

    topic: str


class ReputPublisherSpecification(PublisherSpecification[BrokerConfig, ReputPublisherSpecificationConfig]):
    """A publisher's description in AsyncAPI."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(DescribedMessage(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {self.name: PublisherSpec(self.config.description_, operation, None, self.topic)}


class ReputPublisher(PublisherUsecase):
    """Sends to one topic; a decorator of handlers, whose results it sends."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: PublisherSpecification[Any, Any],
        topic: str,
        headers: dict[str, str],
        reply_to: str,
        options: MessageOptions,
    ) -> None:
        super().__init__(config, specification)
        self._topic = topic
        self._headers = headers
        self._reply_to = reply_to
        self._options = options

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendReceipt:
        """Send a message to the publisher's topic, or another one; arguments replace the publisher's.

        Raises:
            ReputError: as `Producer.send`.
        """
        command = ReputPublishCommand(
            message,
            destination=topic,
            headers=headers,
            reply_to=reply_to,
            correlation_id=correlation_id,
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
        receipt: SendReceipt = await self._basic_publish(
            self._completed(command), producer=self._outer_config.producer, _extra_middlewares=()
        )
        return receipt

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> ReputStreamMessage:
        """Send a message and return the result of its handler.

        Raises:
            ReputError: as `Producer.request`.
        """
        command = ReputPublishCommand(
            message,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            options=options,
            timeout_s=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: ReputStreamMessage = await self._basic_request(
            self._completed(command), producer=self._outer_config.producer
        )
        return reply

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """Send a handler's result."""
        await self._basic_publish(
            self._completed(ReputPublishCommand.from_cmd(cmd)),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )

    def _completed(self, command: ReputPublishCommand) -> ReputPublishCommand:
        command.destination = command.destination or self.topic
        command.correlation_id = command.correlation_id or self._outer_config.id_generator()
        command.reply_to = command.reply_to or self._reply_to
        command.options = {**self._options, **command.options}
        command.add_headers(self._headers, override=False)
        return command
