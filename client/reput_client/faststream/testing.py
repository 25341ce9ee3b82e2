"""A test broker: handlers get what the program publishes, in memory and immediately."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload
from uuid import uuid4

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from reput_client.errors import ReplyTimeout
from reput_client.faststream.broker import ReputBroker
from reput_client.faststream.messages import Delivered, ReputProducer, ReputPublishCommand, ReputPublisher
from reput_client.faststream.subscriber import ReputSubscriber
from reput_client.receipts import SendReceipt
from reput_protocol.codes import AckLevel
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.record import Record, encode_record

_REPLY_S = 10.0


class TestReputBroker(TestBroker[ReputBroker, EnterType], broker=ReputBroker):
    """Replaces brokers by memory, within `async with`; see FastStream's documentation of test brokers.

    `publish` calls one handler of each group whose topic and filter match, and raises what it raises. Delays, retries
    and acknowledgement levels have no effect. With `with_real=True` a real broker is used.
    """

    @overload
    def __init__(
        self: TestReputBroker[ReputBroker],
        broker: ReputBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestReputBroker[tuple[ReputBroker, ...]],
        *brokers: ReputBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(self, *brokers: ReputBroker, with_real: bool = False, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: ReputBroker, publisher: ReputPublisher
    ) -> tuple[ReputSubscriber, bool]:
        """Return a subscriber of the publisher's topic, and whether the program declared it."""
        for subscriber in _subscribers(self.brokers):
            if subscriber.topic == publisher.topic:
                return subscriber, True
        group = f"test-{uuid4().hex}"
        return broker.subscriber(publisher.topic, group=group, start="latest", persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: ReputBroker) -> Generator[None]:
        producer = _MemoryProducer(broker, self.brokers)
        with change_producer(broker.config.broker_config, producer):
            yield

    async def _fake_connect(self, broker: ReputBroker, *args: Any, **kwargs: Any) -> None:
        pass

    def _fake_start(self, broker: ReputBroker, *args: Any, **kwargs: Any) -> None:
        if not self.with_real:
            broker.check_groups()
            for subscriber in _subscribers((broker,)):
                subscriber.new_consumer()  # its arguments are valid
        super()._fake_start(broker, *args, **kwargs)


class _MemoryProducer(ReputProducer):
    """Passes messages to subscribers instead of sending them."""

    def __init__(self, broker: ReputBroker, brokers: Sequence[ReputBroker]) -> None:
        config = broker.config
        super().__init__(config.broker_parser, config.broker_decoder)
        self.codec = config.broker_codec or self.codec
        self.serializer = config.fd_config._serializer
        self._brokers = brokers
        self._stored = 0

    async def publish(self, cmd: ReputPublishCommand) -> SendReceipt | None:
        (receipt,) = await self.publish_batch(cmd)
        return receipt

    async def publish_batch(self, cmd: ReputPublishCommand) -> list[SendReceipt]:
        receipts = []
        for message in await self.encode(cmd):
            record = self._store(message)
            for subscriber in self._matching(record):
                await subscriber.process_message(_delivered(record))
            receipts.append(_receipt(record))
        return receipts

    async def request(self, cmd: ReputPublishCommand) -> Delivered:
        (message,) = await self.encode(cmd)
        record = self._store(message)
        timeout_s = _REPLY_S if cmd.timeout_s is None else cmd.timeout_s
        for subscriber in self._matching(record):
            # Not `fail_after`: the handler may raise a TimeoutError of its own.
            with anyio.move_on_after(timeout_s) as scope:
                result = await subscriber.process_message(_delivered(record))
            if scope.cancelled_caught:
                correlation_id = cmd.correlation_id or ""
                raise ReplyTimeout(message.topic, correlation_id, timeout_s, is_stored=True)
            reply = ReputPublishCommand.from_cmd(result.as_publish_command())
            reply.destination = message.topic
            (message,) = await self.encode(reply)
            return _delivered(self._store(message))
        raise SubscriberNotFound(f"no subscriber of topic {message.topic!r} takes the request")

    def _store(self, message: Message) -> Record:
        record = Record(
            message.topic,
            bytes(message.body),
            queue_offset=self._stored,
            flag=message.flag,
            store_timestamp_ms=int(time.time() * 1000),
            properties=encode_properties_text(message, uuid4().hex.upper()),
        )
        self._stored += 1
        return record

    def _matching(self, record: Record) -> Iterator[ReputSubscriber]:
        groups = set()
        for subscriber in _subscribers(self._brokers):
            if subscriber.topic == record.topic and _wants(subscriber, record):
                if subscriber.group in groups and subscriber.options.get("mode") != "broadcasting":
                    continue
                groups.add(subscriber.group)
                yield subscriber


def _subscribers(brokers: Sequence[ReputBroker]) -> Iterator[ReputSubscriber]:
    for broker in brokers:
        for subscriber in broker.subscribers:
            if isinstance(subscriber, ReputSubscriber):
                yield subscriber


def _wants(subscriber: ReputSubscriber, record: Record) -> bool:
    sql = subscriber.options.get("sql")
    if sql is None:
        return TagFilter.parse(subscriber.options.get("tags")).matches_tag(record.tag)
    try:
        from reput_protocol.filter.sql import SqlFilter

        return SqlFilter.parse(sql).matches(record.properties)
    except ImportError as error:
        raise ImportError("lark is not installed; TestReputBroker needs it for subscribers with sql=") from error


def _delivered(record: Record) -> Delivered:
    return Delivered.of_record(bytes(encode_record(record)))


def _receipt(record: Record) -> SendReceipt:
    return SendReceipt(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp_ms,
        str(record.store_host),
        AckLevel.PAGE_CACHE,
        record.unique_key,
    )
