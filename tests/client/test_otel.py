"""Spans and metrics of the client, the same under trio, asyncio and the blocking API."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from reput_client import Message, PostsFailed, TransactionState, otel
from reput_client.errors import BrokerError, InvalidMessage
from reput_client.transport.client import Client
from reput_protocol.codes import RequestCode, ResponseCode
from support.faces import Face, scenario
from support.fake_pops import Pops
from support.fakes import Answer, FakeBroker

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Recorded:
    """What was recorded since the start of the test."""

    def __init__(self, *, same_trace: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        otel.instrument(tracer_provider=provider, meter_provider=MeterProvider([self._reader]), same_trace=same_trace)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        (span,) = self.spans(name)
        return span

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    yield Recorded()
    otel.uninstrument()


def traceparent(span: ReadableSpan) -> str:
    context = span.context
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@scenario
async def test_a_value_has_the_size_of_its_body(face: Face, broker: FakeBroker, recorded: Recorded) -> None:
    async with face.Producer(broker.address, serializer=str.encode) as producer:
        await producer.send(Message("orders", value="seven"))
        await producer.send_batch([Message("orders", value="eight")])
        await face.post_all(producer, [Message("orders", value="nine")])
        with pytest.raises(InvalidMessage, match="TypeError"):
            await producer.send(Message("orders", value=7))
    assert sum(map(len, broker.log.values())) == 3
    sizes = [(span.attributes or {}).get("messaging.message.body.size") for span in recorded.spans("send orders")]
    assert sizes[0] == 5


async def send_one(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address) as producer:
        await producer.send(Message("orders", b""))


async def consumed(face: Face, broker: FakeBroker, count: int, **options: Any) -> list[Any]:
    """Handle `count` messages with `run`."""
    messages: list[Any] = []
    async with face.Consumer(broker.address, group="billing", topic="orders") as consumer:

        async def handle(message: Any) -> None:
            messages.append(message)
            if len(messages) == count:
                consumer.stop()

        await consumer.run(handle, **options)
    return messages


@scenario
async def test_a_message_takes_the_producers_context_to_the_consumer(
    face: Face, broker: FakeBroker, recorded: Recorded
) -> None:

    async with face.Producer(broker.address) as producer:
        receipt = await producer.send(Message("orders", b"body", tag="paid", keys=["k1", "k2"]))
    (message,) = await consumed(face, broker, 1)
    sent, processed = recorded.span("send orders"), recorded.span("process orders")
    assert message.get_property("traceparent") == traceparent(sent)
    assert sent.kind is SpanKind.PRODUCER
    assert processed.kind is SpanKind.CONSUMER
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert processed.parent is None
    host, port = receipt.store_host.split(":")
    both = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(receipt.queue_id),
        "messaging.message.id": receipt.message_id,
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
    }
    assert dict(sent.attributes or {}) == {
        **both,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.rocketmq.message.type": "normal",
        "messaging.message.body.size": 4,
        "server.address": host,
        "server.port": int(port),
    }
    assert dict(processed.attributes or {}) == {
        **both,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
    }
    for metric, span in (("client.operation", sent), ("process", processed)):
        (duration,) = recorded.points(f"messaging.{metric}.duration")
        assert duration.count == 1
        assert duration.attributes["messaging.destination.name"] == "orders"
        assert span.status.status_code is StatusCode.UNSET
    assert [point.value for point in recorded.points("messaging.client.sent.messages")] == [1]
    assert [point.value for point in recorded.points("messaging.client.consumed.messages")] == [1]


@scenario
async def test_each_way_to_send_has_one_span(face: Face, broker: FakeBroker, recorded: Recorded) -> None:

    async with face.Producer(broker.address) as producer:
        await producer.send(message=Message("orders", b"1"))
        await producer.send_oneway(Message("orders", b"2"))
        await producer.send_batch([Message("orders", b"3"), Message("orders", b"4")])
        await producer.send_batch(Message("orders", b"%d" % n) for n in (5, 6, 7))
        await producer.send_many("orders", [b"8", b"9"], properties={"own": "1"})
        first, last = (await producer.post(Message("orders", b"10")), await producer.post(Message("orders", b"11")))
        await producer.flush()
        assert first.done
        assert last.done
    async with face.Producer(broker.address, linger_s=0.001) as producer:
        await producer.send(Message("orders", b"12"))
    messages = await consumed(face, broker, 11)  # the fake broker keeps no one-way message
    carried: dict[str, set[int]] = {}
    for message in messages:
        carried.setdefault(message.get_property("traceparent"), set()).add(int(message.body))
    spans = recorded.spans("send orders")
    found = {
        frozenset(carried.get(traceparent(span), ())): (span.attributes or {}).get("messaging.batch.message_count")
        for span in spans
    }
    assert len(spans) == len(found) == 8
    assert found == {
        frozenset({1}): None,
        frozenset(): None,
        frozenset({3, 4}): 2,
        frozenset({5, 6, 7}): 3,
        frozenset({8, 9}): 2,
        frozenset({10}): None,
        frozenset({11}): None,
        frozenset({12}): None,
    }
    assert [point.value for point in recorded.points("messaging.client.sent.messages")] == [12]


@scenario
async def test_a_context_of_the_application_is_kept_and_linked_to(
    face: Face, broker: FakeBroker, recorded: Recorded
) -> None:

    own = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    async with face.Producer(broker.address) as producer:
        await producer.send(Message("orders", b"", properties=own))
        await producer.send_batch([Message("orders", b"", properties=own)])
    for message in await consumed(face, broker, 2):
        assert {name: message.get_property(name) for name in own} == own
    sent = recorded.spans("send orders")
    assert [span.kind for span in sent] == [SpanKind.CLIENT, SpanKind.PRODUCER]
    for span in (*sent, *recorded.spans("process orders")):
        assert [format(link.context.span_id, "016x") for link in span.links] == [PARENT]


@scenario
async def test_spans_belong_to_the_current_one(face: Face, broker: FakeBroker, recorded: Recorded) -> None:

    async with face.Producer(broker.address) as producer:
        with recorded.tracer.start_as_current_span("request") as request:
            await producer.send(Message("orders", b""))
        async with face.Consumer(broker.address, group="billing", topic="orders") as consumer:

            async def handle(message: Any) -> None:
                await producer.send(Message("bills", message.body))
                consumer.stop()

            await consumer.run(handle, concurrency=2)
    sent, processed, billed = (recorded.span(f"{n}") for n in ("send orders", "process orders", "send bills"))
    assert sent.parent == request.get_span_context()
    assert billed.parent is not None
    assert billed.parent.span_id == processed.context.span_id


@scenario
async def test_a_local_transaction_runs_in_the_span_of_its_message(
    face: Face, broker: FakeBroker, recorded: Recorded
) -> None:
    for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.END_TRANSACTION):
        broker.behave(code, Answer())

    async def check(message: Any) -> TransactionState:
        return TransactionState.UNKNOWN

    during: list[trace.Span] = []

    async def pay(message: Any) -> TransactionState:
        during.append(trace.get_current_span())
        assert message.properties["traceparent"]
        return TransactionState.COMMIT

    async with face.TransactionProducer(broker.address, group="shop", check=check) as producer:
        receipt = await producer.send_in_transaction(Message("orders", b""), pay)
    span = recorded.span("send orders")
    assert [one.get_span_context() for one in during] == [span.context]
    attributes = span.attributes or {}
    assert attributes["messaging.rocketmq.message.type"] == "transaction"
    assert attributes["messaging.message.id"] == receipt.message_id


@scenario
async def test_copies_and_replies_carry_the_context_of_their_own_send(
    face: Face, broker: FakeBroker, recorded: Recorded
) -> None:

    async with face.Producer(broker.address) as producer:
        await producer.send(Message("orders", b"1"))
        (message,) = await consumed(face, broker, 1)
        await producer.forward(message, "archive")
        with pytest.raises(InvalidMessage, match="is not a request"):
            await producer.reply(message, b"")
    sent, copied = recorded.span("send orders"), recorded.span("send archive")
    assert sent.context.span_id != copied.context.span_id
    (header, _) = broker.parked[-1]
    assert traceparent(copied) in str(header)
    assert recorded.span("send").status.status_code is StatusCode.ERROR


@scenario
async def test_a_refusal_is_recorded(face: Face, broker: FakeBroker, recorded: Recorded) -> None:

    broker.behave(RequestCode.PUT_MESSAGE, Answer(ResponseCode.NO_PERMISSION, remark="read only"))
    async with face.Producer(broker.address) as producer:
        with pytest.raises(BrokerError):
            await producer.send(Message("orders", b""))
        await producer.post(Message("orders", b""))
        with pytest.raises(PostsFailed):
            await producer.flush()
    for span in recorded.spans("send orders"):
        assert span.status.status_code is StatusCode.ERROR
        assert "read only" in (span.status.description or "")
        assert str((span.attributes or {})["error.type"]).startswith("reput_")
    points = recorded.points("messaging.client.operation.duration")
    assert sum(point.count for point in points) == 2
    assert all("error.type" in point.attributes for point in points)


@scenario
async def test_a_handler_that_raises_is_recorded_and_its_message_given_back(
    face: Face, broker: FakeBroker, recorded: Recorded
) -> None:

    await send_one(face, broker)
    async with face.Consumer(broker.address, group="billing", topic="orders") as consumer:

        async def handle(message: Any) -> None:
            consumer.stop()
            raise KeyError("price")

        await consumer.run(handle)
    assert broker.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 1
    span = recorded.span("process orders")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KeyError"
    assert [event.name for event in span.events] == ["exception"]


@scenario
async def test_popped_messages_are_handled_in_spans(face: Face, broker: FakeBroker, recorded: Recorded) -> None:
    Pops(broker).waiting = [b"0"]
    async with face.PopConsumer(broker.address, group="billing", topic="t", orderly=False) as consumer:

        async def handle(_: Any) -> None:
            assert trace.get_current_span().is_recording()
            consumer.stop()

        await consumer.run(handle)
    assert (recorded.span("process t").attributes or {})["messaging.consumer.group.name"] == "billing"


@scenario
async def test_an_iterating_program_makes_the_span_itself(face: Face, broker: FakeBroker, recorded: Recorded) -> None:

    await send_one(face, broker)
    async with face.Consumer(broker.address, group="billing", topic="orders") as consumer:
        async for message in consumer:
            with otel.processing(message, "billing"):
                assert trace.get_current_span().is_recording()
            break
    assert recorded.span("process orders").links


@pytest.mark.parametrize("face", ["trio"], indirect=True)
@scenario
async def test_consumers_continue_the_trace_if_asked_to(face: Face, broker: FakeBroker) -> None:
    recorded = Recorded(same_trace=True)
    try:
        await send_one(face, broker)
        await consumed(face, broker, 1)
    finally:
        otel.uninstrument()
    sent, processed = recorded.span("send orders"), recorded.span("process orders")
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert processed.context.trace_id == sent.context.trace_id


@pytest.mark.parametrize("face", ["asyncio"], indirect=True)
@scenario
async def test_without_an_sdk_nothing_is_added(face: Face, broker: FakeBroker) -> None:
    otel.instrument(tracer_provider=trace.NoOpTracerProvider())  # as if none was set
    try:
        await send_one(face, broker)
        (message,) = await consumed(face, broker, 1)
    finally:
        otel.uninstrument()
    assert set(message.properties) <= {"UNIQ_KEY", "MIN_OFFSET", "MAX_OFFSET"}
    assert Client._tracing is None


def test_the_client_imports_opentelemetry_only_if_asked() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
import reput_client, reput_client.blocking
for name in dir(reput_client): getattr(reput_client, name)
try: import reput_client.otel
except ImportError as error: print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install the extra otel" in done.stdout
