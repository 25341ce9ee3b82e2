"""Spans of puts and of deliveries (docs/tracing.md), if the configuration names a receiver for them.

A put's span is a child of its producer's, whose context is in the message's properties; a delivery's links to those of
its messages. A request without such a context begins a trace with the probability `tracing.sample_ratio`.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from reput_broker.config.sections import TracingConfig
from reput_broker.observe.counters import RequestTraffic
from reput_broker.observe.metrics import response_name
from reput_broker.observe.span_exporter import FinishedSpan, SpanExporter, TraceContext
from reput_broker.remoting.request import Handled, Handler, Put, Request, Response, Result
from reput_broker.store.base.results import Block, PutResult
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import Content, named_fields
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import scan_records
from reput_protocol.kernel.tables import property_places
from reput_protocol.names import Names
from reput_protocol.properties import find_property
from reput_protocol.record.put_block import decode_batch

CONTEXTS_MAX: Final = 128
"""Contexts of one request or answer that are used."""

_NAME: Final = b"traceparent"
_VALUE: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:$|-)")
_SAMPLED: Final = 1
_LOOK_BYTES: Final = 1 << 20
"""Only so much of a block or an answer is looked at: about a millisecond."""
_BATCH_MAX: Final = 1024
"""Messages of a batch of RocketMQ's clients, which is read here without giving way to other tasks."""
_TOPIC: Final = "messaging.destination.name"
_QUEUE: Final = "messaging.destination.partition.id"
_TOPIC_MAX: Final = 255
_TOPICS: Final = {
    code: next(field.path for field in named_fields(row.header) if field.names is Names.TOPIC)
    for code, row in REQUESTS.items()
    if row.content is Content.PUT
}
"""Header fields with the topic, by the request codes of puts."""
_PROPERTIES: Final = {RequestCode.SEND_MESSAGE.value: "properties", RequestCode.SEND_MESSAGE_V2.value: "i"}
"""Header fields with the properties of a single message, by request code."""


@dataclass(eq=False, repr=False)
class Spans:
    """Makes the spans of one broker and passes them to `exporter`."""

    _exporter: SpanExporter
    _config: TracingConfig

    def traced(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, those of puts with spans."""
        return {code: partial(self._put, handle) if code in _TOPICS else handle for code, handle in handlers.items()}

    def delivered(
        self, request: Request, header: PullMessageHeader, began_at: float, count: int, records: bytes
    ) -> None:
        """Make the span of an answer to a pull, which was begun at `began_at` of the monotonic clock."""
        links, is_sampled = self._contexts(_values_in(records))
        if not is_sampled:
            return
        attributes = _attributes("deliver", header.topic, request)
        attributes[_QUEUE] = str(header.queue_id)
        attributes["messaging.consumer.group.name"] = header.consumer_group
        attributes["messaging.batch.message_count"] = count
        span = FinishedSpan(
            f"deliver {header.topic}", _new_context(None), None, links, _wall_ns(began_at), time.time_ns(), attributes
        )
        self._exporter.add(span)

    def _put(self, handle: Handler, request: Request) -> Result:
        parents, is_sampled = self._contexts(_values_put(request))
        if not is_sampled:
            return handle(request)
        topic = str(request.ext.get(_TOPICS[request.header.code], ""))[:_TOPIC_MAX]
        span = _PutSpan(self._exporter, request, parents, topic)
        request.traffic = span
        result = handle(request)
        return span.noted_later(result) if isinstance(result, Awaitable) else span.noted(result)

    def _contexts(self, values: Iterable[bytes]) -> tuple[list[TraceContext], bool]:
        """Return the contexts of sampled spans in values of `traceparent`, and whether to make a span."""
        found: dict[TraceContext, None] = {}
        is_any = False
        for value in dict.fromkeys(values):  # messages of one call have the same
            match = _VALUE.match(value)
            if match is None:
                continue
            trace_id, span_id, flags = (int(part, 16) for part in match.groups())
            if not trace_id or not span_id:
                continue
            is_any = True
            if flags & _SAMPLED:
                found[TraceContext(trace_id, span_id)] = None
                if len(found) == CONTEXTS_MAX:
                    break
        return list(found), bool(found) or (not is_any and random.random() < self._config.sample_ratio)


def _values_put(request: Request) -> Iterable[bytes]:
    """Return the values of `traceparent` in the messages of a put; none if it is not valid or a very large batch."""
    code = request.header.code
    if code == RequestCode.PUT_MESSAGE:
        return _values_in(request.body)
    if code == RequestCode.SEND_BATCH_MESSAGE:
        try:
            texts = [item.properties for item in decode_batch(request.body, _BATCH_MAX)]
        except RecordMalformed:
            return ()
    else:
        texts = [str(request.ext.get(_PROPERTIES[code], "")).encode(errors="replace")]
    return filter(None, (find_property(text, _NAME) for text in texts))


def _values_in(records: Buffer) -> Iterator[bytes]:
    """Return the values of `traceparent` in records, as many as are valid."""
    table = scan_records(records, 0, min(len(records), _LOOK_BYTES))[0]
    places = property_places(records, table, _NAME)
    view = memoryview(records)
    for at, size in zip(places[::2], places[1::2], strict=True):
        if size:
            yield bytes(view[at : at + size])


class _PutSpan(RequestTraffic):
    """The span of one put, from its arrival to its answer; it stands in for the counters that note the answer."""

    __slots__ = ("_attributes", "_counters", "_exporter", "_parents", "_started_at_ns", "_stored_at_ns")

    def __init__(self, exporter: SpanExporter, request: Request, parents: list[TraceContext], topic: str) -> None:
        self._exporter = exporter
        self._counters = request.traffic
        self._parents = parents
        self._attributes = _attributes("store", topic, request)
        self._started_at_ns = _wall_ns(request.received_at)
        self._stored_at_ns: int | None = None

    def noted(self, result: Handled) -> Handled:
        """Note what is to be stored."""
        if not isinstance(result, Put):
            return result
        self._attributes["reput.ack"] = result.ack.value
        if isinstance(result.work, Block):
            self._attributes[_QUEUE] = str(result.work.queue_id)
        answer = result.answer

        def stored(stored: PutResult) -> Response:
            self._stored_at_ns = time.time_ns()
            self._attributes["messaging.batch.message_count"] = stored.count
            return answer(stored)

        result.answer = stored
        return result

    async def noted_later(self, work: Awaitable[Handled]) -> Handled:
        """Await the handler, and note what is to be stored."""
        return self.noted(await work)

    def done(self, response_code: int, duration_s: float, count: int = 1) -> None:
        """End the span with the answer."""
        self._counters.done(response_code, duration_s, count)
        self._end(None if response_code == 0 else response_name(response_code))

    def abandoned(self, count: int = 1) -> None:
        """End the span without an answer: the connection has ended."""
        self._counters.abandoned(count)
        self._end("connection_lost")

    def _end(self, error: str | None) -> None:
        now = time.time_ns()
        # Messages of several traces may share a block: each trace gets the span.
        for parent in self._parents or (None,):
            self._exporter.add(
                FinishedSpan(
                    f"store {self._attributes[_TOPIC]}",
                    _new_context(parent),
                    parent,
                    (),
                    self._started_at_ns,
                    now,
                    self._attributes,
                    error,
                    self._stored_at_ns,
                )
            )


def _attributes(operation: str, topic: str, request: Request) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": operation,
        _TOPIC: topic,
    }
    host, _, port = request.client.peer.rpartition(":")
    if port.isdecimal():
        attributes["client.address"], attributes["client.port"] = host.strip("[]"), int(port)
    return attributes


def _new_context(parent: TraceContext | None) -> TraceContext:
    trace_id = random.getrandbits(128) or 1 if parent is None else parent.trace_id
    return TraceContext(trace_id, random.getrandbits(64) or 1)


def _wall_ns(at: float) -> int:
    """Return a moment of the monotonic clock as nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - at) * 1e9)
