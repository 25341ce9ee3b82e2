"""The FastStream broker: in memory with its test broker, and over a socket with a broker process."""

from __future__ import annotations

import ast
import asyncio
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
from faststream import AckPolicy, BaseMiddleware, FastStream, Header
from faststream.exceptions import NackMessage, RejectMessage, SetupError, StopConsume, SubscriberNotFound
from faststream.message import AckStatus
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, ValidationError

import reput_client.faststream
from reput_client import TLS, Admin, InvalidName, Mode, Producer, PullConsumer, ReplyTimeout, RequestTimeout, otel
from reput_client.errors import FilterSyntaxError, TopicNotFound
from reput_client.faststream import ReputBroker, ReputMessage, ReputResponse, ReputRouter, TestReputBroker
from support.broker_process import BrokerProcess
from support.waiting import until

pytestmark = pytest.mark.anyio


class Order(BaseModel):
    """What an order has."""

    number: int
    customer: str = "Ada"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- in memory -----------------------------------------------------------------------------------------------------


async def test_handlers_get_what_is_published_and_publishers_send_what_they_return() -> None:
    broker = ReputBroker()
    seen: list[object] = []

    @broker.subscriber("orders", group="billing", tags="paid || refunded")
    @broker.publisher("bills", tag="new")
    async def bill(order: Order, message: ReputMessage, shop: Annotated[str, Header()]) -> str:
        seen.append((order.number, shop, message.raw_message.tag, message.raw_message.keys))
        return f"bill of {order.number}"

    @broker.subscriber("bills", group="archive", tags="new")
    async def archive(text: str) -> None:
        seen.append(text)

    async with TestReputBroker(broker):
        receipt = await broker.publish(
            Order(number=7), "orders", tag="paid", keys=["o-7"], headers={"shop": "berlin"}, delay_s=60.0
        )
        assert receipt.topic == "orders"
        assert len(receipt.message_id) == 32
        await broker.publish(Order(number=8), "orders", tag="declined")
        assert bill.mock is not None
        bill.mock.assert_called_once_with({"number": 7, "customer": "Ada"})
    assert seen == [(7, "berlin", "paid", ("o-7",)), "bill of 7"]


async def test_one_handler_of_each_group_gets_a_message() -> None:
    broker = ReputBroker()
    seen: list[str] = []
    modes: list[tuple[str, Mode]] = [("a", "clustering"), ("b", "broadcasting")]
    for number, (group, mode) in enumerate(modes * 2):

        @broker.subscriber("orders", group=group, mode=mode)
        async def handle(number: int = number, group: str = group) -> None:
            seen.append(group)

    async with TestReputBroker(broker):
        await broker.publish(b"{}", "orders")
    assert sorted(seen) == ["a", "b", "b"]


async def test_sql_filters_are_evaluated_in_memory() -> None:
    broker = ReputBroker()

    @broker.subscriber("orders", group="billing", sql="amount > 5 AND TAGS = 'paid'")
    async def bill(amount: int) -> None: ...

    async with TestReputBroker(broker):
        for amount in (3, 9):
            await broker.publish(amount, "orders", tag="paid", headers={"amount": str(amount)})
        assert bill.mock is not None
        bill.mock.assert_called_once_with(9)


async def test_a_timeout_of_a_handler_is_not_one_of_its_request() -> None:
    broker = ReputBroker()
    failure = RequestTimeout("send of a bill", 1.0)

    @broker.subscriber("prices", group="pricing")
    async def price(number: int) -> int:
        raise failure

    async with TestReputBroker(broker):
        with pytest.raises(RequestTimeout) as caught:
            await broker.request(21, "prices")
    assert caught.value is failure


async def test_an_error_of_a_handler_reaches_the_test() -> None:
    broker = ReputBroker()

    @broker.subscriber("orders", group="billing")
    async def bill(order: Order) -> None:
        raise LookupError(order.number)

    async with TestReputBroker(broker):
        with pytest.raises(LookupError, match="7"):
            await broker.publish(Order(number=7), "orders")
        with pytest.raises(ValidationError):
            await broker.publish("no order", "orders")


async def test_requests_are_answered_in_memory() -> None:
    broker = ReputBroker()

    @broker.subscriber("prices", group="pricing")
    async def price(number: int) -> ReputResponse:
        if number == 0:
            await asyncio.sleep(30.0)
        return ReputResponse({"price": number * 2}, headers={"currency": "eur"}, options={"tag": "ok"})

    asked = broker.publisher("prices")
    async with TestReputBroker(broker):
        for ask in (broker.request(21, "prices"), asked.request(21)):
            reply = await ask
            assert await reply.decode() == {"price": 42}
            assert reply.headers["currency"] == "eur"
            assert reply.raw_message.tag == "ok"
        with pytest.raises(ReplyTimeout):
            await broker.request(0, "prices", timeout=0.01)
        with pytest.raises(SubscriberNotFound, match="'weather'"):
            await broker.request(21, "weather")


@pytest.mark.parametrize("delay_s", [None, 20.0])
async def test_the_first_call_counts_also_one_on_the_raw_message(delay_s: float | None) -> None:
    broker = ReputBroker(security=SASLPlaintext("alice", "s" * 16))
    raw: list[Any] = []

    @broker.subscriber("orders", group="billing")
    async def bill(text: str, message: ReputMessage) -> None:
        raw.append(message.raw_message)
        if text == "later":
            await message.raw_message.nack(delay_s, reason="no stock")
            await message.ack()
        elif text == "never":
            await message.raw_message.reject()
        else:
            await message.nack(delay_level=2)
            message.raw_message.ack()

    async with TestReputBroker(broker):
        for text in ("later", "never", "soon"):
            await broker.publish(text, "orders")
    assert [each.outcome for each in raw] == [AckStatus.NACKED, AckStatus.REJECTED, AckStatus.NACKED]
    assert [each.delay_level for each in raw] == [0 if delay_s is None else 4, 0, 2]


async def test_a_batch_is_messages_of_one_topic() -> None:
    broker = ReputBroker()
    seen: list[int] = []

    @broker.subscriber("orders", group="billing")
    async def bill(number: int) -> None:
        seen.append(number)

    async with TestReputBroker(broker):
        receipts = await broker.publish_batch(1, 2, 3, topic="orders")
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2]
        assert await broker.publish_batch(topic="orders") == []
    assert seen == [1, 2, 3]


async def test_routers_have_prefixes_and_middlewares_see_what_is_sent() -> None:
    class Stamp(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.add_headers({"stamp": "seen"})
            return await call_next(cmd)

    router = ReputRouter("shop-")
    stamps: list[str] = []

    @router.subscriber("orders", group="billing")
    @router.publisher("bills")
    async def bill(number: int, stamp: Annotated[str, Header()]) -> int:
        stamps.append(stamp)
        return number

    @router.subscriber("bills", group="archive")
    async def archive(number: int, stamp: Annotated[str, Header()]) -> None:
        stamps.append(stamp)

    broker = ReputBroker(middlewares=[Stamp], routers=[router])
    async with TestReputBroker(broker):
        await broker.publish(1, "shop-orders")
    assert stamps == ["seen", "seen"]


async def test_the_codec_of_the_broker_writes_and_reads_bodies() -> None:
    class Reversed:
        async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
            return str(msg).encode()[::-1], "text/reversed"

        async def decode(self, msg: Any) -> Any:
            assert msg.content_type == "text/reversed"
            return msg.body[::-1].decode()

    broker = ReputBroker(codec=Reversed())

    @broker.subscriber("orders", group="billing")
    async def bill(text: str, message: ReputMessage) -> None:
        assert message.raw_message.body == b"cba"

    async with TestReputBroker(broker):
        await broker.publish("abc", "orders")
        assert bill.mock is not None
        bill.mock.assert_called_once_with("abc")


async def test_a_result_goes_to_the_topic_that_the_message_names() -> None:
    broker = ReputBroker()

    @broker.subscriber("sums", group="adding")
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    @broker.subscriber("results", group="showing")
    async def show(result: int) -> None: ...

    async with TestReputBroker(broker):
        await broker.publish([1, 2], "sums", reply_to="results")
        assert show.mock is not None
        show.mock.assert_called_once_with(3)


def test_the_description_in_asyncapi_has_topics_and_types() -> None:
    broker = ReputBroker("reput-1:10911,reput-2:10911", description="the shop's")

    @broker.subscriber("orders", group="billing", description="Bills orders.")
    @broker.publisher("bills", schema=Order)
    async def bill(order: Order) -> Order:
        return order

    description = AsyncAPI(broker).to_specification().to_jsonable()
    assert [server["host"] for server in description["servers"].values()] == ["reput-1:10911", "reput-2:10911"]
    assert {server["protocol"] for server in description["servers"].values()} == {"rocketmq"}
    channels = {channel["address"]: channel for channel in description["channels"].values()}
    assert set(channels) == {"orders", "bills"}
    assert channels["orders"]["description"] == "Bills orders."
    assert description["components"]["schemas"]["Order"]["required"] == ["number"]


@pytest.mark.parametrize(
    ("security", "schemes"),
    [
        (None, None),
        (BaseSecurity(use_ssl=True), {}),
        (SASLPlaintext("alice", "s" * 16), {"user-password": {"type": "userPassword"}}),
    ],
    ids=["none", "tls", "user"],
)
def test_the_description_in_asyncapi_says_how_users_are_identified(security: Any, schemes: Any) -> None:
    description = AsyncAPI(ReputBroker(security=security)).to_specification().to_jsonable()
    assert description["components"].get("securitySchemes") == schemes
    (server,) = description["servers"].values()
    assert bool(server.get("security")) == bool(schemes)
    assert "s" * 16 not in str(description)


def test_what_cannot_work_is_refused_with_the_reason() -> None:
    async def start(broker: ReputBroker) -> None:
        async with TestReputBroker(broker):
            pass

    def refused(error: type[Exception], text: str, **options: Any) -> None:
        def declare() -> None:
            broker = ReputBroker()
            broker.subscriber(**{"topic": "orders", "group": "billing", **options})
            asyncio.run(start(broker))

        with pytest.raises(error, match=text):
            declare()

    refused(SetupError, "AckPolicy.ACK counts a message", ack_policy=AckPolicy.ACK_FIRST)
    refused(SetupError, "max_workers must be at least 1, not 0", max_workers=0)
    refused(ValueError, "attempts_max 1 or more", attempts_max=0)
    refused(FilterSyntaxError, "names no tag", tags="||")
    refused(InvalidName, "group", group="no group")
    refused(ValueError, "mode is", mode="both")
    with pytest.raises(SetupError, match="SASLScram256 is not supported; pass SASLPlaintext"):
        ReputBroker(security=SASLScram256("alice", "secret"))
    with pytest.raises(SetupError, match="both say how to encrypt"):
        ReputBroker(security=BaseSecurity(use_ssl=True), tls=TLS())
    broker = ReputBroker()
    broker.subscriber("orders", group="billing")
    broker.subscriber("orders", group="billing", tags="paid")
    with pytest.raises(SetupError, match="'billing' have different topics or filters"):
        asyncio.run(start(broker))


@pytest.mark.parametrize("name", ["ack", "timeout_s", "retries", "deduplicate"])
def test_messages_are_sent_as_a_producer_sends_them(name: str) -> None:
    defaults = [inspect.signature(kind).parameters[name].default for kind in (ReputBroker, Producer)]
    assert defaults[0] == defaults[1]


def test_without_faststream_the_extra_is_named() -> None:
    code = "import sys; sys.modules['faststream'] = None; import reput_client.faststream"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "install the extra faststream of reput-client" in result.stderr


def test_what_faststream_exports_is_imported_from_where_it_exports_it() -> None:
    public: set[str] = set()
    for name in ("", ".message", ".specification.schema", ".types"):
        public.update(import_module(f"faststream{name}").__all__)
    sources = Path(reput_client.faststream.__file__).parent.glob("*.py")
    private = {
        name.name
        for source in sources
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("faststream._internal")
        for name in node.names
    }
    assert "Registrator" in private
    assert private & public == set()


# -- with a broker process -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address(module_path: Path) -> Iterator[str]:
    with BrokerProcess(module_path / "store") as process:
        yield process.address


async def with_topics(address: str, *topics: str) -> None:
    async with Admin(address) as admin:
        for topic in topics:
            await admin.create_topic(topic, queues=1)


@asynccontextmanager
async def started(broker: ReputBroker) -> AsyncIterator[None]:
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


@pytest.mark.process
async def test_an_application_handles_messages_of_a_broker(address: str) -> None:
    seen: list[int] = []
    four: asyncio.Barrier

    def application() -> ReputBroker:
        broker = ReputBroker(address)

        @broker.subscriber("orders", group="billing", max_workers=4)
        @broker.publisher("bills")
        async def bill(order: Order) -> str:
            seen.append(order.number)
            if order.number < 4:
                await four.wait()  # as many are handled at a time
            return f"bill of {order.number}"

        return broker

    four = asyncio.Barrier(4)
    await with_topics(address, "orders", "bills")
    broker = application()
    reader = broker.subscriber("bills", group="archive")
    async with started(broker):
        assert await broker.ping()
        receipts = await broker.publish_batch(*(Order(number=n) for n in range(5)), topic="orders")
        assert [receipt.queue_offset for receipt in receipts] == [0, 1, 2, 3, 4]
        receipt = await broker.publish(Order(number=5), "orders", tag="paid", keys=["o-5"], ack="page_cache")
        bills = set()
        async for message in reader:
            bills.add(await message.decode())
            if len(bills) == 6:
                break
        assert bills == {f"bill of {number}" for number in range(6)}
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    async with PullConsumer(address, group="test") as consumer:
        stored = (await consumer.pull("orders", 0, receipt.queue_offset)).messages[0]
        assert (stored.tag, stored.keys) == ("paid", ("o-5",))
        assert stored.get_property("content-type") == "application/json"
        assert stored.message_id == receipt.message_id
    # What was handled is committed: the application, started again, gets only new messages.
    broker = application()
    async with started(broker):
        await broker.publish(Order(number=6), "orders")
        await until(lambda: 6 in seen)
    assert sorted(seen) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.process
async def test_refused_messages_are_redelivered_or_become_dead_letters(address: str) -> None:
    attempts: dict[str, list[int]] = {}
    broker = ReputBroker(address)

    def subscribe(name: str, refuse: Callable[[ReputMessage], Coroutine[Any, Any, None]], **options: Any) -> None:
        @broker.subscriber(f"try-{name}", group=f"try-{name}", **options)
        async def handle(message: ReputMessage) -> None:
            times = message.raw_message.reconsume_times
            attempts.setdefault(name, []).append(times)
            if times == 0 and len(attempts[name]) == 1:
                await refuse(message)

    async def raises(message: ReputMessage) -> None:
        raise LookupError("no such order")

    async def later(message: ReputMessage) -> None:
        raise NackMessage(delay_level=1)

    async def never(message: ReputMessage) -> None:
        raise RejectMessage

    async def manually(message: ReputMessage) -> None:
        with pytest.raises(ValueError, match="delay_level 19"):
            await message.nack(delay_level=19)
        await message.nack(delay_level=1)

    async def early(message: ReputMessage) -> None:
        await message.ack()
        raise LookupError("too late to count")

    subscribe("later", later)
    subscribe("manually", manually, ack_policy=AckPolicy.MANUAL)
    subscribe("early", early)
    subscribe("never", never)
    subscribe("raises", raises, ack_policy=AckPolicy.REJECT_ON_ERROR)
    subscribe("acked", raises, ack_policy=AckPolicy.ACK)
    subscribe("in-order", raises, orderly=True)
    subscribe("given-up", raises, orderly=True, ack_policy=AckPolicy.REJECT_ON_ERROR)
    subscribe("dropped", never, mode="broadcasting")
    names = ["later", "manually", "early", "never", "raises", "acked", "in-order", "given-up", "dropped"]
    await with_topics(address, *(f"try-{name}" for name in names))
    async with started(broker):
        for name in names:
            await broker.publish("x", f"try-{name}")
        # Those that are acknowledged manually, or not at all, after their redelivery are given back again.
        await until(lambda: all(len(attempts.get(name, ())) > 1 for name in ("later", "manually", "in-order")))
    assert attempts == {**{name: [0] for name in names}, "later": [0, 1], "manually": [0, 1], "in-order": [0, 0]}
    async with PullConsumer(address, group="test") as consumer:
        for name, reason in (("never", "was rejected"), ("raises", "LookupError"), ("given-up", "LookupError")):
            (letter,) = (await consumer.pull(f"%DLQ%try-{name}", 0, 0)).messages
            assert reason in (letter.get_property("RETRY_REASON") or "")


@pytest.mark.process
async def test_the_raw_message_can_be_settled(address: str) -> None:
    broker = ReputBroker(address, ack_policy=AckPolicy.MANUAL)
    seen: list[tuple[str, int]] = []

    @broker.subscriber("raw", group="settling")
    async def handle(text: str, message: ReputMessage) -> None:
        raw = message.raw_message
        seen.append((text, raw.reconsume_times))
        if text == "never":
            await raw.reject(reason="no content")
        elif text == "later" and raw.reconsume_times == 0:
            await raw.nack(1.0)
        else:
            raw.ack()

    await with_topics(address, "raw")
    async with started(broker):
        await broker.publish_batch("now", "never", "later", topic="raw")
        await until(lambda: len(seen) == 4)
    assert sorted(seen) == [("later", 0), ("later", 1), ("never", 0), ("now", 0)]
    async with PullConsumer(address, group="test") as consumer:
        (letter,) = (await consumer.pull("%DLQ%settling", 0, 0)).messages
        assert letter.body == b"never"
        assert str(letter.get_property("RETRY_REASON")).endswith("no content")


@pytest.mark.process
async def test_messages_can_be_taken_one_by_one(address: str) -> None:
    broker = ReputBroker(address)
    subscriber = broker.subscriber("taken", group="taking")
    await with_topics(address, "taken")
    with pytest.raises(SetupError, match="not started"):
        await subscriber.get_one()
    async with started(broker):
        await broker.publish_batch("handled", "later", "never", topic="taken")
        for text in ("handled", "later", "never"):
            message = await subscriber.get_one(timeout=10.0)
            assert message is not None
            assert await message.decode() == text
            if text == "later":
                await message.nack(delay_level=1)
        assert message is not None
        await message.reject()  # takes effect at the latest when the subscriber stops
    async with started(broker):
        message = await subscriber.get_one(timeout=10.0)
        assert message is not None
        assert await message.decode() == "later"
        assert message.raw_message.reconsume_times == 1
        assert await subscriber.get_one(timeout=0.1) is None
    async with PullConsumer(address, group="test") as consumer:
        (letter,) = (await consumer.pull("%DLQ%taking", 0, 0)).messages
        assert letter.body == b"never"


@pytest.mark.process
async def test_requests_are_answered_through_the_broker(address: str) -> None:
    broker = ReputBroker(address)

    @broker.subscriber("prices", group="pricing")
    async def price(number: int) -> ReputResponse:
        return ReputResponse({"price": number * 2}, options={"tag": "ok"})

    await with_topics(address, "prices")
    async with started(broker):
        reply = await broker.request(21, "prices", timeout=10.0)
        assert await reply.decode() == {"price": 42}
        assert reply.raw_message.tag == "ok"


@pytest.mark.process
async def test_spans_of_the_client_connect_an_application(address: str) -> None:
    broker = ReputBroker(address)
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @broker.subscriber("traced", group="tracing")
    @broker.publisher("traced-results")
    async def handle(number: int) -> int:
        if number == 0:
            raise LookupError("no such number")
        return number

    otel.instrument(tracer_provider=provider)
    try:
        await with_topics(address, "traced", "traced-results")
        async with started(broker):
            await broker.publish(0, "traced")
            await broker.publish(1, "traced")
            await until(lambda: len(exporter.get_finished_spans()) == 5)
    finally:
        otel.uninstrument()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    sent, processed, result = spans["send traced"], spans["process traced"], spans["send traced-results"]
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert result.parent is not None
    assert result.parent.span_id == processed.context.span_id
    errors = {(span.attributes or {}).get("error.type") for span in exporter.get_finished_spans()}
    assert errors == {None, "LookupError"}


@pytest.mark.process
async def test_a_handler_may_stop_its_subscriber_or_the_application(address: str) -> None:
    broker = ReputBroker(address, graceful_timeout=0.2, ack_policy=AckPolicy.ACK)
    app = FastStream(broker)
    seen: list[str] = []

    @broker.subscriber("stops", group="stopping")
    async def stop(text: str) -> None:
        seen.append(text)
        raise StopConsume

    @broker.subscriber("exits", group="exiting")
    async def leave(text: str) -> None:
        seen.append(text)
        raise SystemExit

    @broker.subscriber("hangs", group="hanging")
    async def hang(text: str) -> None:
        seen.append(text)
        await asyncio.sleep(60.0)

    @app.after_startup
    async def send() -> None:
        await broker.publish_batch("one", "two", topic="stops")
        await broker.publish("hung", "hangs")
        await until(lambda: len(seen) == 2)
        assert await broker.ping()
        await broker.publish("last", "exits")

    await with_topics(address, "stops", "exits", "hangs")
    await app.run()
    assert sorted(seen) == ["hung", "last", "one"]
    reader = ReputBroker(address)
    subscriber = reader.subscriber("hangs", group="hanging")
    async with started(reader):
        message = await subscriber.get_one(timeout=10.0)
        assert message is not None
        assert message.raw_message.reconsume_times == 0


@pytest.mark.process
async def test_a_subscriber_that_an_error_has_ended_fails_the_ping(address: str) -> None:
    broker = ReputBroker(address)

    @broker.subscriber("short-lived", group="mourning", wait_for_topic=False)
    async def handle(text: str) -> None: ...

    with pytest.raises(TopicNotFound):
        await broker.start()
    await with_topics(address, "short-lived")
    async with started(broker):
        await broker.publish("x", "short-lived")
        assert await broker.ping()
        async with Admin(address) as admin:
            await admin.delete_topic("short-lived")
        while await broker.ping():
            await asyncio.sleep(0.05)
    assert not await broker.ping()


@pytest.mark.process
async def test_handlers_can_be_tried_with_a_real_broker(address: str) -> None:
    broker = ReputBroker(address)

    @broker.subscriber("tried", group="trying", start="latest")
    @broker.publisher("tried-results")
    async def handle(text: str) -> str:
        return text.upper()

    await with_topics(address, "tried", "tried-results")
    async with TestReputBroker(broker, with_real=True):
        await broker.publish("hello", "tried")
        await handle.wait_call(timeout=10.0)
        assert handle.mock is not None
        handle.mock.assert_called_once_with("hello")
