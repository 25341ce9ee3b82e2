"""Sends what FastStream publishes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from reput_client.errors import RequesterGone
from reput_client.faststream.messages import Delivered, ReputPublishCommand, decode, parse
from reput_client.produce.producer import Producer
from reput_client.receipts import SendReceipt
from reput_protocol.record.message import Message

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.types import CustomCallable

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
                cmd.request,
                message.body,
                tag=message.tag,
                keys=message.keys,
                properties=message.properties,
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
