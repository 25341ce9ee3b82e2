"""Publishers: a topic to which a handler's result, or a program's message, is sent; and how it is sent."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from faststream import PublishCommand, PublishType
from faststream._internal.configs import BrokerConfig, PublisherSpecificationConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as DescribedMessage
from faststream.specification.schema import Operation, PublisherSpec

from reput_client.errors import RequesterGone
from reput_client.faststream.messages import (
    Delivered,
    MessageOptions,
    ReputPublishCommand,
    ReputStreamMessage,
    decode,
    parse,
)
from reput_client.produce.producer import Producer
from reput_client.receipts import SendReceipt
from reput_protocol.record.message import Message

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.configs import PublisherUsecaseConfig
    from faststream._internal.types import CustomCallable
    from faststream.types import PublisherMiddleware

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
        options: dict[str, Any] = {
            name: value for name, value in command.options.items() if name not in _OF_SENDS
        }
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

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
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
