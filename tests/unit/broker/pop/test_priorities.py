"""Priorities: the queue of a message, the order of pops, and what becomes of a redelivered one (RocketMQ 5.4)."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.topic import CreateTopicHeader
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.pops import Popped, pop_fields, popped_messages
from support.tasks import run_by_the_clock

TOPIC, GROUP, QUEUES = "jobs", "workers", 4
RETRY = "%RETRY%workers_jobs"
PRIORITY = "_SYS_MSG_PRIORITY_"

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def make_topic(bench: BrokerBench, kind: str = "PRIORITY", queues: int = QUEUES) -> BenchClient:
    client = bench.client()
    header = CreateTopicHeader(TOPIC, queues, queues, attributes=f"+message.type={kind}")
    answer = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(client.header_type))
    assert answer is not None
    assert answer.code == 0, answer.remark
    return client


async def send(client: BenchClient, body: bytes, priority: object = None, **properties: str) -> int:
    """Send a message to queue 1, and return the queue in which it is."""
    given = {**properties, **({} if priority is None else {PRIORITY: str(priority)})}
    answer = await client.send(TOPIC, body, given, queue_id=1)
    assert answer.code == 0, answer.remark
    return int(str(answer.ext["queueId"]))


async def pop(bench: BrokerBench, count: int = 1, **fields: Any) -> list[Popped]:
    await bench.settled()
    own = {"maxMsgNums": str(count), "bornTime": str(bench.now_ms), "invisibleTime": "2000", **fields}
    given = pop_fields(GROUP, TOPIC, **own)
    answer = await bench.client().ask(RequestCode.POP_MESSAGE, given)
    assert answer is not None
    assert answer.code in (0, ResponseCode.POLLING_TIMEOUT), answer.remark
    return popped_messages(answer.ext, answer.body)


async def test_the_priority_is_the_queue_and_at_most_the_last(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        assert [await send(client, b"x", priority) for priority in (0, 2, 3, 4, 2**31 - 1)] == [0, 2, 3, 3, 3]
        assert [await send(client, b"x", other) for other in (None, -1, "high", 2**31)] == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["NORMAL", "MIXED"])
async def test_the_type_of_the_topic_does_not_choose_the_queue(tmp_path: Path, kind: str) -> None:
    """As with RocketMQ's broker."""
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench, kind)
        assert await send(client, b"x", 3) == 3


@pytest.mark.parametrize("other", [{"__SHARDINGKEY": "k"}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
async def test_what_is_ordered_or_delayed_has_no_priority(tmp_path: Path, other: dict[str, str]) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        assert await send(client, b"x", 3, **other) == 1
        await bench.pass_time(3)
        await bench.settled()
        [record] = await bench.read(TOPIC, 1)
        assert PRIORITY not in record.property_map()


async def test_a_message_that_a_consumer_sends_to_its_retry_topic_keeps_its_priority(tmp_path: Path) -> None:
    """It has a delay, which excludes a priority elsewhere."""
    retry = f"%RETRY%{GROUP}"
    async with broker_bench(tmp_path / "s") as bench:
        bench.tables.groups.put(SubscriptionGroupConfig(GROUP, retry_queue_nums=QUEUES))
        client = await make_topic(bench)
        for delay in ({}, {"DELAY": "1"}):
            answer = await client.send(retry, b"x", {PRIORITY: "3", "RETRY_TOPIC": TOPIC, **delay}, queue_id=0)
            assert answer.code == 0, answer.remark
        await bench.pass_time(3)
        await bench.settled()
        found = await bench.read(retry, 0)
        assert [record.property_map()[PRIORITY] for record in found] == ["3", "3"]


async def test_pops_begin_with_the_highest(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        for number in range(3):
            for priority in range(QUEUES):
                await send(client, b"%d-%d" % (priority, number), priority)
        found = [one.record.body for _ in range(3 * QUEUES) for one in await pop(bench)]
        assert found == [b"%d-%d" % (priority, number) for priority in (3, 2, 1, 0) for number in range(3)]


async def test_a_pop_of_several_takes_the_highest_of_all_queues(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        for priority in (0, 3, 1, 3, 2):
            await send(client, b"%d" % priority, priority)
        assert [one.record.body for one in await pop(bench, 4)] == [b"3", b"3", b"2", b"1"]


async def test_a_redelivered_message_keeps_its_priority(tmp_path: Path) -> None:
    """It comes before new ones of its own priority, and after those of a higher one."""
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        await send(client, b"2 again", 2)
        assert len(await pop(bench)) == 1
        await bench.pass_time(2.5)
        for priority in range(QUEUES):
            await send(client, b"%d" % priority, priority)
        found = [one.record for _ in range(QUEUES + 1) for one in await pop(bench)]
        assert [record.body for record in found] == [b"3", b"2 again", b"2", b"1", b"0"]
        assert found[1].reconsume_times == 1
        assert found[1].property_map()[PRIORITY] == "2"
        assert [record.body for record in await bench.read(RETRY, 2)] == [b"2 again"]
        await bench.pass_time(2.5)
        again = [one.record.body for _ in range(QUEUES + 1) for one in await pop(bench)]
        assert again == [b"3", b"2 again", b"2", b"1", b"0"], "also when all are redelivered"


async def test_a_retry_topic_from_before_the_type_gets_the_queues_of_the_topic(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench, "NORMAL")
        await send(client, b"x", 3)
        assert len(await pop(bench)) == 1
        await bench.pass_time(2.5)
        assert len(await bench.read(RETRY)) == 1, "it has one queue"
        await make_topic(bench, "PRIORITY")
        assert len(await pop(bench)) == 1
        await bench.pass_time(2.5)
        retries = bench.tables.topics.get(RETRY)
        assert retries is not None
        assert (retries.read_queue_nums, retries.write_queue_nums) == (QUEUES, QUEUES)
        await send(client, b"lower", 2)
        again = [one.record for _ in range(2) for one in await pop(bench)]
        assert [(record.body, record.reconsume_times) for record in again] == [(b"x", 2), (b"lower", 0)]


async def test_a_redelivered_message_keeps_its_priority_when_the_topic_has_got_more_queues(tmp_path: Path) -> None:
    """Its own queue was the last one, for a priority of 7 as for one of 3."""
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        assert await send(client, b"7", 7) == QUEUES - 1
        assert len(await pop(bench)) == 1
        await bench.pass_time(2.5)
        client = await make_topic(bench, queues=2 * QUEUES)
        assert len(await pop(bench)) == 1
        await bench.pass_time(2.5)
        await send(client, b"6", 6)
        assert [one.record.body for _ in range(2) for one in await pop(bench)] == [b"7", b"6"]
        assert [record.body for record in await bench.read(RETRY, 7)] == [b"7"]


async def test_the_factor_of_a_group_says_how_many_pops_begin_with_the_highest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_broker.pop.state.random", random.Random(1))
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        for _ in range(60):
            for priority in range(QUEUES):
                await send(client, b"%d" % priority, priority)
        bench.tables.groups.put(SubscriptionGroupConfig(GROUP, attributes={"priority.factor": "0"}))
        popped = [one for _ in range(80) for one in await pop(bench, invisibleTime="600000")]
        found = Counter(one.record.body for one in popped)
        assert min(found.values()) > 5, "they begin anywhere"


async def test_ordered_pops_and_those_of_one_queue_have_no_priorities(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = await make_topic(bench)
        for priority in range(QUEUES):
            await send(client, b"%d" % priority, priority)
        assert [one.record.body for one in await pop(bench, queueId="1")] == [b"1"]
        ordered = [one.record.body for _ in range(3) for one in await pop(bench, order="true")]
        assert sorted(ordered) == [b"0", b"2", b"3"]


async def test_attributes_that_are_not_served_are_refused(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        for value, code in (("50", 0), ("101", ResponseCode.INVALID_PARAMETER), ("x", ResponseCode.INVALID_PARAMETER)):
            config = SubscriptionGroupConfig(GROUP, attributes={"+priority.factor": value})
            answer = await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config.to_json())
            assert answer is not None
            assert (answer.code == 0) == (code == 0), answer.remark
        found = bench.tables.groups.get(GROUP)
        assert found is not None
        assert found.priority_factor == 50
