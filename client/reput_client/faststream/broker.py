"""The broker and routers, on which programs declare subscribers and publishers, and its security objects."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import anyio
from fast_depends import Provider, dependency_provider
from faststream import AckPolicy, ContextRepo, PublishType
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream._internal.parser import DefaultCodec
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

from reput_client.admin import Admin
from reput_client.errors import ReputError
from reput_client.faststream.messages import (
    Delivered,
    MessageOptions,
    ReputMessage,
    ReputProducer,
    ReputPublishCommand,
    ReputPublisher,
    ReputPublisherSpecification,
    ReputPublisherSpecificationConfig,
    ReputStreamMessage,
)
from reput_client.faststream.subscriber import (
    ReputBrokerConfig,
    ReputSubscriber,
    ReputSubscriberConfig,
    ReputSubscriberSpecification,
    ReputSubscriberSpecificationConfig,
    SubscriberOptions,
)
from reput_client.produce.producer import SEND_TIMEOUT_S, Producer
from reput_client.receipts import SendReceipt
from reput_client.security import TLS, Credentials
from reput_client.transport.options import takes
from reput_protocol.codes import Ack, AckLevel

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable
    from faststream.specification.schema import Tag, TagDict
    from faststream.types import BrokerMiddleware, LoggerProto


class _Declarations(Registrator[Delivered, ReputBrokerConfig]):
    """What brokers and routers have in common."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        *,
        group: str,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        attempts_max: int | None = None,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[SubscriberOptions],
    ) -> ReputSubscriber:
        """Return a decorator for handlers of a topic's messages.

        Args:
            topic: the topic; routers put their prefix in front of it.
            group: the consumer group. All its members, also in other programs, need the same topic and filter.
            max_workers: how many messages are handled at a time.
            ack_policy: what becomes of a message whose handler raises, by default `NACK_ON_ERROR`: it is given back,
                and redelivered to the group later. `REJECT_ON_ERROR`: it becomes a dead letter. `ACK`: it counts as
                handled. `MANUAL`: the handler calls `ack`, `nack` or `reject`; without a call it is given back.
            attempts_max: redeliveries until a message becomes a dead letter, with `orderly` attempts; None: the group's
                setting, with `orderly` no limit.
            no_reply: do not send results to programs that ask for them.
            dependencies, parser, decoder, codec: as of FastStream's other brokers.
            persistent: keep the subscriber even if the program does not.
            title, description, include_in_schema: for AsyncAPI.
            options: arguments of `Consumer`: `tags`, `sql`, `start`, `mode`, `orderly`, and others.
        """
        if max_workers < 1:
            raise SetupError(f"max_workers must be at least 1, not {max_workers}")
        calls: CallsCollection[Delivered] = CallsCollection()
        specification = ReputSubscriberSpecificationConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        subscriber = ReputSubscriber(
            ReputSubscriberConfig(
                _outer_config=self.config,  # type: ignore[arg-type]
                _ack_policy=ack_policy,
                topic=topic,
                group=group,
                max_workers=max_workers,
                attempts_max=attempts_max,
                no_reply=no_reply,
                options=options,
            ),
            ReputSubscriberSpecification(self.config, specification, calls),  # type: ignore[arg-type]
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(parser_=parser, decoder_=decoder, dependencies_=dependencies, codec_=codec)

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
        **options: Unpack[MessageOptions],
    ) -> ReputPublisher:
        """Return a publisher: an object with `publish`, and a decorator for handlers, whose results it sends.

        Args:
            topic: the topic; routers put their prefix in front of it.
            headers: properties of the messages.
            reply_to: the topic for the results of those that handle the messages.
            persistent: keep the publisher even if the program does not.
            title, description, schema, include_in_schema: for AsyncAPI.
            options: `tag`, `keys`, delays and others, for all messages.
        """
        specification = ReputPublisherSpecificationConfig(
            topic=topic, title_=title, description_=description, schema_=schema, include_in_schema=include_in_schema
        )
        publisher = ReputPublisher(
            PublisherUsecaseConfig(_outer_config=self.config),  # type: ignore[arg-type]
            ReputPublisherSpecification(self.config, specification),  # type: ignore[arg-type]
            topic,
            headers or {},
            reply_to,
            options,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher


@dataclass(frozen=True, kw_only=True)
class _Defaults:
    """The arguments that brokers and routers have in common."""

    dependencies: Sequence[Dependant] = ()
    middlewares: Sequence[BrokerMiddleware[Any, Any]] = ()
    routers: Iterable[ReputRouter] = ()
    parser: CustomCallable | None = None
    decoder: CustomCallable | None = None
    codec: CodecProto | None = None
    ack_policy: AckPolicy = EMPTY


@dataclass(frozen=True)
class ReputRouterOptions(_Defaults):
    """See `ReputRouter`."""

    prefix: str = ""
    _: KW_ONLY
    include_in_schema: bool | None = None


@dataclass(frozen=True)
class ReputBrokerOptions(_Defaults):
    """See `ReputBroker`."""

    address: str | Iterable[str] = "127.0.0.1:10911"
    _: KW_ONLY
    group: str = "reput-faststream"
    ack: Ack = AckLevel.FLUSHED
    timeout_s: float = SEND_TIMEOUT_S
    retries: int | None = None
    deduplicate: bool | None = None
    security: BaseSecurity | None = None
    tls: TLS | None = None
    graceful_timeout: float | None = 15.0
    apply_types: bool = True
    serializer: SerializerProto | None = EMPTY
    provider: Provider | None = None
    context: ContextRepo | None = None
    logger: LoggerProto | None = EMPTY
    log_level: int = logging.INFO
    specification_url: str | None = None
    description: str | None = None
    tags: Iterable[Tag | TagDict] = ()


class ReputRouter(_Declarations, BrokerRouter[Delivered, ReputBrokerConfig]):
    """Subscribers and publishers that `broker.include_router` adds to a broker.

    `prefix` is put in front of topics; the other arguments are defaults for all subscribers and publishers.
    """

    @takes(ReputRouterOptions)
    def __init__(self, options: ReputRouterOptions) -> None:
        config = ReputBrokerConfig(
            prefix=options.prefix,
            broker_dependencies=options.dependencies,
            broker_middlewares=options.middlewares,
            broker_parser=options.parser,
            broker_decoder=options.decoder,
            broker_codec=options.codec,
            ack_policy=options.ack_policy,
            include_in_schema=options.include_in_schema,
        )
        super().__init__(config=config, handlers=(), routers=options.routers)


class ReputBroker(_Declarations, BrokerUsecase[Delivered, Producer, ReputBrokerConfig]):
    """A Reput broker or cluster for a FastStream application.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        group: the producer group.
        ack: the acknowledgement level of messages: `page_cache`, `flushed` or `replicated`.
        timeout_s: seconds a send may take, with all repetitions.
        retries, deduplicate: how often a send is repeated, and that it is stored once; see `Producer`.
        security: the user, and how to encrypt: FastStream's `SASLPlaintext(user, secret)`, with `ssl_context=` or
            `use_ssl=True` for TLS, or `BaseSecurity` for TLS without a user. Only signatures by the secret are sent.
            Without a user, `REPUT_USER` and `REPUT_SECRET_FILE` or `REPUT_SECRET` name one.
        tls: how to encrypt, with files that are read again when they change.
        parser, decoder, codec, dependencies, middlewares, routers, ack_policy, graceful_timeout, apply_types,
            serializer, provider, context, logger, log_level: as of FastStream's other brokers.
        specification_url, description, tags: for AsyncAPI.
    """

    @takes(ReputBrokerOptions)
    def __init__(self, options: ReputBrokerOptions) -> None:
        address = options.address
        addresses = address.split(",") if isinstance(address, str) else list(address)
        credentials, tls = clients_security(options.security, options.tls)
        self._new_client = partial(
            Producer,
            addresses,
            group=options.group,
            ack=options.ack,
            timeout_s=options.timeout_s,
            retries=options.retries,
            deduplicate=options.deduplicate,
            credentials=credentials,
            tls=tls,
        )
        self._sender = ReputProducer(options.parser, options.decoder)
        super().__init__(
            config=ReputBrokerConfig(
                address=addresses,
                credentials=credentials,
                tls=tls,
                producer=self._sender,
                broker_parser=options.parser,
                broker_decoder=options.decoder,
                broker_codec=options.codec,
                broker_dependencies=options.dependencies,
                broker_middlewares=options.middlewares,
                ack_policy=options.ack_policy,
                graceful_timeout=options.graceful_timeout,
                fd_config=FastDependsConfig(
                    use_fastdepends=options.apply_types,
                    serializer=options.serializer,
                    provider=options.provider or dependency_provider,
                    context=options.context or ContextRepo(),
                ),
                logger=make_logger_state(options.logger, options.log_level, _LoggerStorage),
                extra_context={"broker": self},
                default_driver_annotations={ReputStreamMessage: ReputMessage},
            ),
            specification=BrokerSpec(
                url=[options.specification_url]
                if options.specification_url
                else [f"rocketmq://{each}" for each in addresses],
                protocol="rocketmq",
                protocol_version="5",
                description=options.description,
                tags=options.tags,
                security=options.security,
            ),
            routers=options.routers,
        )

    # -- life --------------------------------------------------------------------------------------------------

    async def _connect(self) -> Producer:
        client = self._new_client()
        await client.__aenter__()
        config = self.config.broker_config
        self._sender.serializer = config.fd_config._serializer
        self._sender.codec = config.broker_codec or DefaultCodec()
        self._sender.client = client
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers.

        Raises:
            SetupError: two subscribers of one group have different topics or filters.
            ReputError: as entering a `Producer` or a `Consumer`.
        """
        self.check_groups()
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, and disconnect."""
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if self._connection is not None:
                await self._connection.aclose()
            self._connection = self._sender.client = None

    async def ping(self, timeout: float | None = 3.0) -> bool:
        """Return whether the broker answers, and no error has ended a subscriber."""
        if self._connection is None or any(each.has_failed for each in self._members()):
            return False
        with anyio.move_on_after(timeout), suppress(ReputError):
            config = self.config.broker_config
            async with Admin(config.address, credentials=config.credentials, tls=config.tls) as admin:
                await admin.cluster_info()
                return True
        return False

    def check_groups(self) -> None:
        """Raise `SetupError` if subscribers of one group differ, so that each would miss the others' messages."""
        seen: dict[str, tuple[str, str, str | None]] = {}
        for subscriber in self._members():
            wanted = subscriber.topic, subscriber.options.get("tags", "*"), subscriber.options.get("sql")
            other = seen.setdefault(subscriber.group, wanted)
            if other != wanted:
                raise SetupError(
                    f"subscribers of group {subscriber.group!r} have different topics or filters, {other} and "
                    f"{wanted}; give each its own group"
                )

    def _members(self) -> list[ReputSubscriber]:
        return [each for each in self.subscribers if isinstance(each, ReputSubscriber)]

    # -- messages ----------------------------------------------------------------------------------------------

    async def publish(
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendReceipt:
        """Send a message and return its receipt.

        Args:
            message: the body: bytes, text, or what can be written as JSON.
            topic: the topic.
            headers: properties.
            reply_to: a topic for the result of the handler.
            correlation_id: a property by which results and logs are related; generated if None.
            options: `tag`, `keys`, a delay as of `Message`; `ack`, `ordering_key`, `queue_id` as of `Producer.send`.

        Raises:
            ReputError: as `Producer.send`.
        """
        command = ReputPublishCommand(
            message,
            destination=topic,
            headers=headers,
            reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
        receipt: SendReceipt = await self._basic_publish(command, producer=self.config.producer)
        return receipt

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        correlation_id: str | None = None,
        **options: Unpack[MessageOptions],
    ) -> list[SendReceipt]:
        """Send messages to one queue of a topic, in order, and return their receipts; options are for all of them.

        Raises:
            ReputError: as `Producer.send_batch`.
        """
        if not messages:
            return []
        command = ReputPublishCommand(
            *messages,
            destination=topic,
            headers=headers,
            reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
        receipts: list[SendReceipt] = await self._basic_publish_batch(command, producer=self.config.producer)
        return receipts

    async def request(  # type: ignore[override]
        self,
        message: Any,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
        **options: Unpack[MessageOptions],
    ) -> ReputStreamMessage:
        """Send a message and return the result of its handler (docs/request-reply.md).

        Raises:
            ReplyTimeout: there was none within `timeout` seconds (`timeout_s` of the broker if None).
            ReputError: as `Producer.request`.
        """
        command = ReputPublishCommand(
            message,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            timeout_s=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: ReputStreamMessage = await self._basic_request(command, producer=self.config.producer)
        return reply


class _LoggerStorage(DefaultLoggerStorage):
    """Makes the logger of a broker that is given none."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Topic and group are as wide as they are."""

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the broker's logger."""
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="reput",
                default_context={"topic": "", "group": ""},
                message_id_ln=32,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


@dataclass(frozen=True)
class _OfContext(TLS):
    """Connect with an SSL context that the application has made."""

    given: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """See `TLS`."""
        return super().context() if self.given is None else self.given


def clients_security(security: BaseSecurity | None, tls: TLS | None) -> tuple[Credentials | None, TLS | None]:
    """Return what clients take for `security`, and `tls` if that is given.

    Raises:
        SetupError: `security` is for another way to identify users, or both say how to encrypt.
        ValueError: the user or the secret is empty.
    """
    if security is None:
        return None, tls
    if not isinstance(security, SASLPlaintext) and type(security) is not BaseSecurity:
        raise SetupError(
            f"{type(security).__name__} is not supported; pass SASLPlaintext(user, secret), whose secret only signs "
            "the requests, or BaseSecurity for TLS without a user"
        )
    if security.use_ssl and tls is not None:
        raise SetupError("security= and tls= both say how to encrypt; leave ssl_context and use_ssl out, or tls=")
    credentials = None
    if isinstance(security, SASLPlaintext):
        credentials = Credentials(security.username, security.password)
    return credentials, _OfContext(given=security.ssl_context) if security.use_ssl else tls
