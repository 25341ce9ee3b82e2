"""Sending, receiving and settling through the proxy, as gRPC clients do."""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from reput_broker.background import BackgroundBroker
from reput_client import Admin, Consumer, Message, Producer
from reput_client.errors import BrokerNotFound
from reput_client.pop.popped import Settling
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import ReputError
from reput_protocol.wire.header import HeaderType
from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import duration_of
from reput_proxy.proxy import Call
from reput_proxy.receiving import receive
from reput_proxy.rejections import Rejected, check_broker
from reput_proxy.service import METHODS
from support.grpc_client import (
    TIMEOUT_S,
    Code,
    GrpcClient,
    bodies,
    client_of,
    in_asyncio,
    message,
    proxy_of,
    receive_request,
    with_proxy,
)
from support.raw_client import RawClient, in_letters
from support.waiting import until

# -- sends -------------------------------------------------------------------------------------------------------------


@with_proxy
async def test_sends_of_many_clients_share_blocks(client: GrpcClient, address: str, topic: str) -> None:
    count = 64
    for _ in range(2):
        await asyncio.gather(*(client.send(message(topic, b"x", f"ID{number}")) for number in range(count)))
    assert client.proxy.upstream("", None).producer._gathering._accumulator.last_serial < count


@pytest.mark.parametrize(
    ("remaining_s", "timeout_s"),
    [(30.0, 29.5), (29.7, 29.5), (1e9, 29.5), (3.01, 2.5), (2.7, 2.5), (1.0, 0.5), (0.7, 0.5), (0.3, 0.25)],
)
def test_calls_that_wait_about_as_long_have_one_timeout(remaining_s: float, timeout_s: float) -> None:
    """Only then do their messages share blocks."""
    nothing: Any = None
    assert Call(nothing, nothing, "", "", remaining_s, {}).timeout_s == timeout_s


@with_proxy
async def test_a_message_keeps_all_that_its_producer_has_given(client: GrpcClient, address: str, topic: str) -> None:
    sent = message(
        topic, "zwölf 🐟".encode(), "ID1", tag="paid", keys=["k1 k2", ""], properties={"größe": "a b=&;", "none": ""},
        trace_context="00-abc-01", born_host="laptop",
    )  # fmt: skip
    [entry] = await client.send(sent)
    assert (entry.message_id, entry.offset, entry.transaction_id) == ("ID1", 0, "")
    [got] = await client.receive_all(topic, topic, 1)
    system = got.system_properties
    assert (got.body, dict(got.user_properties), got.topic.name) == (sent.body, {"größe": "a b=&;"}, topic)
    assert (system.message_id, system.tag, [*system.keys]) == ("ID1", "paid", ["k1", "k2"])
    assert (system.trace_context, system.born_host, system.delivery_attempt) == ("00-abc-01", "laptop", 1)
    assert (system.message_type, system.body_encoding, system.queue_offset) == (pb.NORMAL, pb.IDENTITY, 0)


@with_proxy
async def test_a_message_gets_the_trace_context_of_its_call_unless_it_has_its_own(
    client: GrpcClient, address: str, topic: str
) -> None:
    parent, own = f"00-{'a' * 32}-{'b' * 16}-01", f"00-{'c' * 32}-{'d' * 16}-00"
    given = {"traceparent": parent, "tracestate": "x=1"}
    async with client_of(client.address, "traced", metadata=given) as traced:
        await traced.send(message(topic, b"plain", "ID1"))
        await traced.send(message(topic, b"own", "ID2", properties={"traceparent": own}))
    async with client_of(client.address, "wrong", metadata={**given, "traceparent": "00-1-2-3"}) as wrong:
        await wrong.send(message(topic, b"wrong", "ID3"))
    found = {got.body: dict(got.user_properties) for got in await client.receive_all(topic, topic, 3)}
    assert found == {b"plain": given, b"own": {"traceparent": own}, b"wrong": {}}


HIGHEST = (1 << 31) - 1


@with_proxy
async def test_priorities(client: GrpcClient, address: str, topic: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(topic, queues=4, message_type="PRIORITY")
    entries = [
        entry
        for priority in (0, 3, HIGHEST, 1)
        for entry in await client.send(message(topic, b"%d" % priority, f"ID{priority}", priority=priority))
    ]
    assert [entry.status.code for entry in entries] == [Code.OK] * 4
    found = [each for _ in range(4) for each in await client.receive_all(topic, topic, 1, batch=1)]
    assert [(each.system_properties.priority, each.system_properties.queue_id) for each in found] == [
        (3, 3),
        (HIGHEST, 3),
        (1, 1),
        (0, 0),
    ]
    assert {each.system_properties.message_type for each in found} == {pb.PRIORITY}
    plain = pb.SendMessageRequest(messages=[message(topic, b"x", "ID")])
    answer = await client.call("SendMessage", plain)
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    for priority in (-1, -(1 << 31)):
        wrong = pb.SendMessageRequest(messages=[message(topic, b"x", "ID", priority=priority)])
        answer = await client.call("SendMessage", wrong)
        assert answer.status.code == Code.BAD_REQUEST
        assert answer.status.message == f"priority {priority} must be an int from 0 to {(1 << 31) - 1}"


@with_proxy
async def test_a_queue_at_another_broker_and_a_time_out_of_range_are_the_clients_mistakes(
    client: GrpcClient, address: str, topic: str
) -> None:
    """Both were internal errors, after which clients try again."""
    await client.send(message(topic, b"x", "ID"))
    elsewhere = pb.MessageQueue(topic=pb.Resource(name=topic), broker=pb.Broker(name="broker-z"))
    for name, request in (
        ("QueryOffset", pb.QueryOffsetRequest(message_queue=elsewhere, query_offset_policy=pb.END)),
        ("GetOffset", pb.GetOffsetRequest(group=pb.Resource(name=topic), message_queue=elsewhere)),
    ):
        answer = await client.call(name, request)
        assert answer.status.code == Code.NOT_FOUND
        assert "broker-z" in answer.status.message
    for seconds in (-1, 1 << 62):
        request = pb.QueryOffsetRequest(
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)),
            query_offset_policy=pb.TIMESTAMP,
            timestamp=Timestamp(seconds=seconds),
        )
        assert (await client.call("QueryOffset", request)).status.code == Code.BAD_REQUEST


@with_proxy
async def test_a_method_that_is_not_served_says_so(client: GrpcClient, address: str, topic: str) -> None:
    """As RocketMQ's proxy 5.3: clients for lite topics call it."""
    call = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SyncLiteSubscription")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(b"", timeout=20.0)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@with_proxy
async def test_several_messages_of_a_topic_are_one_request(client: GrpcClient, address: str, topic: str) -> None:
    entries = await client.send(*(message(topic, b"%d" % n, f"ID{n}") for n in range(20)))
    assert [entry.message_id for entry in entries] == [f"ID{n}" for n in range(20)]
    assert [entry.offset for entry in entries] == [*range(20)], "they are in one queue, in order"


@with_proxy
async def test_messages_of_a_message_group_are_in_one_queue_and_in_order(
    client: GrpcClient, address: str, topic: str
) -> None:
    for n in range(6):
        [entry] = await client.send(message(topic, b"%d" % n, f"ID{n}", message_group="order-1"))
        assert entry.offset == n
    async with Consumer(address, group=topic, topic=topic, start="earliest") as consumer:
        found = [await consumer.take(20.0) for _ in range(6)]
    assert [(each.body, each.ordering_key) for each in found if each] == [(b"%d" % n, "order-1") for n in range(6)]


@with_proxy
async def test_a_compressed_body_is_stored_as_it_was(client: GrpcClient, address: str, topic: str) -> None:
    """RocketMQ's remoting clients cannot read gzip, which gRPC clients send, perhaps in several streams."""
    body = gzip.compress(b"x" * 5000) + gzip.compress(b"x" * 5000)
    await client.send(message(topic, body, "ID", body_encoding=pb.GZIP))
    async with Consumer(address, group=topic, topic=topic, start="earliest") as consumer:
        found = await consumer.take(20.0)
    assert found is not None
    assert found.body == b"x" * 10_000


@with_proxy
async def test_a_delayed_message_is_delivered_then_and_a_recalled_one_never(
    client: GrpcClient, address: str, topic: str
) -> None:
    due = Timestamp()
    due.FromMilliseconds(time.time_ns() // 1_000_000 + 2500)
    kept, recalled = await client.send(
        message(topic, b"kept", "ID1", delivery_timestamp=due),
        message(topic, b"recalled", "ID2", delivery_timestamp=due),
    )
    assert kept.recall_handle != recalled.recall_handle
    request = pb.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=recalled.recall_handle)
    assert (await client.call("RecallMessage", request)).message_id == "ID2"
    [got] = await client.receive_all(topic, topic, 1)
    assert got.body == b"kept"
    assert time.time() * 1000 >= due.ToMilliseconds()
    status, others = await client.receive(topic, topic, wait_s=0)
    assert (status.code, others) == (Code.MESSAGE_NOT_FOUND, [])


_BAD: list[tuple[str, dict[str, Any], int]] = [
    ("empty body", {"body": b""}, Code.MESSAGE_BODY_EMPTY),
    ("large body", {"body": bytes((4 << 20) + 1)}, Code.MESSAGE_BODY_TOO_LARGE),
    ("topic", {"topic": "a b"}, Code.ILLEGAL_TOPIC),
    ("system topic", {"topic": "SCHEDULE_TOPIC_XXXX"}, Code.ILLEGAL_TOPIC),
    ("tag", {"tag": "a||b"}, Code.ILLEGAL_MESSAGE_TAG),
    ("key", {"keys": ["a\x01b"]}, Code.ILLEGAL_MESSAGE_KEY),
    ("no id", {"message_id": ""}, Code.ILLEGAL_MESSAGE_ID),
    ("message group", {"message_group": "g" * 64}, Code.ILLEGAL_MESSAGE_GROUP),
    ("reserved property", {"properties": {"RETRY_TOPIC": "other"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("our mark", {"properties": {"REPUT_X": "1"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("control character", {"properties": {"a\x01b": "1"}}, Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("many properties", {"properties": {str(n): "1" for n in range(129)}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ("large properties", {"properties": {"a": "x" * 17_000}}, Code.MESSAGE_PROPERTIES_TOO_LARGE),
    ("gzip", {"body_encoding": pb.GZIP}, Code.MESSAGE_CORRUPTED),
    ("gzip of nothing", {"body_encoding": pb.GZIP, "body": gzip.compress(b"")}, Code.MESSAGE_BODY_EMPTY),
    ("many streams", {"body_encoding": pb.GZIP, "body": 65 * gzip.compress(b"x")}, Code.MESSAGE_CORRUPTED),
    ("lite", {"message_type": pb.LITE}, Code.UNSUPPORTED),
    ("lite topic", {"lite_topic": "t"}, Code.UNSUPPORTED),
    ("time", {"delivery_timestamp": Timestamp(seconds=-1)}, Code.ILLEGAL_DELIVERY_TIME),
    ("far time", {"delivery_timestamp": Timestamp(seconds=9_000_000_000)}, Code.ILLEGAL_DELIVERY_TIME),
]


@in_asyncio
async def test_what_cannot_be_sent_is_rejected_with_its_code(address: str, topic: str) -> None:
    async with proxy_of(address) as running, client_of(running.address) as client:
        for name, parts, code in _BAD:
            given = message(**{"topic": topic, "body": b"x", "message_id": "ID", **parts})
            answer = await client.call("SendMessage", pb.SendMessageRequest(messages=[given]))
            assert answer.status.code == code, (name, answer)
            assert answer.status.message
        several = [message(topic, b"x", "ID1"), message(topic + "2", b"x", "ID2")]
        answer = await client.call("SendMessage", pb.SendMessageRequest(messages=several))
        assert answer.status.code == Code.MESSAGE_CORRUPTED


# -- receives ----------------------------------------------------------------------------------------------------------


@with_proxy
async def test_an_acknowledged_message_is_not_redelivered_and_another_is(
    client: GrpcClient, address: str, topic: str
) -> None:
    await client.send(*(message(topic, b"%d" % n, f"ID{n}") for n in range(4)))
    first = await client.receive_all(topic, topic, 4, invisible_s=10)
    answer = await client.ack(topic, *first[:3])
    assert (answer.status.code, len(answer.entries)) == (Code.OK, 3)
    [again] = await client.receive_all(topic, topic, 1, wait_s=20)
    assert again.body == first[3].body
    assert again.system_properties.delivery_attempt == 2


@with_proxy
async def test_filters_by_tags_and_by_sql(client: GrpcClient, address: str, topic: str) -> None:
    for n, tag in enumerate("abc"):
        await client.send(message(topic, tag.encode(), f"ID{n}", tag=tag, properties={"n": str(n)}))
    assert sorted(bodies(await client.receive_all(topic, "by-tags", 2, tags="a||c"))) == [b"a", b"c"]
    assert sorted(bodies(await client.receive_all(topic, "by-sql", 2, sql="n >= 1"))) == [b"b", b"c"]
    status, _ = await client.receive(topic, "wrong", sql="n >=")
    assert status.code == Code.ILLEGAL_FILTER_EXPRESSION


@with_proxy
async def test_a_waiting_receive_gets_what_is_sent_meanwhile(client: GrpcClient, address: str, topic: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(topic)
    waiting = [asyncio.ensure_future(client.receive(topic, topic, wait_s=20)) for _ in range(10)]
    await until(lambda: client.proxy.receives == 10)
    await client.send(message(topic, b"x", "ID"))
    done, _ = await asyncio.wait(waiting, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert [bodies(each.result()[1]) for each in done] == [[b"x"]]
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@in_asyncio
async def test_a_message_for_a_client_that_has_gone_is_redelivered_at_once(address: str, topic: str) -> None:
    """The pop of a cancelled receive may be under way, and its messages were then invisible for a minute."""
    async with proxy_of(address) as running, client_of(running.address) as client:
        async with Producer(address) as producer:
            for n in range(30):
                call = client.start("ReceiveMessage", receive_request(topic, topic, wait_s=20))
                await until(lambda: running.proxy.receives == 1)
                sending = asyncio.ensure_future(producer.send(Message(topic, b"%d" % n)))
                await asyncio.sleep(0.0005 * n)
                call.cancel()
                await sending
                await until(lambda: not running.proxy.receives)
        got = await client.receive_all(topic, topic, 30)
        assert sorted(bodies(got)) == sorted(b"%d" % n for n in range(30))


@in_asyncio
async def test_a_damaged_message_is_not_renewed_and_a_sent_one_is_not_given_back(
    broker: BackgroundBroker, topic: str
) -> None:
    """The damaged one was held for three hours, and an ended call gave back a sent message in place of the next."""
    async with proxy_of(broker.address) as running, client_of(running.address, "client-2") as other:
        async with Admin(broker.address) as admin:
            await admin.create_topic(topic, queues=1)
        await other.send(*(message(topic, body, f"ID-{topic}") for body in (b"damage me", b"1", b"2")))
        change_stored(broker.data_dir, b"damage me", b"damaged !")
        call = Call(running.proxy, running.proxy.upstream("", None), "", "client-1", TIMEOUT_S, {})
        responses = receive(call, receive_request(topic, topic, auto_renew=True))
        ok, first, second = [await anext(responses) for _ in range(3)]
        assert (ok.status.code, first.message.body, second.message.body) == (Code.OK, b"1", b"2")
        await responses.aclose()  # type: ignore[attr-defined]  # while the second is written
        assert [held.delivery._handle.queue_offset for held in running.proxy.renewals._held.values()] == [1]
        assert bodies(await other.receive_all(topic, topic, 1)) == [b"2"]


def change_stored(data_dir: Path, old: bytes, new: bytes) -> None:
    """Change bytes of the log that are there once."""
    for path in (data_dir / "commitlog").iterdir():
        at = path.read_bytes().find(old)
        if at >= 0:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(new)


@with_proxy
async def test_another_invisible_time_gives_another_handle(client: GrpcClient, address: str, topic: str) -> None:
    await client.send(message(topic, b"x", "ID"))
    [got] = await client.receive_all(topic, topic, 1)
    old = got.system_properties.receipt_handle
    request = pb.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=topic),
        topic=pb.Resource(name=topic),
        receipt_handle=old,
        invisible_duration=duration_of(0),
        message_id="ID",
    )
    answer = await client.call("ChangeInvisibleDuration", request)
    assert answer.status.code == Code.OK
    assert answer.receipt_handle != old
    [again] = await client.receive_all(topic, topic, 1)
    assert again.system_properties.delivery_attempt == 2
    assert (await client.ack(topic, again)).status.code == Code.OK


@with_proxy
async def test_handles_that_are_none_are_rejected_one_by_one(client: GrpcClient, address: str, topic: str) -> None:
    await client.send(message(topic, b"x", "ID"))
    [good] = await client.receive_all(topic, topic, 1)
    wrong = pb.Message(topic=good.topic, system_properties=pb.SystemProperties(receipt_handle="1 2 3"))
    answer = await client.ack(topic, wrong, good)
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [each.status.code for each in answer.entries] == [Code.INVALID_RECEIPT_HANDLE, Code.OK]


@with_proxy
async def test_a_message_becomes_a_dead_letter_once(client: GrpcClient, address: str, topic: str) -> None:
    await client.send(message(topic, b"x", "ID"))
    [got] = await client.receive_all(topic, topic, 1)
    request = pb.ForwardMessageToDeadLetterQueueRequest(
        group=pb.Resource(name=topic),
        topic=pb.Resource(name=topic),
        receipt_handle=got.system_properties.receipt_handle,
        message_id="ID",
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    for _ in range(2):  # a client that got no answer asks again
        answer = await client.call("ForwardMessageToDeadLetterQueue", request)
    assert answer.status.code in (Code.OK, Code.INVALID_RECEIPT_HANDLE)
    async with Admin(address) as admin:
        stats = await admin.topic_stats(f"%DLQ%{topic}")
    assert sum(each.max_offset for each in stats.offset_table.values()) == 1


@pytest.mark.parametrize("name", ["AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"])
@pytest.mark.parametrize("ends", ["with an error", "cancelled", "for another broker"])
@in_asyncio
async def test_what_could_not_be_settled_is_renewed_again(
    address: str, topic: str, name: str, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client tries again, and until then no other one gets the message."""

    async def fails(*_: object) -> None:
        if ends == "cancelled":
            await asyncio.sleep(TIMEOUT_S)
        raise ReputError("the broker is away")

    async with proxy_of(address) as running, client_of(running.address) as client:
        await client.send(message(topic, b"x", "ID"))
        [got] = await client.receive_all(topic, topic, 1, auto_renew=True)
        [held] = running.proxy.renewals._held.values()
        if ends == "for another broker":
            held.delivery.broker_name = "broker-z"  # where the topic was
        monkeypatch.setattr(Settling, "_ask", fails)
        request = GetMessageClass(METHODS[name].input_type)(
            group=pb.Resource(name=topic), topic=pb.Resource(name=topic)
        )
        entry = request.entries.add() if name == "AckMessage" else request
        entry.receipt_handle = got.system_properties.receipt_handle
        if ends == "cancelled":
            with pytest.raises(grpc.aio.AioRpcError):
                await client.call(name, request, 1.0)
        else:
            assert (await client.call(name, request)).status.code != Code.OK
        await until(lambda: [*running.proxy.renewals._held.values()] == [held])


@with_proxy
async def test_a_group_in_order_gets_the_next_message_once_the_one_before_is_acknowledged(
    client: GrpcClient, address: str, topic: str
) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(topic, queues=1)
        await admin.put_group(SubscriptionGroupConfig(topic, consume_message_orderly=True))
    for n in range(3):
        await client.send(message(topic, b"%d" % n, f"ID{n}", message_group="g"))
    got = await client.receive_all(topic, topic, 1, batch=1, attempt_id="a")
    # The answer may have been lost.
    again = await client.receive_all(topic, topic, 1, batch=1, attempt_id="a")
    assert bodies(again) == bodies(got) == [b"0"]
    got = again
    status, _ = await client.receive(topic, topic, batch=1)
    assert status.code == Code.MESSAGE_NOT_FOUND
    for n in (1, 2):
        await client.ack(topic, got[-1])
        got += await client.receive_all(topic, topic, 1, batch=1)
        assert got[-1].body == b"%d" % n


@with_proxy
async def test_what_cannot_be_received_is_rejected(client: GrpcClient, address: str, topic: str) -> None:
    for more, code in (
        ({"invisible_s": 1.0}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"group": "a b"}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"topic": "a b"}, Code.ILLEGAL_TOPIC),
        ({"sql": ""}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"timeout_s": 3.0}, Code.ILLEGAL_POLLING_TIME),
    ):
        status, _ = await client.receive(**{"topic": topic, "group": topic, **more})  # type: ignore[arg-type]
        assert status.code == code


@with_proxy
async def test_a_text_too_long_for_a_request_to_a_broker_is_rejected_and_disturbs_no_other_client(
    client: GrpcClient, address: str, topic: str
) -> None:
    """A broker closes the connection that such a header comes on, which all clients share."""
    await client.send(message(topic, b"x", "ID"))
    [got] = await client.receive_all(topic, topic, 1)
    connections = {*client.proxy.upstream("", None).session._connections.values()}
    long, place, group = 2_000_000 * "x", pb.Resource(name=topic), pb.Resource(name=topic)
    status, _ = await client.receive(topic, topic, tags=long)
    assert status.code == Code.ILLEGAL_FILTER_EXPRESSION
    handle = got.system_properties.receipt_handle
    for name, request, code in (
        ("RecallMessage", pb.RecallMessageRequest(topic=place, recall_handle=long), Code.BAD_REQUEST),
        (
            "EndTransaction",
            pb.EndTransactionRequest(topic=place, transaction_id=long, resolution=pb.COMMIT),
            Code.INVALID_TRANSACTION_ID,
        ),
        (
            "ForwardMessageToDeadLetterQueue",
            pb.ForwardMessageToDeadLetterQueueRequest(group=group, topic=place, receipt_handle=handle, message_id=long),
            Code.ILLEGAL_MESSAGE_ID,
        ),
    ):
        assert (await client.call(name, request)).status.code == code
    assert connections == {*client.proxy.upstream("", None).session._connections.values()}
    assert all(connection.is_open for connection in connections)


@with_proxy
async def test_a_message_with_a_strange_count_of_deliveries_is_delivered(
    client: GrpcClient, address: str, topic: str
) -> None:
    """Other protocols' producers can set it; no other message may be held up."""
    await client.send(message(topic, b"good", "ID"))

    def store() -> None:
        with RawClient(address, header_type=HeaderType.JSON) as raw:
            for times in ((1 << 31) - 1, -(1 << 31)):
                ext = in_letters(topic, j=str(times))
                header, _ = raw.request(RequestCode.SEND_MESSAGE_V2, ext, b"%d" % times)
                assert header.code == 0, header

    await asyncio.to_thread(store)
    found = await client.receive_all(topic, topic, 3)
    attempts = {each.body: each.system_properties.delivery_attempt for each in found}
    assert attempts == {b"good": 1, b"2147483647": (1 << 31) - 1, b"-2147483648": 1}


class _Routes:
    """In place of a session: the brokers in the route from memory, in a new one, and all that are known."""

    def __init__(self, old: str, new: str, known: str) -> None:
        self._old, self._new = old, new
        self.brokers = SimpleNamespace(slaves=dict.fromkeys(known))

    async def route(self, topic: str, deadline: float) -> Any:
        return SimpleNamespace(brokers=tuple(self._old))

    async def fetch_route(self, topic: str, deadline: float) -> Any:
        return SimpleNamespace(brokers=tuple(self._new))


@pytest.mark.parametrize(
    ("old", "new", "known", "raised"),
    [("ab", "", "ab", None), ("a", "ab", "ab", None), ("a", "a", "ab", BrokerNotFound), ("a", "a", "a", Rejected)],
)
@in_asyncio
async def test_a_handle_of_a_broker_that_is_away_is_to_be_tried_again(
    old: str, new: str, known: str, raised: type[Exception] | None
) -> None:
    """A name server leaves such a broker out; clients take a wrong handle as final."""
    session: Any = _Routes(old, new, known)
    expected = nullcontext() if raised is None else pytest.raises(raised)
    with expected:
        await check_broker(session, "orders", "b", Code.INVALID_RECEIPT_HANDLE, math.inf)
    if raised is Rejected:  # a proxy that has just started has heard of no broker that is away
        with pytest.raises(BrokerNotFound):
            await check_broker(session, "orders", "b", Code.NOT_FOUND, math.inf, may_be_away=True)


@pytest.mark.parametrize("name", ["ReceiveMessage", "SendMessage"])
def test_a_broker_that_is_away_is_an_error_after_which_clients_try_again(name: str, topic: str) -> None:
    async def work() -> None:
        async with proxy_of("127.0.0.1:1") as running, client_of(running.address) as client:
            if name == "SendMessage":
                given = pb.SendMessageRequest(messages=[message(topic, b"x", "ID")])
                status = (await client.call(name, given, 3.0)).status
            else:
                status, _ = await client.receive(topic, topic)
            assert status.code in (Code.INTERNAL_SERVER_ERROR, Code.PROXY_TIMEOUT)

    with suppress(grpc.RpcError):
        asyncio.run(work())


@in_asyncio
async def test_receivers_that_no_client_waits_with_are_forgotten(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks with a filter of its own each time would otherwise have the proxy keep them all."""
    monkeypatch.setattr("reput_proxy.pops._IDLE_MAX", 2)
    monkeypatch.setattr("reput_proxy.receiving.WAIT_MIN_S", 0.01)
    async with proxy_of(address) as running, client_of(running.address) as client:
        waiting = asyncio.ensure_future(client.receive_all(topic, topic, 1, wait_s=20.0, tags="waiting"))
        await until(lambda: running.proxy.receives == 1)
        for number in range(5):
            status, _ = await client.receive(topic, topic, wait_s=0.0, tags=f"tag-{number}")
            assert status.code == Code.MESSAGE_NOT_FOUND
        kept = [wanted.tags for wanted in running.proxy.upstream("", None).pops._fetchers]
        assert kept == ["waiting", "tag-3", "tag-4"]
        await client.send(message(topic, b"x", "ID", tag="waiting"))
        assert bodies(await waiting) == [b"x"]


@in_asyncio
async def test_receivers_of_many_waits_that_end_at_once_are_forgotten(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_proxy.pops._IDLE_MAX", 2)
    async with proxy_of(address) as running, client_of(running.address) as client:
        waits = [
            asyncio.ensure_future(client.receive(topic, topic, wait_s=20.0, tags=f"tag-{number}"))
            for number in range(20)
        ]
        await until(lambda: running.proxy.receives == 20)
        pops = running.proxy.upstream("", None).pops
        assert len(pops._fetchers) == 20
        pops.end_waiting()
        await asyncio.gather(*waits)
        assert len(pops._fetchers) == 2


def test_a_receive_of_an_unknown_topic_logs_nothing(address: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """Any client can name topics."""

    async def work() -> None:
        async with proxy_of(address) as running, client_of(running.address) as client:
            status, _ = await client.receive(topic, topic, wait_s=5.0)
            assert status.code == Code.MESSAGE_NOT_FOUND

    with caplog.at_level(logging.INFO):
        asyncio.run(work())
    assert [record.getMessage() for record in caplog.records if topic in record.getMessage()] == []
