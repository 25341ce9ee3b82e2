"""Routes, settings, transactions, pulls and the end of a proxy, as gRPC clients see them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client import Admin
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.topic import CreateTopicHeader
from reput_protocol.wire.header import HeaderType
from reput_proxy import messaging_pb2 as pb
from reput_proxy import server
from reput_proxy.messages import duration_of, timestamp_of
from reput_proxy.telemetry import retry_policy
from support.grpc_client import (
    TIMEOUT_S,
    Code,
    GrpcClient,
    Telemetry,
    bodies,
    client_of,
    consumer_settings,
    in_asyncio,
    message,
    producer_settings,
    proxy_of,
    receive_request,
    with_proxy,
)
from support.waiting import until

DIALLED = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="10.1.2.3", port=4567)])


def route_request(topic: str, endpoints: pb.Endpoints | None = DIALLED) -> pb.QueryRouteRequest:
    return pb.QueryRouteRequest(topic=pb.Resource(name=topic), endpoints=endpoints)


async def create_topic(address: str, topic: str, queues: int = 4, kind: str | None = None) -> None:
    attributes = None if kind is None else f"+message.type={kind}"
    header = CreateTopicHeader(topic, queues, queues, attributes=attributes)
    async with Admin(address) as admin:
        await admin._ask_each(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(HeaderType.MSGPACK), f"create {topic}")


# -- routes ------------------------------------------------------------------------------------------------------------


@with_proxy
async def test_a_route_names_the_address_that_the_client_has_dialled(
    client: GrpcClient, address: str, topic: str
) -> None:
    await create_topic(address, topic, queues=3)
    answer = await client.call("QueryRoute", route_request(topic))
    assert answer.status.code == Code.OK
    assert [queue.id for queue in answer.message_queues] == [0, 1, 2]
    for queue in answer.message_queues:
        assert (queue.broker.endpoints, queue.permission, queue.topic.name) == (DIALLED, pb.READ_WRITE, topic)
    assigned = await client.call(
        "QueryAssignment",
        pb.QueryAssignmentRequest(topic=pb.Resource(name=topic), group=pb.Resource(name=topic), endpoints=DIALLED),
    )
    assert [each.message_queue.id for each in assigned.assignments] == [-1]
    unknown = await client.call("QueryRoute", route_request(topic, None))
    assert unknown.status.code == Code.ILLEGAL_ACCESS_POINT


@pytest.mark.parametrize(
    ("kind", "listed"),
    [
        (None, [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ("MIXED", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ("DELAY", [pb.DELAY]),
        ("PRIORITY", [pb.PRIORITY]),
    ],
)
@in_asyncio
async def test_a_route_lists_types_that_its_clients_know(
    address: str, topic: str, kind: str | None, listed: list[pb.MessageType]
) -> None:
    """RocketMQ's client for Java, 5.0.7, fails at a route with PRIORITY, which a topic of any type takes too."""
    await create_topic(address, topic, kind=kind)
    async with proxy_of(address) as running, client_of(running.address) as client:
        answer = await client.call("QueryRoute", route_request(topic))
        assert {tuple(queue.accept_message_types) for queue in answer.message_queues} == {tuple(listed)}
        if kind is None:
            await client.send(message(topic, b"x", "ID", priority=1))


@in_asyncio
async def test_a_route_names_the_advertised_address(address: str, topic: str) -> None:
    async with proxy_of(address, advertise="proxy.example:8081") as running, client_of(running.address) as client:
        answer = await client.call("QueryRoute", route_request(topic))
        endpoints = answer.message_queues[0].broker.endpoints
        assert endpoints.scheme == pb.DOMAIN_NAME
        assert [(each.host, each.port) for each in endpoints.addresses] == [("proxy.example", 8081)]


@with_proxy
async def test_a_topic_with_a_type_takes_messages_of_it_only(client: GrpcClient, address: str, topic: str) -> None:
    await create_topic(address, topic, kind="FIFO")
    answer = await client.call("QueryRoute", route_request(topic))
    assert [*answer.message_queues[0].accept_message_types] == [pb.FIFO]
    plain = pb.SendMessageRequest(messages=[message(topic, b"x", "ID")])
    answer = await client.call("SendMessage", plain)
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    await client.send(message(topic, b"x", "ID", message_group="g"))


def test_a_topic_that_is_not_created_on_use_is_not_found(tmp_path: Path) -> None:
    config = BrokerConfig.model_validate(
        {"data_dir": tmp_path, "port": 0, "http_port": None, "topics": {"auto_create": False}}
    )

    async def work(address: str) -> None:
        async with proxy_of(address) as running, client_of(running.address) as client:
            answer = await client.call("QueryRoute", route_request("missing"))
            assert answer.status.code == Code.TOPIC_NOT_FOUND
            given = pb.SendMessageRequest(messages=[message("missing", b"x", "ID")])
            assert (await client.call("SendMessage", given)).status.code == Code.TOPIC_NOT_FOUND

    with BackgroundBroker(config) as broker:
        asyncio.run(work(broker.address))


# -- settings ----------------------------------------------------------------------------------------------------------


@with_proxy
async def test_a_client_gets_its_settings_with_a_retry_policy(client: GrpcClient, address: str, topic: str) -> None:
    producer = await Telemetry(client).settle(producer_settings(topic))
    assert producer.publishing.max_body_size == 4 << 20
    assert producer.backoff_policy.max_attempts == 3
    async with Admin(address) as admin:
        await admin.put_group(
            SubscriptionGroupConfig(f"{topic}-2", True, consume_message_orderly=True, retry_max_times=4)
        )
    plain = await Telemetry(client).settle(consumer_settings(topic, topic))
    assert (plain.subscription.fifo, plain.backoff_policy.max_attempts) == (False, 17)
    assert [each.seconds for each in plain.backoff_policy.customized_backoff.next[:4]] == [1, 5, 10, 30]
    ordered = await Telemetry(client).settle(consumer_settings(f"{topic}-2", topic))
    assert (ordered.subscription.fifo, ordered.backoff_policy.max_attempts) == (True, 5)
    heartbeat = pb.HeartbeatRequest(group=pb.Resource(name=topic), client_type=pb.PUSH_CONSUMER)
    assert (await client.call("Heartbeat", heartbeat)).status.code == Code.OK


@pytest.mark.parametrize(
    "policy",
    [
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, "x"]}},
        {"type": "CUSTOMIZED", "customizedRetryPolicy": [1000]},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": None}},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 1 << 80}},
    ],
)
def test_a_retry_policy_that_cannot_be_read_is_that_of_a_group_without_one(policy: dict[str, Any]) -> None:
    """A broker keeps what any tool has stored, and the group's consumers must connect all the same."""
    config = SubscriptionGroupConfig("billing", retry_max_times=1 << 40, group_retry_policy=policy)
    found = retry_policy(config)
    assert found.max_attempts == (1 << 31) - 1
    assert found.customized_backoff == retry_policy(SubscriptionGroupConfig("billing")).customized_backoff


@with_proxy
async def test_settings_of_neither_kind_end_the_stream(client: GrpcClient, address: str, topic: str) -> None:
    stream = Telemetry(client)
    await stream.call.write(pb.TelemetryCommand(settings=pb.Settings()))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stream.call.read()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# -- transactions ------------------------------------------------------------------------------------------------------


async def half_message(client: GrpcClient, topic: str, message_id: str) -> pb.SendResultEntry:
    [entry] = await client.send(message(topic, message_id.encode(), message_id, message_type=pb.TRANSACTION))
    assert entry.transaction_id
    return entry


async def end(client: GrpcClient, topic: str, transaction_id: str, how: Any, source: Any = pb.SOURCE_CLIENT) -> Any:
    request = pb.EndTransactionRequest(
        topic=pb.Resource(name=topic), transaction_id=transaction_id, resolution=how, source=source
    )
    return (await client.call("EndTransaction", request)).status.code


@in_asyncio
async def test_a_transaction_can_be_ended_at_another_proxy(address: str, topic: str) -> None:
    async with (
        proxy_of(address) as first,
        proxy_of(address) as second,
        client_of(first.address) as client,
        client_of(second.address) as other,
    ):
        committed = await half_message(client, topic, "committed")
        rolled_back = await half_message(client, topic, "rolled-back")
        assert await end(other, topic, committed.transaction_id, pb.COMMIT) == Code.OK
        assert await end(other, topic, rolled_back.transaction_id, pb.ROLLBACK) == Code.OK
        assert await end(client, topic, "abc", pb.COMMIT) == Code.INVALID_TRANSACTION_ID
        got = await client.receive_all(topic, topic, 1)
        assert bodies(got) == [b"committed"]


@with_proxy
async def test_an_open_transaction_is_checked_with_a_producer_of_its_topic(
    client: GrpcClient, address: str, topic: str
) -> None:
    stream, other = Telemetry(client), Telemetry(client)
    await stream.settle(producer_settings(topic))
    await other.settle(producer_settings(f"{topic}-other"))
    await half_message(client, topic, "open")
    command = (await stream.read()).recover_orphaned_transaction_command
    assert command.message.body == b"open"
    code = await end(client, topic, command.transaction_id, pb.COMMIT, pb.SOURCE_SERVER_CHECK)
    assert code == Code.OK
    assert bodies(await client.receive_all(topic, topic, 1)) == [b"open"]


@in_asyncio
async def test_a_proxy_that_has_started_again_is_asked_about_topics_for_transactions(address: str, topic: str) -> None:
    await create_topic(address, topic, kind="TRANSACTION")
    async with proxy_of(address) as running, client_of(running.address) as client:
        await half_message(client, topic, "open")
    async with proxy_of(address) as running, client_of(running.address) as client:
        stream = Telemetry(client)
        await stream.settle(producer_settings(topic))
        command = (await stream.read()).recover_orphaned_transaction_command
        assert await end(client, topic, command.transaction_id, pb.ROLLBACK) == Code.OK


# -- push consumers ----------------------------------------------------------------------------------------------------


@in_asyncio
async def test_a_slow_push_consumer_keeps_its_messages_and_its_handle(address: str, topic: str) -> None:
    async with proxy_of(address) as running, client_of(running.address) as client:
        running.proxy.renewals._invisible_s, running.proxy.renewals._ahead_s = 1.2, 0.8
        running.proxy.renewals.invisible_ms = 1200
        await client.send(message(topic, b"x", "ID"))
        [got] = await client.receive_all(topic, topic, 1, auto_renew=True)
        status, others = await client.receive(topic, topic, wait_s=5, auto_renew=True)
        assert (status.code, others) == (Code.MESSAGE_NOT_FOUND, [])
        assert (await client.ack(topic, got)).status.code == Code.OK
        assert len(running.proxy.renewals) == 0


@in_asyncio
async def test_a_message_that_is_acknowledged_through_another_proxy_is_not_renewed(address: str, topic: str) -> None:
    async with (
        proxy_of(address) as first,
        proxy_of(address) as second,
        client_of(first.address) as client,
        client_of(second.address) as moved,
    ):
        first.proxy.renewals._invisible_s, first.proxy.renewals._ahead_s = 30.0, 29.5
        await client.send(message(topic, b"x", "ID"))
        [got] = await client.receive_all(topic, topic, 1, auto_renew=True)
        assert (await moved.ack(topic, got)).status.code == Code.OK
        await until(lambda: len(first.proxy.renewals) == 0)


@in_asyncio
async def test_the_messages_of_a_push_consumer_that_dies_are_redelivered(address: str, topic: str) -> None:
    """Unless another client was heard, they were renewed for three hours."""
    async with proxy_of(address) as running, client_of(running.address, "client-2") as other:
        renewals = running.proxy.renewals
        renewals._invisible_s, renewals._ahead_s, renewals.invisible_ms = 1.2, 0.8, 1200
        running.proxy.clients.away_s = 1.0
        await other.send(message(topic, b"x", "ID"))
        async with client_of(running.address) as client:
            await client.receive_all(topic, topic, 1, auto_renew=True)
            [held] = renewals._held.values()
            await until(lambda: held.delivery.receipt_handle != held.key[1])
        [got] = await other.receive_all(topic, topic, 1, wait_s=20)
        assert got.system_properties.delivery_attempt == 2


@in_asyncio
async def test_a_push_consumer_whose_stream_ends_has_a_while_to_come_back(address: str, topic: str) -> None:
    async with proxy_of(address) as running, client_of(running.address, "client-2") as other:
        running.proxy.clients.away_s = 1.0
        await other.send(message(topic, b"x", "ID"))
        async with client_of(running.address, shares=False) as client:
            await Telemetry(client).settle(consumer_settings(topic, topic))
            await client.receive_all(topic, topic, 1, auto_renew=True)
        await until(lambda: len(running.proxy._expected_back) == 1)
        async with client_of(running.address, shares=False) as client:
            await Telemetry(client).settle(consumer_settings(topic, topic))
            await until(lambda: not running.proxy._expected_back)
            assert len(running.proxy.renewals) == 1
        [got] = await other.receive_all(topic, topic, 1, wait_s=20)
        assert got.system_properties.delivery_attempt == 2


class Relay:
    """A network between a client and a proxy, which can swallow all bytes without closing a connection."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self.swallows = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what one connection carries."""
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not self.swallows:
                    sink.write(data)
        sink.close()


@in_asyncio
async def test_the_messages_of_a_push_consumer_whose_machine_vanishes_are_redelivered(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection was open for hours, and its messages renewed. One that waits quietly is not taken for it."""
    monkeypatch.setattr(server, "_KEEPALIVE_MS", 300)
    monkeypatch.setattr(server, "_PING_TIMEOUT_MS", 300)
    async with proxy_of(address) as running:
        running.proxy.clients.away_s = 0.5
        relay = Relay(running.address)
        network = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
        port = network.sockets[0].getsockname()[1]
        async with (
            network,
            client_of(f"127.0.0.1:{port}", "client-1", shares=False) as client,
            client_of(running.address, "client-2", shares=False) as other,
        ):
            stream, quiet = Telemetry(client), Telemetry(other)
            await stream.settle(consumer_settings(topic, topic))
            await client.send(message(topic, b"x", "ID"))
            await client.receive_all(topic, topic, 1, auto_renew=True)
            await quiet.settle(consumer_settings(topic, topic, pb.SIMPLE_CONSUMER))
            await asyncio.sleep(1.0)  # several pings
            assert len(running.proxy.clients) == 2
            relay.swallows = True
            [got] = await other.receive_all(topic, topic, 1, wait_s=20)
            assert got.system_properties.delivery_attempt == 2
            assert not quiet.call.done()


@in_asyncio
async def test_what_a_push_consumer_has_when_it_leaves_is_redelivered_soon(address: str, topic: str) -> None:
    async with (
        proxy_of(address) as running,
        client_of(running.address) as client,
        client_of(running.address, "client-2") as other,
    ):
        stream = Telemetry(client)
        await stream.settle(consumer_settings(topic, topic))
        await client.send(*(message(topic, b"%d" % n, f"ID{n}") for n in range(5)))
        await client.receive_all(topic, topic, 5, auto_renew=True)
        assert len(running.proxy.renewals) == 5
        leaving = pb.NotifyClientTerminationRequest(group=pb.Resource(name=topic))
        assert (await client.call("NotifyClientTermination", leaving)).status.code == Code.OK
        got = await other.receive_all(topic, topic, 5, auto_renew=True)
        assert {each.system_properties.delivery_attempt for each in got} == {2}


@in_asyncio
async def test_a_client_without_an_id_cannot_have_messages_that_are_renewed(address: str, topic: str) -> None:
    async with proxy_of(address) as running, client_of(running.address, "") as client:
        status, _ = await client.receive(topic, topic, auto_renew=True)
        assert status.code == Code.CLIENT_ID_REQUIRED
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await Telemetry(client).settle(consumer_settings(topic, topic))
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# -- pulls -------------------------------------------------------------------------------------------------------------


@with_proxy
async def test_a_client_pulls_and_keeps_its_place(client: GrpcClient, address: str, topic: str) -> None:
    await create_topic(address, topic, queues=1)
    await client.send(*(message(topic, b"%d" % n, f"ID{n}") for n in range(5)))
    queue = pb.MessageQueue(topic=pb.Resource(name=topic), id=0)
    group = pb.Resource(name=topic)
    pull = pb.PullMessageRequest(group=group, message_queue=queue, offset=1, batch_size=2)
    status, *messages, last = await client.responses("PullMessage", pull)
    assert status.status.code == Code.OK
    assert [each.message.body for each in messages] == [b"1", b"2"]
    assert last.next_offset == 3
    nothing = pb.GetOffsetRequest(group=group, message_queue=queue)
    assert (await client.call("GetOffset", nothing)).status.code == Code.OFFSET_NOT_FOUND
    await client.call("UpdateOffset", pb.UpdateOffsetRequest(group=group, message_queue=queue, offset=3))
    assert (await client.call("GetOffset", nothing)).offset == 3
    for policy, offset in ((pb.BEGINNING, 0), (pb.END, 5)):
        request = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=policy)
        assert (await client.call("QueryOffset", request)).offset == offset
    by_time = pb.QueryOffsetRequest(message_queue=queue, query_offset_policy=pb.TIMESTAMP, timestamp=timestamp_of(1000))
    assert (await client.call("QueryOffset", by_time)).offset == 0
    pull.offset = 5
    pull.long_polling_timeout.CopyFrom(duration_of(20_000))
    waiting = asyncio.ensure_future(client.responses("PullMessage", pull))
    await until(lambda: client.proxy.receives == 1)
    await client.send(message(topic, b"5", "ID5"))
    assert (await waiting)[1].message.body == b"5"


# -- the end -----------------------------------------------------------------------------------------------------------


@in_asyncio
async def test_a_proxy_that_ends_answers_what_waits(address: str, topic: str) -> None:
    async with client_of_later() as connect:
        async with proxy_of(address) as running:
            client = await connect(running.address)
            await client.send(message(topic, b"x", "ID"))
            [got] = await client.receive_all(topic, topic, 1)
            stream = Telemetry(client)
            await stream.settle(consumer_settings(topic, topic))
            waiting = asyncio.ensure_future(
                client.responses("ReceiveMessage", receive_request(topic, topic, wait_s=20))
            )
            await until(lambda: running.proxy.receives == 1)
            assert (await client.ack(topic, got)).status.code == Code.OK
        async with asyncio.timeout(TIMEOUT_S):
            assert (await waiting)[0].status.code == Code.MESSAGE_NOT_FOUND
            assert await stream.call.read() is grpc.aio.EOF
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.ack(topic, got)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


class client_of_later:  # noqa: N801
    """A client that outlives the proxy it is connected to."""

    async def __aenter__(self) -> Any:
        self._client: GrpcClient | None = None

        async def connect(address: str) -> GrpcClient:
            self._client = GrpcClient(address)
            return self._client

        return connect

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.aclose()


@with_proxy
async def test_thousands_of_clients_that_come_at_once_are_served(client: GrpcClient, address: str, topic: str) -> None:
    """gRPC cancelled some of them at random."""
    request = pb.HeartbeatRequest(group=pb.Resource(name=topic), client_type=pb.PUSH_CONSUMER)
    answers = await asyncio.gather(*(client.call("Heartbeat", request) for _ in range(3000)))
    assert {answer.status.code for answer in answers} == {Code.OK}


@in_asyncio
async def test_receives_above_the_limit_are_rejected(address: str, topic: str) -> None:
    async with proxy_of(address) as running, client_of(running.address) as client:
        running.proxy._receives_max = 2
        waiting = [asyncio.ensure_future(client.receive(topic, topic)) for _ in range(2)]
        await until(lambda: running.proxy.receives == 2)
        status, _ = await client.receive(topic, topic)
        assert status.code == Code.TOO_MANY_REQUESTS
        await client.send(message(topic, b"x", "ID"))
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
