"""Replies from the replier to the requester, and those without a requester."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.remoting.request import ClientAnswer, ClientBusy, ClientGone, ClientSilent, Response
from reput_broker.reply.processor import PUSH_TIMEOUT_S, SETTLE_S
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import SendMessageHeader, SendMessageResult
from reput_protocol.properties import decode_properties
from reput_protocol.wire.header import HeaderType
from support.broker_bench import T0, BenchClient, BrokerBench, broker_bench
from support.tasks import run_by_the_clock

TOPIC = "DefaultCluster_REPLY_TOPIC"
KINDS = pytest.mark.parametrize("kind", [HeaderType.JSON, HeaderType.BINARY, HeaderType.MSGPACK])
TAKEN = ClientAnswer(0, None, {}, b"")

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def send_reply(
    replier: BenchClient,
    to: str | None,
    body: bytes = b"pong",
    *,
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2,
    properties: dict[str, str] | None = None,
    topic: str = TOPIC,
    oneway: bool = False,
    **fields: Any,
) -> Response:
    found = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000", **(properties or {})}
    if to is not None:
        found["REPLY_TO_CLIENT"] = to
    header: SendMessageHeader = replier.send_header(topic, found, **fields)
    is_short = code == RequestCode.SEND_REPLY_MESSAGE_V2
    ext = header.to_ext_v2(replier.header_type) if is_short else header.to_ext(replier.header_type)
    response = await replier.ask(code, ext, body, oneway=oneway)
    return response or Response(-1)


async def requester_of(bench: BrokerBench, *answers: ClientAnswer | Exception, kind: int = 0) -> BenchClient:
    """A client that is known as a producer and answers pushes as given."""
    client = bench.client(kind)
    await client.heartbeat("asking")
    client.answers.extend(answers)
    return client


def counted(bench: BrokerBench) -> dict[str, int]:
    return {result: count for result, count in bench.broker.counters.replies.items() if count}


@KINDS
@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_pushed_to_its_requester_and_a_copy_stored(
    tmp_path: Path, kind: HeaderType, code: int
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        requester = await requester_of(bench, TAKEN, kind=kind)
        replier = bench.client()
        replier.born_host = bytes((10, 0, 0, 1, 0, 0, 0x9C, 0x40))
        response = await send_reply(
            replier, requester.client_id, code=code, properties={"UNIQ_KEY": "u-1", "TAGS": "t"}, flag=5, sys_flag=1
        )
        assert response.code == 0, response.remark
        ((asked, ext, body),) = requester.calls
        assert (asked, body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"pong")
        pushed = PushReplyHeader.from_ext(ext)
        assert (pushed.producer_group, pushed.topic, pushed.queue_id) == ("PG", TOPIC, 0)
        assert (pushed.flag, pushed.sys_flag, pushed.born_timestamp) == (5, 1, T0)
        assert (pushed.born_host, pushed.store_timestamp) == (replier.peer, T0)
        assert pushed.store_host == str(bench.broker.store.options.host)
        assert decode_properties((pushed.properties or "").encode()) == {
            "CORRELATION_ID": "c-1", "MSG_TYPE": "reply", "TTL": "3000", "UNIQ_KEY": "u-1", "TAGS": "t",
            "REPLY_TO_CLIENT": requester.client_id, "PUSH_REPLY_TIME": str(T0),
        }  # fmt: skip
        (copy,) = await bench.read(TOPIC)
        assert (copy.body, copy.flag, copy.sys_flag, copy.tag) == (b"pong", 5, 1, "t")
        assert str(copy.born_host) == "10.0.0.1:40000"
        assert set(copy.property_map()) == {"CORRELATION_ID", "MSG_TYPE", "TTL", "UNIQ_KEY", "TAGS", "REPLY_TO_CLIENT"}
        result = SendMessageResult.from_ext(response.ext)
        assert (result.msg_id, result.queue_id, result.queue_offset) == (copy.offset_message_id, 0, 0)
        assert result.transaction_id == "u-1"
        assert counted(bench) == {"delivered": 1}


async def test_the_copy_of_a_reply_needs_no_slave(tmp_path: Path) -> None:
    """A master whose messages need two copies and that has no slave still answers a reply that was delivered."""
    ha = {"role": "SYNC_MASTER", "in_sync_replicas": 2}
    async with broker_bench(tmp_path / "s", ha_port=0, ha=ha) as bench:
        requester = await requester_of(bench, TAKEN)
        assert (await send_reply(bench.client(), requester.client_id)).code == 0
        assert await bench.bodies(TOPIC) == [b"pong"]


async def test_without_copies_a_reply_costs_no_disk_and_java_still_gets_its_fields(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", replies={"store": False}) as bench:
        requester = await requester_of(bench, TAKEN)
        response = await send_reply(bench.client(), requester.client_id, queue_id=-1)
        assert response.code == 0
        result = SendMessageResult.from_ext(response.ext)
        assert (result.msg_id, result.queue_id, result.queue_offset) == ("0", 0, 0)
        assert await bench.bodies(TOPIC) == []
        assert counted(bench) == {"delivered": 1}


async def test_a_reply_without_a_requester_is_refused_in_rocketmqs_words_and_kept(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await trio.sleep(SETTLE_S)
        requester = await requester_of(bench)
        bench.gone(requester)
        response = await send_reply(bench.client(), requester.client_id)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark is not None
        assert response.remark.startswith("REQUESTER_GONE: push reply message fail, channel of <client-1> not found.")
        assert await bench.bodies(TOPIC) == [b"pong"]
        assert counted(bench) == {"no_requester": 1}


async def test_consumers_are_not_requesters(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await trio.sleep(SETTLE_S)
        other = bench.client()
        await other.heartbeat()
        response = await send_reply(bench.client(), other.client_id)
        assert (response.code, other.calls) == (ResponseCode.SYSTEM_ERROR, [])


async def test_after_a_start_the_broker_waits_for_requesters_that_are_coming_back(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        responses: list[Response] = []
        requester = bench.client()
        requester.answers.append(TAKEN)

        async def reply() -> None:
            responses.append(await send_reply(bench.client(), requester.client_id))

        bench.nursery.start_soon(reply)
        await trio.sleep(SETTLE_S - 1)
        assert (responses, requester.calls) == ([], [])
        await requester.heartbeat("asking")
        await trio.sleep(0.2)
        assert [response.code for response in responses] == [0]
        assert len(requester.calls) == 1


async def test_a_requester_that_reconnects_is_found_again(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await trio.sleep(SETTLE_S)
        requester = await requester_of(bench, ClientGone("reset"), ClientBusy("64 calls"), TAKEN)
        response = await send_reply(bench.client(), requester.client_id)
        assert (response.code, len(requester.calls)) == (0, 3)
        assert counted(bench) == {"delivered": 1}


async def test_a_requester_that_does_not_take_a_reply_is_reported(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        silent = await requester_of(bench, ClientSilent("the client has not responded within 10 s"))
        response = await send_reply(bench.client(), silent.client_id)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert (response.remark or "").startswith(f"TIMEOUT: push reply message to {silent.client_id} fail")
        refusing = await requester_of(bench, ClientAnswer(3, "request type 326 not supported", {}, b""))
        response = await send_reply(bench.client(), refusing.client_id)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "request type 326 not supported" in (response.remark or "")
        assert counted(bench) == {"not_taken": 2}


class Slow(BenchClient):
    """A requester that answers on demand."""

    def __init__(self, bench: BrokerBench, client_id: str) -> None:
        super().__init__(bench, HeaderType.JSON, client_id)
        self.proceed = trio.Event()
        self.at_once = self.most_at_once = 0

    async def call(self, code: int, ext: Any, body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        self.calls.append((code, dict(ext), body))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            with trio.move_on_after(timeout_s):
                await self.proceed.wait()
                return TAKEN
            raise ClientSilent("slow")
        finally:
            self.at_once -= 1


async def test_one_slow_requester_delays_no_other_and_holds_bounded_memory(tmp_path: Path) -> None:
    async with broker_bench(
        tmp_path / "s", store={"message_size_max": "64KiB"}, limits={"connection_buffer": "64KiB"}
    ) as bench:
        slow, quick = Slow(bench, "slow"), await requester_of(bench, TAKEN)
        await slow.heartbeat("asking")
        replier = bench.client()
        codes: list[int] = []

        async def reply(size: int) -> None:
            response = await send_reply(replier, "slow", bytes(size))
            codes.append(response.code)

        for _ in range(80):
            bench.nursery.start_soon(reply, 1000)
        await trio.sleep(1)
        assert slow.most_at_once == 32, "the others wait for their turn"
        assert codes == [ResponseCode.SYSTEM_BUSY] * 15, "only 65 of them are held"
        assert (await send_reply(replier, quick.client_id)).code == 0
        slow.proceed.set()
        await trio.sleep(1)
        assert sorted(codes) == [0] * 65 + [ResponseCode.SYSTEM_BUSY] * 15
        assert slow.most_at_once == 32


async def test_a_turn_that_never_comes_ends_in_time(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", replies={"store": False}) as bench:
        slow = Slow(bench, "slow")
        await slow.heartbeat("asking")
        codes: list[int] = []

        async def reply() -> None:
            codes.append((await send_reply(bench.client(), "slow", oneway=False)).code)

        for _ in range(40):
            bench.nursery.start_soon(reply)
        await trio.sleep(PUSH_TIMEOUT_S + 1)
        assert counted(bench) == {"not_taken": 40}


async def test_a_client_that_asks_before_its_first_heartbeat_gets_its_reply(tmp_path: Path) -> None:
    """As RocketMQ's Go client does."""
    async with broker_bench(tmp_path / "s") as bench:
        await trio.sleep(SETTLE_S)
        await bench.create_topic("work")
        requester, consumer = bench.client(), bench.client()
        request = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "go@1", "TTL": "3"}
        await requester.send("work", b"ping", request)
        requester.answers += [TAKEN, TAKEN]
        # A message that a consumer sends back is not a request.
        await bench.create_topic("%RETRY%g")
        await consumer.send("%RETRY%g", b"ping", request)
        assert (await send_reply(consumer, "go@1")).code == 0
        # Once it has sent heartbeats, those count.
        known = bench.client()
        known.client_id = "go@1"
        known.answers.append(TAKEN)
        await known.heartbeat("asking")
        assert (await send_reply(consumer, "go@1")).code == 0
        assert (len(requester.calls), len(known.calls)) == (1, 1)
        bench.gone(known)
        assert (await send_reply(consumer, "go@1")).code == 0
        bench.gone(requester)
        assert (await send_reply(consumer, "go@1")).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("to", "more", "fields", "code"),
    [
        (None, {}, {}, ResponseCode.SYSTEM_ERROR),
        ("x", {"DELAY": "3"}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ("x", {"TRAN_MSG": "true"}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ("x", {}, {"sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ("x", {}, {"batch": True}, ResponseCode.MESSAGE_ILLEGAL),
        ("x", {}, {"body": bytes(70_000)}, ResponseCode.MESSAGE_ILLEGAL),
        ("x", {}, {"queue_id": 7}, ResponseCode.INVALID_PARAMETER),
        ("x", {}, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION),
    ],
)
async def test_an_invalid_reply_is_refused_before_a_push(
    tmp_path: Path, to: str | None, more: dict[str, str], fields: dict[str, Any], code: int
) -> None:
    async with broker_bench(tmp_path / "s", store={"message_size_max": "64KiB"}) as bench:
        requester = await requester_of(bench)
        response = await send_reply(bench.client(), to and requester.client_id, properties=more, **fields)
        assert response.code == code, response.remark
        assert requester.calls == []
        assert await bench.bodies(TOPIC) == []
        assert counted(bench) == {}


async def test_a_copy_that_cannot_be_stored_changes_nothing_for_a_reply_that_has_arrived(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        requester = await requester_of(bench, TAKEN)
        bench.broker.store._flags.become_read_only("the disk has failed")
        response = await send_reply(bench.client(), requester.client_id)
        assert response.code == 0
        assert SendMessageResult.from_ext(response.ext).msg_id == "0"


async def test_a_oneway_reply_is_delivered_too(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        requester = await requester_of(bench, TAKEN)
        await send_reply(bench.client(), requester.client_id, oneway=True)
        await trio.sleep(0.1)
        assert len(requester.calls) == 1
        assert await bench.bodies(TOPIC) == [b"pong"]


async def test_a_reply_to_a_topic_that_does_not_exist_makes_it(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        requester = await requester_of(bench, TAKEN)
        response = await send_reply(bench.client(), requester.client_id, topic="Other_REPLY_TOPIC")
        assert response.code == 0, response.remark
        assert await bench.bodies("Other_REPLY_TOPIC") == [b"pong"]
