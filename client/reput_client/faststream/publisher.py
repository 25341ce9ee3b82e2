"""Publishers: a topic to which a handler's result, or a program's message, is sent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from faststream import PublishCommand, PublishType
from faststream._internal.configs import BrokerConfig, PublisherSpecificationConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from reput_client.faststream.messages import MessageOptions, ReputPublishCommand, ReputStreamMessage
from reput_client.receipts import SendReceipt

if TYPE_CHECKING:
    from faststream._internal.configs import PublisherUsecaseConfig
    from faststream.types import PublisherMiddleware


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
        operation = Operation(Message(title=f"{self.name}:Message", payload=payload), bindings=None)
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
