"""What OpenTelemetry gets of sends and of the handling of messages; `reput_client.otel` switches it on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode

from reput_client.errors import DamagedMessage, PartlySent
from reput_client.receipts import SendReceipt, TransactionReceipt
from reput_client.received import R, ReceivedMessage
from reput_protocol.properties import DELAY, TIMER_DELIVER_MS
from reput_protocol.record.message import Message

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from reput_client.produce.block import PostedMessage

_NAME: Final = "reput_client"
_SYSTEM: Final = ("messaging.system", "rocketmq")
_DESTINATION: Final = "messaging.destination.name"
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_GROUP: Final = "messaging.consumer.group.name"
_ERROR: Final = "error.type"
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The buckets that the conventions advise."""


class Tracing:
    """Records what the clients do. Created by `reput_client.otel.instrument`."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
        *,
        same_trace: bool,
    ) -> None:
        self.tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        self._same_trace = same_trace
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        self.operation_seconds = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sends, from the call to its outcome.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.sent_messages = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that producers attempted to send."
        )
        self._process_seconds = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of the handling of a message.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._consumed_messages = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages delivered to the application."
        )

    # -- producers -------------------------------------------------------------------------------------------------

    def sending(self, message: Message, kind: str | None = None) -> Sending:
        """Return the span of a send of one message. `kind`: RocketMQ's type of the message, if it is not in it."""
        attributes: dict[str, AttributeValue] = {"messaging.message.body.size": len(message.body)}
        attributes |= _tag_and_keys(message)
        if message.delay is not None:
            if message.delay.is_priority:
                kind = kind or "priority"
            elif message.is_delayed:
                kind = kind or "delay"
            if message.delay.name == DELAY:
                attributes["messaging.rocketmq.message.delay_time_level"] = int(message.delay.value)
            elif message.delay.name == TIMER_DELIVER_MS:
                attributes["messaging.rocketmq.message.delivery_timestamp"] = int(message.delay.value)
        attributes["messaging.rocketmq.message.type"] = kind or "normal"
        return Sending(self, message.topic, attributes, _context_in(message.properties))

    def sending_copy(self, topic: str | None) -> Sending:
        """Return the span of a send of one message that is made from another; `topic` may be unknown."""
        return Sending(self, topic, {}, None)

    def sending_many(self, topic: str | None = None) -> Sending:
        """Return the span of one send of many messages, of `topic` or else of the messages' only topic."""
        return Sending(self, topic, {}, None, is_single=False)

    # -- consumers -------------------------------------------------------------------------------------------------

    def handler(self, handler: Callable[[R], Awaitable[object]], group: str) -> Callable[[R], Awaitable[object]]:
        """Return a coroutine function that calls `handler` within a span."""

        async def handle(message: R) -> None:
            with self.processing(message, group):
                await handler(message)

        return handle

    def plain_handler(self, handler: Callable[[R], object], group: str) -> Callable[[R], object]:
        """Return a function that calls `handler` within a span."""

        def handle(message: R) -> None:
            with self.processing(message, group):
                handler(message)

        return handle

    @contextmanager
    def processing(self, message: ReceivedMessage, group: str) -> Generator[None]:
        """Make a span for the handling of a message the current one; an exception is recorded and raised."""
        common: dict[str, AttributeValue] = dict([_SYSTEM])
        common |= {_OPERATION: "process", _DESTINATION: message.topic, _GROUP: group}
        attributes: dict[str, AttributeValue] = {**common, _OPERATION_TYPE: "process"}
        attributes["messaging.destination.partition.id"] = str(message.queue_id)
        context, links = None, []
        with suppress(DamagedMessage):
            properties = message.properties
            attributes["messaging.message.id"] = message.message_id
            attributes |= _tag_and_keys(message)
            origin = _context_in(properties)
            if origin is not None:
                links.append(Link(origin))
                if self._same_trace:
                    context = propagate.extract(properties)
        started_at = perf_counter()
        with self.tracer.start_as_current_span(
            f"process {message.topic}", context, SpanKind.CONSUMER, attributes, links, set_status_on_exception=False
        ) as span:
            try:
                yield
            except BaseException as error:
                common[_ERROR] = _error_type(error)
                _fail(span, error)
                raise
            finally:
                self._consumed_messages.add(1, common)
                self._process_seconds.record(perf_counter() - started_at, common)


class Sending:
    """The span of one send, from the call to its outcome; a context manager, or ended by `of_posted`.

    It is not the current span: tasks that the client starts meanwhile, and that outlive it, would inherit it.
    """

    def __init__(
        self,
        tracing: Tracing,
        topic: str | None,
        attributes: dict[str, AttributeValue],
        own_context: SpanContext | None,
        *,
        is_single: bool = True,
    ) -> None:
        """`own_context`: what the application has put into its only message, which is kept and linked to."""
        self._tracing = tracing
        self._topics = set() if topic is None else {topic}
        self._is_single = is_single
        self._count = 1 if is_single else 0
        attributes.update([_SYSTEM, (_OPERATION, "send"), (_OPERATION_TYPE, "send")])
        if topic is not None:
            attributes[_DESTINATION] = topic
        self._span: Span = tracing.tracer.start_span(
            "send" if topic is None else f"send {topic}",
            kind=SpanKind.PRODUCER if own_context is None else SpanKind.CLIENT,
            attributes=attributes,
            links=() if own_context is None else (Link(own_context),),
        )
        self._carrier: dict[str, str] = {}
        if own_context is None:
            propagate.inject(self._carrier, trace.set_span_in_context(self._span))
        self._started_at = perf_counter()

    def injected(self, message: Message) -> Message:
        """Return the message with the span's context; a message that has a context already is linked to instead."""
        if not self._is_single:
            self._count += 1
            self._topics.add(message.topic)
            own = _context_in(message.properties)
            if own is not None:
                self._span.add_link(own)
                return message
        if not self._carrier:
            return message
        message = copy(message)
        message.properties = {**message.properties, **self._carrier}
        return message

    def each_injected(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Return `injected` of each message."""
        return map(self.injected, messages)

    def added_to(self, properties: Mapping[str, str] | None) -> Mapping[str, str] | None:
        """Return properties, for all messages of the call, with the span's context, unless they have one."""
        own = _context_in(properties or {})
        if own is not None:
            self._span.add_link(own)
            return properties
        return {**(properties or {}), **self._carrier} if self._carrier else properties

    def current(self) -> AbstractContextManager[object]:
        """Make the span the current one, for code of the application that is called within the send."""
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.end(error=error)

    def of_posted(self, posted: PostedMessage) -> None:
        """End with the outcome of a posted message."""
        block, number = posted.block, posted.number

        def end() -> None:
            self.end(block.receipt_of(number), error=block.error_of(number))

        if block.done:
            end()
        else:
            block.ends_of_spans.append(end)

    def end(self, result: object = None, *, error: BaseException | None = None) -> None:
        """End with what the call returned, or with its error."""
        span, tracing = self._span, self._tracing
        common: dict[str, AttributeValue] = dict([_SYSTEM, (_OPERATION, "send")])
        if len(self._topics) == 1:
            (topic,) = self._topics
            common[_DESTINATION] = topic
            span.update_name(f"send {topic}")
            span.set_attribute(_DESTINATION, topic)
        if self._is_single:
            receipt = result.half if isinstance(result, TransactionReceipt) else result
            if isinstance(receipt, SendReceipt):
                host, _, port = receipt.store_host.rpartition(":")
                span.set_attributes(
                    {
                        "messaging.message.id": receipt.message_id,
                        "messaging.destination.partition.id": str(receipt.queue_id),
                        "server.address": host,
                        "server.port": int(port) if port.isdecimal() else 0,
                    }
                )
        else:
            if isinstance(result, Sequence):
                self._count = len(result)
            elif isinstance(error, PartlySent):
                self._count = max(self._count, len(error.receipts))
            span.set_attribute("messaging.batch.message_count", self._count)
        if error is not None:
            common[_ERROR] = _error_type(error)
            _fail(span, error)
        if self._count:
            tracing.sent_messages.add(self._count, common)
        tracing.operation_seconds.record(perf_counter() - self._started_at, {**common, _OPERATION_TYPE: "send"})
        span.end()


def _tag_and_keys(message: Message | ReceivedMessage) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {}
    if message.tag is not None:
        attributes["messaging.rocketmq.message.tag"] = message.tag
    if message.keys:
        attributes["messaging.rocketmq.message.keys"] = message.keys
    return attributes


def _context_in(properties: Mapping[str, str]) -> SpanContext | None:
    """Return the span context that a message carries, or None."""
    if not properties:
        return None
    found = trace.get_current_span(propagate.extract(properties, Context())).get_span_context()
    return found if found.is_valid else None


def _error_type(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fail(span: Span, error: BaseException) -> None:
    span.set_attribute(_ERROR, _error_type(error))
    span.set_status(StatusCode.ERROR, str(error))
