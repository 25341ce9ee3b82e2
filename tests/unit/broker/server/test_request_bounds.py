"""What one request may cost other clients: refused above a limit, and handled in pieces below it."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.groups import offset_updates
from reput_broker.put.held_pulls import HELD_BYTES
from reput_broker.remoting.request import Request, Response, write_in_turns
from reput_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.base import LargeBody
from reput_protocol.commands.group import (
    CheckClientBody,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    ProducerData,
    SubscriptionData,
    UnregisterClientHeader,
)
from reput_protocol.commands.pull import PullMessageHeader
from reput_protocol.filter.sql import sql_filter
from reput_protocol.properties import TAGS
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.frames import decode_header, encode_header
from reput_protocol.wire.header import Header, HeaderType
from support.broker_bench import BenchClient, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)


class Turns:
    """How often another task ran."""

    count = 0


@asynccontextmanager
async def beside() -> AsyncIterator[Turns]:
    """Count the turns that another task gets while the block runs."""
    turns = Turns()

    async def take() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            turns.count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        yield turns
        nursery.cancel_scope.cancel()


async def beat(client: BenchClient, *consumers: ConsumerData, producers: tuple[str, ...] = ()) -> Response:
    body = HeartbeatData(client.client_id, list(consumers), [ProducerData(group) for group in producers]).to_json()
    response = await client.ask(RequestCode.HEART_BEAT, {}, body)
    assert response is not None
    return response


def consumer(group: str, *topics: str, expression: str = "*") -> ConsumerData:
    return ConsumerData(group, subscriptions=[SubscriptionData(topic, expression) for topic in topics])


async def test_a_heartbeat_with_many_groups_is_handled_in_pieces(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        groups = tuple(f"g{number}" for number in range(900))
        async with beside() as turns:
            assert (await beat(client, producers=groups)).code == 0
        assert turns.count > 10
        membership = bench.parts.core.groups.membership
        assert len(membership.producers) == 900
        bench.gone(client)
        assert len(membership.producers) == 0
        assert membership.producers.held_bytes == 0


async def test_more_than_is_held_of_one_client_is_refused_whole(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", groups={"client_memory_max": "64KiB"}) as bench:
        client, membership = bench.client(), bench.parts.core.groups.membership
        many = tuple(f"g{number}" for number in range(200))
        for response in (
            await beat(client, producers=many),
            await beat(client, consumer("g", *(f"T{number}" for number in range(200)))),
            await beat(client, consumer("g", "T", expression="x" * 65_000)),
        ):
            assert response.code == ResponseCode.INVALID_PARAMETER
            assert response.remark is not None
            assert "groups.client_memory_max" in response.remark
        assert membership.clients.get(client) is None
        assert (await beat(client, producers=many[:60])).code == 0
        assert (await beat(client, producers=many[60:110])).code == 0, "heartbeats add up"
        assert (await beat(client, producers=many[110:])).code == ResponseCode.INVALID_PARAMETER
        assert len(membership.producers) == 110


async def test_at_the_limit_of_all_clients_members_stay_and_others_are_refused(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", groups={"memory_max": "64KiB"}) as bench:
        member, greedy = bench.client(), bench.client()
        assert (await beat(member, consumer("mine", "T"))).code == 0
        many = tuple(f"g{number}" for number in range(100))
        assert (await beat(greedy, producers=many)).code == 0
        newcomer = bench.client()
        response = await beat(newcomer, consumer("other", *(f"T{number}" for number in range(30))))
        assert response.code == ResponseCode.SYSTEM_BUSY
        assert response.remark is not None
        assert "groups.memory_max" in response.remark
        assert (await beat(member, consumer("mine", "T"))).code == 0
        bench.gone(greedy)
        assert (await beat(newcomer, consumer("other", "T"))).code == 0


async def test_names_in_heartbeats_are_checked(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client, membership = bench.client(), bench.parts.core.groups.membership
        for response in (
            await beat(client, producers=("fine", "not\nfine")),
            await beat(client, producers=("fine", "not\u202efine")),
            await beat(client, producers=("fine", "x" * 256)),
            await beat(client, producers=("fine", "\xe9" * 128)),
            await beat(client, producers=("fine", "")),
            await beat(client, consumer("also fine"), producers=("fine",)),
            await beat(client, consumer("bad", "T\x1b[2J"), producers=("fine",)),
        ):
            assert response.code == ResponseCode.INVALID_PARAMETER
        assert [group for group, _ in membership.producers.items()] == ["fine"]
        assert len(membership.online) == 0


async def test_names_that_rocketmq_takes_in_heartbeats_are_taken(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client, membership = bench.client(), bench.parts.core.groups.membership
        groups = ["order.service", "Bestellungen f\xfcr Kunden", "x" * 121, "y" * 255]
        response = await beat(client, consumer("c" * 120, "order.created", "t" * 200), producers=tuple(groups))
        assert response.code == 0, response.remark
        assert [group for group, _ in membership.producers.items()] == groups
        assert membership.online.get("c" * 120) is not None
        for refused in ("c" * 121, "order.service", ""):
            response = await beat(client, consumer(refused, "T"))
            assert response.code == ResponseCode.INVALID_PARAMETER, "a group of consumers has a retry topic"
        half = await client.send_half("T", b"x", group="order.service")
        for _ in range(4):
            await trio.sleep(30)
            await client.heartbeat("order.service")
        assert {asked.group for asked, _ in client.checks()} == {half.group}


async def test_a_heartbeat_that_says_very_much_is_refused(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        body = {"clientID": "c", "consumerDataSet": [{"subscriptionDataSet": [{}] * 20_000}]}
        response = await bench.client().ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        assert response is not None
        assert response.code == ResponseCode.INVALID_PARAMETER
        assert len(bench.parts.core.groups.membership.online) == 0


async def test_a_client_with_too_many_waiting_pulls_is_answered_busy(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", long_polling={"client_memory_max": "64KiB"}) as bench:
        await bench.create_topic("T")
        client, other = bench.client(), bench.client()
        ext = PullMessageHeader(
            "g", "T", 0, 0, 32, int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION), 0, 20_000, "*", 0
        ).to_ext(client.header_type)
        answers: list[Response | None] = []

        async def pull(puller: BenchClient) -> None:
            answers.append(await puller.ask(RequestCode.PULL_MESSAGE, ext))

        async with trio.open_nursery() as nursery:
            for _ in range(33):
                nursery.start_soon(pull, client)
            await trio.sleep(0.1)
            (refused,) = answers
            assert refused is not None
            assert refused.code == ResponseCode.SYSTEM_BUSY, "RocketMQ's clients pull again after a second or more"
            assert refused.remark is not None
            assert "long_polling.client_memory_max" in refused.remark
            assert bench.broker.counters.pulls_throttled == 1
            nursery.start_soon(pull, other)
            await trio.sleep(0.1)
            await client.send("T", b"x")
        assert [answer.code for answer in answers if answer] == [ResponseCode.SYSTEM_BUSY] + [0] * 33


async def test_a_held_pull_of_a_member_that_has_left_gets_no_message(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        await bench.create_topic("U")
        client = bench.client()
        data = ConsumerData("g", subscriptions=[SubscriptionData.of(topic, "*", 1) for topic in "TU"])
        assert (await beat(client, data)).code == 0
        answers: dict[str, Response | None] = {}

        async def pull(topic: str, group: str, offset: int) -> None:
            header = PullMessageHeader(
                group, topic, 0, offset, 32, int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION), 0, 3_000, "*", 0
            )
            ext = header.to_ext(client.header_type)
            answers[group + topic] = await client.ask(RequestCode.PULL_MESSAGE, ext)

        async with trio.open_nursery() as nursery:
            for topic, group in (("T", "g"), ("U", "g"), ("T", "h")):
                nursery.start_soon(pull, topic, group, 0)
            await trio.sleep(0.1)
            ext = UnregisterClientHeader(client.client_id, consumer_group="g").to_ext(client.header_type)
            await client.ask(RequestCode.UNREGISTER_CLIENT, ext)
            await trio.sleep(0.1)
            assert answers == {}, "one that is answered now would be sent again"
            await bench.client().send("T", b"x")
            await trio.sleep(0.1)
            assert answers.keys() == {"gT", "hT"}
        found = {name: None if answer is None else answer.code for name, answer in answers.items()}
        assert found == {"gT": ResponseCode.PULL_NOT_FOUND, "gU": ResponseCode.PULL_NOT_FOUND, "hT": 0}
        left = answers["gT"]
        assert left is not None
        assert int(str(left.ext["nextBeginOffset"])) == 0
        progress = bench.parts.core.groups.progress
        pulled = {group: queue[0].pull_offset for group, topic, queue in progress.items() if topic == "T"}
        assert pulled == {"g": 0, "h": 1}


async def test_a_held_pull_gets_the_filter_that_its_group_has_now(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        client, ext = bench.client(), {}

        async def subscribe(tag: str, version: int) -> None:
            nonlocal ext
            data = ConsumerData("g", subscriptions=[SubscriptionData.of("T", tag, version)])
            assert (await beat(client, data)).code == 0
            header = PullMessageHeader("g", "T", 0, 0, 32, int(PullSysFlag.SUSPEND), 0, 20_000, None, version)
            ext = header.to_ext(client.header_type)

        async def pull() -> None:
            answers.append(await client.ask(RequestCode.PULL_MESSAGE, ext))

        answers: list[Response | None] = []
        await subscribe("a", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(0.1)
            await subscribe("b", 2)
        assert [answer.code for answer in answers if answer] == [ResponseCode.PULL_NOT_FOUND]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pull)
            await trio.sleep(0.1)
            await client.send("T", b"x", {TAGS: "a"})
            await trio.sleep(0.1)
            assert len(answers) == 1
            await client.send("T", b"y", {TAGS: "b"})
        assert answers[1] is not None
        assert answers[1].code == 0


@pytest.mark.parametrize("expression", [" OR ".join(f"a{number} = {number}" for number in range(150)), "(" * 8000])
@pytest.mark.parametrize("code", [RequestCode.CHECK_CLIENT_CONFIG, RequestCode.PULL_MESSAGE])
async def test_a_long_expression_is_compiled_in_pieces(tmp_path: Path, expression: str, code: RequestCode) -> None:
    sql_filter._outcomes.clear()
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        client = bench.client()
        if code == RequestCode.PULL_MESSAGE:
            ext = PullMessageHeader(
                "g", "T", 0, 0, 32, int(PullSysFlag.SUBSCRIPTION), 0, 0, expression, 0, "SQL92"
            ).to_ext(client.header_type)
            body = b""
        else:
            ext = {}
            body = CheckClientBody("c", "g", SubscriptionData("T", expression, 0, "SQL92")).to_json()
        async with beside() as turns:
            response = await client.ask(code, ext, body)
        assert turns.count >= 5
        assert response is not None
        found = ResponseCode.PULL_NOT_FOUND if code == RequestCode.PULL_MESSAGE else ResponseCode.SUCCESS
        assert response.code == (ResponseCode.SUBSCRIPTION_PARSE_FAILED if "(" in expression else found)
        async with beside() as turns:
            await client.ask(code, ext, body)
        assert turns.count < 4, "what became of it is remembered"


async def test_groups_in_a_list_are_created_in_pieces_all_or_none(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", groups={"groups_max": 3000}) as bench:
        client, settings = bench.client(), bench.tables.groups

        async def create(first: int, count: int) -> Response:
            groups = [{"groupName": f"g{number}"} for number in range(first, first + count)]
            body = json.dumps({"groupConfigList": groups}).encode()
            response = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body)
            assert response is not None
            return response

        async with beside() as turns:
            assert (await create(0, 2000)).code == 0
        assert turns.count > 30
        refused = await create(1500, 2000)
        assert refused.code == ResponseCode.FLOW_CONTROL
        assert refused.remark is not None
        assert "groups.groups_max" in refused.remark
        assert settings.user_group_count() == 2000
        assert (await create(0, 2000)).code == 0, "they may be changed"


async def test_locks_are_granted_in_pieces(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T", 3000)
        client = bench.client()
        queues = [MessageQueue("T", "broker-a", number) for number in range(3100)]
        body = LockBatchBody("c", "g", queues).to_json()
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            async with beside() as turns:
                response = await client.ask(code, {}, body)
            assert turns.count > 5
            assert response is not None
            assert response.code == 0
            if code == RequestCode.LOCK_BATCH_MQ:
                assert LockBatchResult.from_json(response.body).locked == queues[:3000]
        assert len(bench.parts.core.groups.locks) == 0


async def test_the_bounds_of_a_topic_with_many_queues_are_looked_up_in_pieces(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T", 1000)
        async with beside() as turns:
            response = await bench.client().ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
        assert response is not None
        assert response.code == 0
        assert turns.count > 10


@pytest.mark.parametrize("then", ["gone", "made again", "group gone"])
@pytest.mark.parametrize("code", [RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RequestCode.CLONE_GROUP_OFFSET])
async def test_offsets_of_a_topic_that_is_deleted_while_they_are_set_do_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, code: RequestCode
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T")
        client, offsets = bench.client(), bench.tables.offsets
        for group in ("g", "other"):
            assert (await beat(client, consumer(group, "T"))).code == 0
        for _ in range(5):
            await client.send("T", b"x")
        offsets.commit("other", "T", 0, 3)

        async def others_turn(body: LargeBody) -> bytes:
            monkeypatch.setattr(offset_updates, "write_in_turns", write_in_turns)
            delete, ext = RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}
            if then == "group gone":
                delete, ext = RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"}
            deleted = await client.ask(delete, ext)
            assert deleted is not None
            assert deleted.code == 0
            if then == "made again":
                await bench.create_topic("T")
            return await write_in_turns(body)

        monkeypatch.setattr(offset_updates, "write_in_turns", others_turn)
        if code == RequestCode.CLONE_GROUP_OFFSET:
            ext = {"srcGroup": "other", "destGroup": "g", "topic": "T", "offline": "true"}
        else:
            ext = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "true"}
        response = await client.ask(code, ext)
        assert response is not None
        gone = "SUBSCRIPTION_GROUP_NOT_EXIST" if then == "group gone" else "TOPIC_NOT_EXIST"
        assert response.code == ResponseCode[gone], response.remark
        assert offsets.for_group("g") == {}


@pytest.mark.parametrize("header_type", list(HeaderType))
async def test_a_waiting_pull_takes_about_what_it_is_counted_as(tmp_path: Path, header_type: HeaderType) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("T", 16)
        clients = [bench.client() for _ in range(40)]
        flags = int(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION)
        ext = PullMessageHeader("group", "T", 0, 0, 32, flags, 0, 20_000, "*", 0).to_ext(header_type)
        ext["unknown"] = "x" * 500
        header = encode_header(Header(RequestCode.PULL_MESSAGE, 1_000_000, 0, "y" * 500, ext), header_type)
        traffic = bench.broker.counters.requests[header_type, RequestCode.PULL_MESSAGE]
        handling, hold = bench.parts.server.handling, bench.storage.hold

        def pull(client: BenchClient) -> None:
            body = memoryview(bytes(1000))
            request = Request(client, header_type, decode_header(header_type, header), body, 0.0, traffic)
            assert handling.begin(request) is None

        pull(bench.client())
        gc.collect()
        tracemalloc.start()
        for client in clients:
            for _ in range(16):
                pull(client)
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] / 640
        tracemalloc.stop()
        assert hold.held_bytes == 641 * HELD_BYTES
        assert HELD_BYTES / 2 < each < HELD_BYTES


async def test_large_bodies_of_many_clients_are_parsed_one_a_turn(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench, beside() as turns:
        parsed: list[int] = []
        handlers = bench.parts.server.handling._handlers
        heartbeat = handlers[RequestCode.HEART_BEAT]

        def parse(request: Request) -> Any:
            parsed.append(turns.count)
            return heartbeat(request)

        handlers[RequestCode.HEART_BEAT] = parse
        groups = tuple(f"group-{number}" for number in range(300))
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(partial(beat, bench.client(), producers=groups))
        assert len(set(parsed)) == 20
        assert len(bench.parts.core.groups.membership.producers.producers("group-299")) == 20


@pytest.mark.parametrize("value", [b"1e1", b"{}", b"[]"])
async def test_a_body_with_very_many_values_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        parsed: list[object] = []
        monkeypatch.setattr(HeartbeatData, "from_json", parsed.append)
        body = b'{"clientID":"c","consumerDataSet":[' + b",".join([value] * 30_000) + b"]}"
        response = await bench.client().ask(RequestCode.HEART_BEAT, {}, body)
        assert response is not None
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert response.remark is not None
        assert "30000 commas" in response.remark
        assert parsed == []
