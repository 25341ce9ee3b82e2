"""A client id belongs to the user of its open connections: no other user receives what is sent to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from reput_broker.access.model import Account, User
from reput_broker.remoting.request import ClientAnswer, Response
from reput_broker.reply.processor import SETTLE_S
from reput_protocol.codes import RequestCode
from reput_protocol.commands.consumers import ConsumerRunningInfoHeader
from reput_protocol.commands.group import HeartbeatData, LockBatchBody, ProducerData
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.commands.stage import StageRecordsHeader, encode_staged_head
from reput_protocol.properties import encode_properties
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.put_block import BatchItem, encode_batch, encode_block
from reput_protocol.rights import rule_of
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.member_fakes import consumer_data
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)
TAKEN = ClientAnswer(0, None, {}, b"")
RULES = (rule_of("topic:*", ["read", "write"]), rule_of("group:*", ["read"]))
USERS = {name: Account(User(name, "a-secret-of-16-characters"), RULES) for name in ("alice", "eve")}


def of_user(bench: BrokerBench, name: str, client_id: str = "victim") -> BenchClient:
    client = bench.client()
    client.principal, client.client_id = USERS[name], client_id
    return client


def at_host(bench: BrokerBench, host: str, client_id: str = "victim") -> BenchClient:
    client = bench.client()
    client.peer, client.is_local, client.client_id = f"{host}:40000", False, client_id
    return client


async def heartbeat(client: BenchClient, *groups: str) -> Response:
    consumers = [consumer_data(group, "T") for group in groups]
    body = HeartbeatData(client.client_id, consumers, [ProducerData("asking")]).to_json()
    response = await client.ask(RequestCode.HEART_BEAT, {}, body)
    assert response is not None
    return response


async def reply(bench: BrokerBench, to: str) -> Response:
    found = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000", "REPLY_TO_CLIENT": to}
    replier = bench.client()
    ext = replier.send_header("DefaultCluster_REPLY_TOPIC", found).to_ext_v2(replier.header_type)
    response = await replier.ask(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"confidential")
    assert response is not None
    return response


@pytest.mark.parametrize("by_user", [True, False])
async def test_another_users_heartbeat_takes_over_neither_replies_nor_members(tmp_path: Path, by_user: bool) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        victim = of_user(bench, "alice") if by_user else at_host(bench, "10.0.0.1")
        eve = of_user(bench, "eve") if by_user else at_host(bench, "10.6.6.6")
        assert (await heartbeat(victim, "g")).code == 0
        refused = await heartbeat(eve, "g")
        assert refused.code != 0
        assert "client id 'victim' belongs to an open connection that is not of" in (refused.remark or "")
        victim.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0
        ext = ConsumerRunningInfoHeader("g", "victim").to_ext(eve.header_type)
        victim.answers.append(TAKEN)
        asked = await bench.client().ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ext)
        assert asked is not None
        assert [code for code, _, _ in victim.calls] == [
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
        ]
        assert (eve.calls, eve.sent) == ([], [])


async def test_another_users_request_message_takes_over_no_replies(tmp_path: Path) -> None:
    """A requester may be known only by the request that it sent, as RocketMQ's Go client is."""
    asks = {"REPLY_TO_CLIENT": "victim", "CORRELATION_ID": "c-1", "TTL": "3000"}
    async with broker_bench(tmp_path / "s") as bench:
        victim, eve = of_user(bench, "alice"), of_user(bench, "eve")
        assert (await victim.send("T", b"question", asks)).code == 0
        assert (await eve.send("T", b"question", asks)).code != 0, "its reply would go to another user"
        assert (await heartbeat(eve)).code != 0
        victim.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0
        assert (len(victim.calls), eve.calls) == (1, [])


ASKS = {"REPLY_TO_CLIENT": "victim", "CORRELATION_ID": "c-1", "TTL": "3000", "UNIQ_KEY": "0A"}


async def asks_in_a_block(client: BenchClient, topic: str) -> Response | None:
    data, _ = encode_block([b"x", b"y"], [b"", encode_properties(ASKS)], topic, 0, 1)
    return await client.ask(
        RequestCode.PUT_MESSAGE, PutMessageHeader(topic, 0, 2).to_ext(client.header_type), bytes(data)
    )


async def asks_in_a_batch(client: BenchClient, topic: str, **more: str) -> Response | None:
    units = [BatchItem(0, b"x", b""), BatchItem(0, b"y", encode_properties({**ASKS, **more}))]
    ext = client.send_header(topic, {}).to_ext_v2(client.header_type)
    return await client.ask(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(units))


async def asks_in_an_unusual_batch(client: BenchClient, topic: str) -> Response | None:
    return await asks_in_a_batch(client, topic, POP_CK="dropped by the broker")


async def asks_in_staged_records(client: BenchClient, topic: str) -> Response | None:
    data, _ = encode_block([b"x"], [encode_properties(ASKS)], topic, 0, 1)
    staged = encode_staged_head(topic, 0, 1, data) + bytes(data)
    header = StageRecordsHeader("q", 0, 0, "0" * 32, 0)
    return await client.ask(RequestCode.STAGE_RECORDS, header.to_ext(client.header_type), staged)


async def asks_delayed(client: BenchClient, topic: str) -> Response | None:
    return await client.send(topic, b"question", {**ASKS, "DELAY": "3"})


async def asks_with_another_topics_message(client: BenchClient, topic: str) -> Response | None:
    """Send to a retry topic what the consumer has never received."""
    del topic
    await client.send("%RETRY%g", b"question", ASKS, reconsume_times=1)
    (stored,) = await client._bench.read("%RETRY%g")
    return Response(int("REPLY_TO_CLIENT" not in stored.property_map()))


EVERY_WAY = (
    asks_in_a_block,
    asks_in_a_batch,
    asks_in_an_unusual_batch,
    asks_in_staged_records,
    asks_delayed,
    asks_with_another_topics_message,
)


@pytest.mark.parametrize("ask", EVERY_WAY, ids=lambda way: way.__name__)
async def test_no_way_to_store_a_message_names_another_users_client(
    tmp_path: Path, ask: Callable[[BenchClient, str], Awaitable[Response | None]]
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        victim, eve = of_user(bench, "alice"), of_user(bench, "eve", "eves")
        assert (await heartbeat(victim, "g")).code == 0
        refused = await ask(eve, "T")
        assert refused is not None
        assert refused.code != 0
        assert await bench.read("T") == []
        if ask is not asks_with_another_topics_message:
            accepted = await ask(victim, "T")
            assert accepted is not None
            assert accepted.code == 0, accepted.remark


@pytest.mark.parametrize("ask", [asks_in_a_block, asks_in_a_batch], ids=lambda way: way.__name__)
async def test_a_request_in_a_block_makes_its_sender_known(
    tmp_path: Path, ask: Callable[[BenchClient, str], Awaitable[Response | None]]
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        requester = of_user(bench, "alice")
        accepted = await ask(requester, "T")
        assert accepted is not None
        assert accepted.code == 0
        requester.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0


async def test_a_request_that_its_consumer_returns_can_still_be_answered(tmp_path: Path) -> None:
    """Its consumer is of another user than its requester."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        requester, consumer = of_user(bench, "alice"), of_user(bench, "eve", "eves")
        assert (await requester.send("T", b"question", ASKS)).code == 0
        assert (await heartbeat(consumer, "g")).code == 0
        (received,) = await bench.read("T")
        found = {**received.property_map(), "RETRY_TOPIC": "T"}
        found["ORIGIN_MESSAGE_ID"] = received.offset_message_id
        assert (await consumer.send("%RETRY%g", b"question", found, reconsume_times=1)).code == 0
        (returned,) = await bench.read("%RETRY%g")
        assert returned.property_map()["REPLY_TO_CLIENT"] == "victim"


async def test_an_administrator_copies_others_requests_and_takes_over_no_replies(tmp_path: Path) -> None:
    asks = {"REPLY_TO_CLIENT": "victim", "CORRELATION_ID": "c-1", "TTL": "3000"}
    async with broker_bench(tmp_path / "s") as bench:
        victim, admin = of_user(bench, "alice"), bench.client()
        admin.principal = Account(User("admin", "secret-of-the-admin", is_admin=True), ())
        assert (await heartbeat(victim)).code == 0
        assert (await admin.send("T", b"question", asks)).code == 0
        victim.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0
        assert (len(victim.calls), admin.calls) == (1, [])


async def test_without_users_a_copied_request_is_stored_and_takes_over_nothing(tmp_path: Path) -> None:
    asks = {"REPLY_TO_CLIENT": "victim", "CORRELATION_ID": "c-1", "TTL": "3000"}
    async with broker_bench(tmp_path / "s") as bench:
        victim, other = at_host(bench, "10.0.0.1"), at_host(bench, "10.6.6.6")
        assert (await victim.send("T", b"question", asks)).code == 0
        assert (await other.send("T", b"question", asks)).code == 0
        victim.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0
        assert (len(victim.calls), other.calls) == (1, [])


async def test_a_client_may_have_several_connections_and_reconnect(tmp_path: Path) -> None:
    """RocketMQ's Java client has one for its VIP channel, and a client whose machine crashed leaves one open."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.pass_time(SETTLE_S)
        first, second = of_user(bench, "alice"), of_user(bench, "alice")
        assert [(await heartbeat(client, "g")).code for client in (first, second, first)] == [0, 0, 0]
        bench.gone(first)
        second.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0, "the other connection is still open"
        assert (await heartbeat(of_user(bench, "eve"))).code != 0
        bench.gone(second)
        assert (await heartbeat(of_user(bench, "eve"))).code == 0, "no connection has it any more"


async def test_a_user_takes_its_id_over_at_once_from_a_connection_that_died_without_a_word(tmp_path: Path) -> None:
    """Its machine lost power, and the program starts on another one, with another subscription."""
    async with broker_bench(tmp_path / "s", groups={"refuse_subscription_conflicts": True}) as bench:
        await bench.create_topic("T")
        await bench.create_topic("U")
        dead, alive = of_user(bench, "alice"), of_user(bench, "alice")
        dead.peer, alive.peer = "10.0.0.1:1", "10.0.0.2:1"
        dead.is_local = alive.is_local = False
        assert (await heartbeat(dead, "g")).code == 0
        locked = LockBatchBody("victim", "g", [MessageQueue("T", bench.broker.config.broker_name, 0)])
        await dead.ask(RequestCode.LOCK_BATCH_MQ, {}, locked.to_json())
        body = HeartbeatData("victim", [consumer_data("g", "U")], [ProducerData("asking")]).to_json()
        joined = await alive.ask(RequestCode.HEART_BEAT, {}, body)
        assert joined is not None
        assert joined.code == 0, joined.remark
        response = await alive.ask(RequestCode.LOCK_BATCH_MQ, {}, locked.to_json())
        assert response is not None
        assert b'"queueId":0' in bytes(response.body)
        other = of_user(bench, "alice", "other")
        body = HeartbeatData("other", [consumer_data("g", "U")], []).to_json()
        joined = await other.ask(RequestCode.HEART_BEAT, {}, body)
        assert joined is not None
        assert joined.code == 0, "the dead connection keeps no other member out"
        alive.answers.append(TAKEN)
        assert (await reply(bench, "victim")).code == 0
        assert (await heartbeat(of_user(bench, "eve"))).code != 0
        assert dead.calls == []


async def test_another_users_locks_are_not_released(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        victim, eve = of_user(bench, "alice"), of_user(bench, "eve")
        assert (await heartbeat(victim, "g")).code == 0
        queue = MessageQueue("T", bench.broker.config.broker_name, 0)
        body = LockBatchBody("victim", "g", [queue]).to_json()
        for client, code, is_served in (
            (victim, RequestCode.LOCK_BATCH_MQ, True),
            (eve, RequestCode.UNLOCK_BATCH_MQ, False),
            (eve, RequestCode.LOCK_BATCH_MQ, False),
        ):
            response = await client.ask(code, {}, body)
            assert response is not None
            assert (response.code == 0) is is_served
