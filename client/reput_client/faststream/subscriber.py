"""Subscribers: a member of a consumer group whose messages FastStream's handlers get."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypedDict

from faststream import AckPolicy, PublishCommand, StreamMessage
from faststream._internal.configs import BrokerConfig, SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.utils import MultiLock
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import NackMessage, RejectMessage, SetupError
from faststream.message import AckStatus
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from reput_client.consume.group.consumer import Consumer
from reput_client.consume.group.failures import Decision, Failure, GiveBack, OnFailure, Verdict
from reput_client.consume.group.options import Mode
from reput_client.consume.group.subscriptions import Start
from reput_client.faststream.messages import Delivered, ReputPublishCommand, ReputStreamMessage, decode, parse
from reput_client.received import ReceivedMessage
from reput_client.security import TLS, Credentials

if TYPE_CHECKING:
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream._internal.producer import ProducerProto
    from faststream.response import Response

_DEAD_LETTER: Final = GiveBack(delay_level=-1, attempts_max=1)

_current: ContextVar[Delivered] = ContextVar("reput_delivered")
"""The message whose handling has failed in this task."""


class SubscriberOptions(TypedDict, total=False):
    """Arguments of `Consumer`."""

    tags: str
    sql: str | None
    start: Start
    mode: Mode
    orderly: bool
    handler_timeout_s: float
    prefetch_messages: int
    wait_for_topic: bool


@dataclass(kw_only=True)
class ReputBrokerConfig(BrokerConfig):
    """What a broker shares with its subscribers and publishers."""

    address: Sequence[str] = ()
    credentials: Credentials | None = None
    tls: TLS | None = None


@dataclass(kw_only=True)
class ReputSubscriberConfig(SubscriberUsecaseConfig):
    """The arguments of a subscriber."""

    _outer_config: ReputBrokerConfig
    topic: str
    group: str
    max_workers: int
    attempts_max: int | None
    options: SubscriberOptions

    @property
    def ack_policy(self) -> AckPolicy:
        """What becomes of a message by default; by default it is given back when its handler raises."""
        policy = self._ack_policy or self._outer_config.ack_policy or AckPolicy.NACK_ON_ERROR
        if policy is AckPolicy.ACK_FIRST:
            raise SetupError(
                "AckPolicy.ACK_FIRST would need a commit before each message; AckPolicy.ACK counts a message as "
                "handled even if its handler raises"
            )
        return policy


@dataclass(kw_only=True)
class ReputSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What a subscriber's description is made from."""

    topic: str


class ReputSubscriberSpecification(SubscriberSpecification[ReputBrokerConfig, ReputSubscriberSpecificationConfig]):
    """A subscriber's description in AsyncAPI."""

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """The topic."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel."""
        payload = resolve_payloads(self.get_payloads())
        operation = Operation(Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {self.name: SubscriberSpec(self.description, operation, None, self.topic)}


class ReputSubscriber(SubscriberUsecase[Delivered]):
    """A member of a group; a decorator of the handlers of its messages.

    Attributes:
        has_failed: whether an error, such as a deleted topic, has ended it.
    """

    _outer_config: ReputBrokerConfig

    def __init__(
        self,
        config: ReputSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Delivered],
    ) -> None:
        config.parser, config.decoder = parse, decode
        super().__init__(config, specification, calls)
        self._topic = config.topic
        self.group = config.group
        self.options = config.options
        self._max_workers = config.max_workers
        self._on_failure = _AsTheHandlerSays(config.attempts_max)
        self.has_failed = False
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[Any] | None] = set()
        self._fetched: tuple[ReceivedMessage, Delivered] | None = None

    @property
    def topic(self) -> str:
        """The topic, with the prefix of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    def new_consumer(self) -> Consumer:
        """Return a consumer that is not connected.

        Raises:
            InvalidName, FilterSyntaxError, ValueError, TypeError: an argument is not valid.
        """
        return Consumer(
            self._outer_config.address,
            group=self.group,
            topic=self.topic,
            on_failure=self._on_failure,
            credentials=self._outer_config.credentials,
            tls=self._outer_config.tls,
            **self.options,
        )

    async def start(self) -> None:
        """Join the group, and begin to handle messages if there are handlers.

        Raises:
            ReputError: as entering a `Consumer`.
        """
        if self._consumer is not None:
            return
        await super().start()
        consumer = self.new_consumer()
        await consumer.__aenter__()
        self._consumer = consumer
        self.has_failed = False
        self._post_start()
        if self.calls:
            self._task = asyncio.create_task(self._run(consumer))

    async def stop(self) -> None:
        """Take no more messages, wait for running handlers, commit and leave the group.

        Handlers that need longer than the broker's `graceful_timeout` are cancelled; their messages are redelivered. A
        handler may call it: the rest then happens when it has ended.
        """
        consumer, task = self._consumer, self._task
        if consumer is not None:
            consumer.stop()
        await super().stop()
        if consumer is None or asyncio.current_task() in self._handling:
            return
        self._consumer = self._task = None
        if task is None:
            await self._settle_fetched(consumer)
            await consumer.aclose()
            return
        if isinstance(self.lock, MultiLock) and not self.lock.empty:
            task.cancel()
        await asyncio.wait({task})

    async def _run(self, consumer: Consumer) -> None:
        try:
            await consumer.run(self._handle, concurrency=self._max_workers, handle_signals=False)
        except Exception as error:
            self.has_failed = True
            self._log(
                logging.CRITICAL, f"group {self.group} handles no more messages", self.get_log_context(None), error
            )
        finally:
            await consumer.aclose()

    async def _handle(self, received: ReceivedMessage) -> None:
        message = received._with_class(Delivered)
        task = asyncio.current_task()
        self._handling.add(task)
        try:
            await self.consume(message)
        finally:
            self._handling.discard(task)
        if message.outcome is not AckStatus.ACKED:
            _current.set(message)
            raise _reason(message)

    async def process_message(self, msg: Delivered) -> Response:
        """See `SubscriberUsecase`; keeps the handler's error."""
        try:
            return await super().process_message(msg)
        except Exception as error:
            msg.error = error
            raise

    async def get_one(self, *, timeout: float = 5.0) -> ReputStreamMessage | None:
        """Return the next message, or None after `timeout` seconds; for subscribers without handlers.

        The message before counts as handled, unless `nack` or `reject` was called.
        """
        if self.calls:
            raise SetupError("a subscriber with handlers passes its messages to them; use another one for get_one")
        if self._consumer is None:
            raise SetupError("the subscriber is not started; call start() first")
        await self._settle_fetched(self._consumer)
        received = await self._consumer.receive(timeout)
        if received is None:
            return None
        message = received._with_class(Delivered)
        self._fetched = received, message
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        parsed: ReputStreamMessage | None = await process_msg(  # type: ignore[assignment]
            message,
            middlewares=(middleware(message, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        return parsed

    async def __aiter__(self) -> AsyncIterator[ReputStreamMessage]:
        while (message := await self.get_one(timeout=math.inf)) is not None:
            yield message

    async def _settle_fetched(self, consumer: Consumer) -> None:
        if self._fetched is None:
            return
        (received, message), self._fetched = self._fetched, None
        if message.outcome not in (None, AckStatus.ACKED):
            _current.set(message)
            await consumer.failed(received, _reason(message))

    def _make_response_publisher(self, message: StreamMessage[Delivered]) -> Sequence[PublisherProto]:
        return (_ResponsePublisher(self._outer_config.producer, message),)

    def get_log_context(self, message: StreamMessage[Delivered] | None) -> dict[str, str]:
        """Return what log messages have."""
        return {"topic": self.topic, "group": self.group, **super().get_log_context(message)}


def _reason(message: Delivered) -> Exception:
    return message.error or (RejectMessage() if message.outcome is AckStatus.REJECTED else NackMessage())


class _AsTheHandlerSays(OnFailure):
    """Gives messages back, or makes them dead letters, according to their outcome."""

    def __init__(self, attempts_max: int | None) -> None:
        self._attempts_max = attempts_max
        GiveBack(attempts_max=attempts_max)  # it is valid

    async def decide(self, failure: Failure) -> Decision:
        message = _current.get()
        if message.outcome is not AckStatus.REJECTED:
            return await GiveBack(message.delay_level, self._attempts_max).decide(failure)
        if failure.broadcasting:
            return Verdict.HANDLED
        return await _DEAD_LETTER.decide(replace(failure, attempts=1))


class _ResponsePublisher(FakePublisher):
    """Sends the result of a handler to the program that asked."""

    def __init__(self, producer: ProducerProto[Any], message: StreamMessage[Delivered]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> ReputPublishCommand:
        command = ReputPublishCommand.from_cmd(super().patch_command(cmd))
        if self._message.raw_message.wants_reply:
            command.request = self._message.raw_message
        else:
            command.destination = self._message.reply_to
        return command
