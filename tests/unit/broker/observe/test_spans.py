"""Spans of puts and deliveries, as a receiver of OpenTelemetry's protocol gets them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from reput_broker.background import BackgroundBroker
from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.observe import span_exporter
from reput_broker.observe.span_exporter import FinishedSpan, SpanExporter, TraceContext
from reput_broker.store.message_reader import MessageReader
from reput_client.blocking import Consumer, Message, Producer, PullConsumer
from reput_client.errors import BrokerError
from reput_protocol.codes import RequestCode
from reput_protocol.record.put_block import BatchItem, encode_batch
from reput_protocol.wire.header import HeaderType
from support.otlp_receiver import Receiver, attributes, receiving_spans
from support.raw_client import RawClient, in_letters
from support.scrapes import read, value
from support.waiting import wait_until

TRACE, OTHER = "0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "b7ad6b7169203331"

NewBroker = Callable[..., BackgroundBroker]


def traceparent(trace_id: str = TRACE, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-{PARENT}-{flags}"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving_spans() as found:
        yield found


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "_INTERVAL_S", 0.05)


@pytest.fixture
def broker(new_reput_broker: NewBroker, receiver: Receiver) -> BackgroundBroker:
    return new_reput_broker(tracing={"endpoint": receiver.url})


def test_a_put_is_a_child_of_its_producers_span_and_a_delivery_links_to_it(
    broker: BackgroundBroker, receiver: Receiver
) -> None:
    before_ns = time.time_ns()
    with Producer(broker.address) as producer:
        receipt = producer.send(Message("orders", b"one", tag="paid", properties=traceparent()))
    with Consumer(broker.address, group="billing", topic="orders") as consumer:
        assert consumer.receive(10.0) is not None
    (put,), (delivery,) = receiver.wait(1, "store"), receiver.wait(1, "deliver")
    assert put.name == "store orders"
    assert put.trace_id.hex() == TRACE
    assert put.parent_span_id.hex() == PARENT
    assert put.kind == Span.SPAN_KIND_SERVER
    shown = attributes(put)
    assert shown.pop("client.port") > 0
    assert shown == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "store",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(receipt.queue_id),
        "messaging.batch.message_count": 1,
        "reput.ack": "flushed",
        "client.address": "127.0.0.1",
    }
    (stored,) = put.events
    assert stored.name == "stored"
    times = [before_ns, put.start_time_unix_nano, stored.time_unix_nano, put.end_time_unix_nano, time.time_ns()]
    assert times == sorted(times)
    assert delivery.name == "deliver orders"
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in delivery.links] == [(TRACE, PARENT)]
    assert (delivery.trace_id.hex() != TRACE, delivery.parent_span_id) == (True, b"")
    assert attributes(delivery)["messaging.consumer.group.name"] == "billing"
    assert delivery.start_time_unix_nano <= delivery.end_time_unix_nano
    assert receiver.resources[0]["service.name"] == "reput"
    assert receiver.resources[0]["service.instance.id"] == "broker-a/0"


def test_each_sampled_trace_in_a_block_gets_a_span_and_others_none(
    broker: BackgroundBroker, receiver: Receiver
) -> None:
    with Producer(broker.address) as producer:
        producer.send(Message("orders", b"without a context"))
        producer.send(Message("orders", b"not sampled", properties=traceparent(flags="00")))
        producer.send(Message("orders", b"invalid", properties=traceparent("0" * 32)))
        producer.send(Message("orders", b"no version", properties={"traceparent": f"ff-{TRACE}-{PARENT}-01"}))
        producer.send_batch(
            [
                Message("orders", b"a", properties=traceparent()),
                Message("orders", b"b", properties=traceparent()),
                Message("orders", b"c", properties=traceparent(OTHER)),
                Message("orders", b"d"),
            ],
            queue_id=0,
        )
    first, second = receiver.wait(2)
    assert {first.trace_id.hex(), second.trace_id.hex()} == {TRACE, OTHER}
    assert first.span_id != second.span_id
    assert attributes(first)["messaging.batch.message_count"] == 4


def test_puts_of_rocketmqs_clients_have_spans(broker: BackgroundBroker, receiver: Receiver) -> None:
    text = f"traceparent\x01{traceparent()['traceparent']}\x02"
    batch = encode_batch([BatchItem(0, b"one", b""), BatchItem(0, b"two", text.encode())])
    long_names = {
        "producerGroup": "PG", "topic": "t10", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": text,
    }  # fmt: skip
    with RawClient(broker.address, HeaderType.JSON) as client:
        answers = [
            client.request(RequestCode.SEND_MESSAGE, long_names, b"one"),
            client.request(RequestCode.SEND_MESSAGE_V2, in_letters("t310", i=text), b"one"),
            client.request(RequestCode.SEND_BATCH_MESSAGE, in_letters("t320", m="true"), batch),
            client.request(RequestCode.SEND_BATCH_MESSAGE, in_letters("t320", m="true"), batch[:-1]),
        ]
    assert [header.code == 0 for header, _ in answers] == [True, True, True, False]
    spans = receiver.wait(3)
    assert [span.name for span in spans] == ["store t10", "store t310", "store t320"]
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert [attributes(span)["messaging.batch.message_count"] for span in spans] == [1, 1, 2]


def test_a_delayed_message_is_stored_and_delivered_with_spans(broker: BackgroundBroker, receiver: Receiver) -> None:
    with Producer(broker.address) as producer, Consumer(broker.address, group="billing", topic="orders") as consumer:
        producer.send(Message("orders", b"later", properties=traceparent(), delay_s=0.2))
        assert consumer.receive(20.0) is not None
    (put,) = receiver.wait(1, "store")
    assert (put.name, put.trace_id.hex()) == ("store orders", TRACE)
    (delivery,) = receiver.wait(1, "deliver")
    assert [link.trace_id.hex() for link in delivery.links] == [TRACE]


def test_a_share_of_requests_without_a_context_begins_a_trace(new_reput_broker: NewBroker, receiver: Receiver) -> None:
    broker = new_reput_broker(tracing={"endpoint": receiver.url, "sample_ratio": 1.0})
    with Producer(broker.address) as producer, PullConsumer(broker.address, group="g") as consumer:
        producer.send(Message("orders", b"not sampled", properties=traceparent(flags="00")), queue_id=0)
        producer.send(Message("orders", b"without a context"), queue_id=1)
        for queue_id in (0, 1):
            assert consumer.pull("orders", queue_id, 0).messages
    put, delivery = receiver.wait(2)
    assert put.name == "store orders"
    assert put.parent_span_id == b""
    assert delivery.name == "deliver orders"
    assert put.trace_id != delivery.trace_id


def test_a_refused_put_has_the_reason(new_reput_broker: NewBroker, receiver: Receiver) -> None:
    broker = new_reput_broker(tracing={"endpoint": receiver.url}, store={"message_size_max": 1000})
    with Producer(broker.address) as producer, pytest.raises(BrokerError):
        producer.send(Message("orders", bytes(2000), properties=traceparent()))
    (put,) = receiver.wait(1)
    assert put.name == "store orders"
    assert put.status.code == Status.STATUS_CODE_ERROR
    assert attributes(put)["error.type"] == put.status.message == "message_illegal"
    assert not put.events


def test_concurrent_sends_keep_their_parents(broker: BackgroundBroker, receiver: Receiver) -> None:
    traces = [f"{number:032x}" for number in range(1, 41)]
    with Producer(broker.address, linger_s=0.005) as producer, ThreadPoolExecutor(8) as threads:
        for sent in [
            threads.submit(producer.send, Message("orders", b"", properties=traceparent(trace))) for trace in traces
        ]:
            sent.result(30.0)
    assert {span.trace_id.hex() for span in receiver.wait(40)} == set(traces)


def test_a_lost_receiver_costs_spans_only(new_reput_broker: NewBroker, receiver: Receiver) -> None:
    receiver.status = 400  # not repeated, as a lost connection would be
    broker = new_reput_broker(tracing={"endpoint": receiver.url}, http_port=0)
    page = f"http://{broker.http_address}/metrics"

    def spans(result: str) -> float:
        with urlopen(page) as answer:
            return value(read(answer.read().decode()), "reput_spans_total", result=result)

    with Producer(broker.address) as producer:
        producer.send(Message("orders", b"one", properties=traceparent()))
        wait_until(lambda: spans("failed") >= 1, 30.0)
        receiver.status = 200
        producer.send(Message("orders", b"two", properties=traceparent(OTHER)))
        (put,) = receiver.wait(1)
        assert put.trace_id.hex() == OTHER
    assert (spans("exported"), spans("failed"), spans("dropped")) == (1, 1, 0)


def test_what_is_queued_is_bounded_and_exported_at_the_end(receiver: Receiver) -> None:
    exporter = SpanExporter(receiver.url, {"service.version": "1"})
    span = FinishedSpan("store orders", TraceContext(1, 2), None, (), 1, 2, {})
    for _ in range(20_000):
        exporter.add(span)
    assert exporter.counts == {"exported": 0, "failed": 0, "dropped": 20_000 - 16_384}
    exporter.start()
    exporter.close(30.0)
    assert exporter.counts["exported"] == len(receiver.spans) == 16_384


def test_a_stop_exports_the_last_spans_and_waits_for_no_receiver(
    new_reput_broker: NewBroker, receiver: Receiver
) -> None:
    broker = new_reput_broker(tracing={"endpoint": receiver.url})
    with Producer(broker.address) as producer:
        producer.send(Message("orders", b"last", properties=traceparent()))
    broker.stop()
    assert [span.trace_id.hex() for span in receiver.spans] == [TRACE]
    receiver.status = 503  # which the exporter would repeat for ten seconds
    broker.start()
    with Producer(broker.address) as producer:
        producer.send(Message("orders", b"lost", properties=traceparent()))
    broker.stop()
    for thread in threading.enumerate():  # it may still be on its way out
        if thread.name == "reput-spans":
            thread.join(8.0)
            assert not thread.is_alive()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, new_reput_broker: NewBroker) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match="the extra `otel` of reput brings it"):
        new_reput_broker(tracing={"endpoint": "http://127.0.0.1:4318/v1/traces"})


@pytest.mark.parametrize(
    "endpoint", ["collector:4318", "http://collector:4318", "ftp://collector/v1/traces", "http:///x"]
)
def test_an_endpoint_is_a_url_with_a_path(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="a URL with a path such as"):
        BrokerConfig(tracing={"endpoint": endpoint})


def test_without_an_endpoint_opentelemetry_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys, trio; from reput_broker import Broker, BrokerConfig\n"
        "async def main():\n"
        "    store = {'commit_log_file_size': '1MiB', 'index': False}\n"
        "    async with Broker(BrokerConfig(data_dir=sys.argv[1], port=0, store=store)): pass\n"
        "trio.run(main)\n"
        "sys.exit([name for name in sys.modules if name.startswith('opentelemetry')] or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], check=False).returncode == 0


@pytest.mark.parametrize("sql", [None, "TAGS = 'paid'"], ids=["tags", "sql"])
def test_a_delivery_that_is_read_from_the_disk_has_a_span(
    broker: BackgroundBroker, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, sql: str | None
) -> None:
    monkeypatch.setattr(MessageReader, "_is_cold", lambda *_: True)
    with Producer(broker.address) as producer, PullConsumer(broker.address, group="g") as consumer:
        producer.send(Message("orders", b"one", tag="paid", properties=traceparent()), queue_id=0)
        assert consumer.pull("orders", 0, 0, sql=sql).messages
    (delivery,) = receiver.wait(1, "deliver")
    assert [link.trace_id.hex() for link in delivery.links] == [TRACE]
    assert attributes(delivery)["messaging.batch.message_count"] == 1
