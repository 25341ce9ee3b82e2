"""Redelivered messages: when, how often, with what, and when they become dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.record.delays import DELAY_LEVELS_MS
from reput_protocol.record.record import Record
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.tasks import run_by_the_clock

RETRY, DLQ = "%RETRY%billing", "%DLQ%billing"
TYPES = [HeaderType.JSON, HeaderType.BINARY, HeaderType.MSGPACK]

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def sent(bench: BrokerBench, client: BenchClient, body: bytes = b"o-1", **properties: str) -> Record:
    """A message in `orders`, as its consumer was given it."""
    await bench.create_topic("orders")
    response = await client.send("orders", body, properties)
    assert response.code == 0, response.remark
    return (await bench.read("orders"))[-1]


def set_group(bench: BrokerBench, *, retry_max_times: int = 16, retry_queue_nums: int = 1) -> None:
    config = SubscriptionGroupConfig("billing", retry_max_times=retry_max_times, retry_queue_nums=retry_queue_nums)
    bench.tables.groups.put(config)


def counts(bench: BrokerBench) -> tuple[int, int]:
    found = bench.broker.counters.retry
    return found.retries["billing", "orders"], found.dead_letters["billing", "orders"]


@pytest.mark.parametrize("kind", TYPES)
async def test_each_try_comes_one_level_later_and_the_last_is_a_dead_letter(tmp_path: Path, kind: HeaderType) -> None:
    """RocketMQ's schedule: 10 s, 30 s, 1 m, ... 2 h; the 17th time it is sent back it is a dead letter."""
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(kind)
        record = await sent(bench, client, TAGS="paid", KEYS="k1")
        first = record
        for attempt in range(16):
            assert record.reconsume_times == attempt
            sent_back_at = trio.current_time()
            response = await client.send_back(record, "billing")
            assert response.code == 0
            delay_s = DELAY_LEVELS_MS[min(2 + attempt, 17)] / 1000
            assert len(await bench.read(RETRY)) == attempt
            await bench.pass_time(sent_back_at + delay_s - 0.1 - trio.current_time())
            assert len(await bench.read(RETRY)) == attempt, "not early"
            await trio.sleep_until(sent_back_at + delay_s + 0.1)
            retried = await bench.read(RETRY)
            assert len(retried) == attempt + 1, "not late"
            record = retried[-1]
        assert counts(bench) == (16, 0)
        response = await client.send_back(record, "billing")
        assert response.code == 0
        (dead,) = await bench.read(DLQ)
        assert counts(bench) == (16, 1)
        assert (dead.body, dead.tag, dead.keys, dead.reconsume_times) == (b"o-1", "paid", ("k1",), 17)
        found = dead.property_map()
        assert found["RETRY_TOPIC"] == "orders"
        assert found["ORIGIN_MESSAGE_ID"] == first.offset_message_id
        assert (found["DELAY"], found["DLQ_REASON"]) == ("0", "max_reconsume_times")
        assert found["UNIQ_KEY"] == first.unique_key
        assert (dead.born_timestamp_ms, dead.born_host) == (first.born_timestamp_ms, first.born_host)
        await bench.pass_time(20_000)
        assert len(await bench.read(RETRY)) == 16, "a dead letter does not come back"


@pytest.mark.parametrize(("level", "delay_s"), [(1, 1.0), (5, 60.0), (18, 7200.0), (99, 7200.0)])
async def test_a_level_of_the_consumers_own_is_taken(tmp_path: Path, level: int, delay_s: float) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        record = await sent(bench, client)
        await client.send_back(record, "billing", level)
        await bench.pass_time(delay_s - 0.1)
        assert await bench.read(RETRY) == []
        await trio.sleep(0.2)
        (retried,) = await bench.read(RETRY)
        assert retried.reconsume_times == 1
        assert not {"DELAY", "REAL_TOPIC", "REAL_QID"} & set(retried.property_map())


async def test_a_negative_level_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(HeaderType.MSGPACK)
        record = await sent(bench, client)
        await client.send_back(record, "billing", -1, reason="ValueError: no such\nbill \x01\x02")
        (dead,) = await bench.read(DLQ)
        found = dead.property_map()
        assert (found["DLQ_REASON"], dead.reconsume_times) == ("consumer", 1)
        assert found["RETRY_REASON"] == "ValueError: no such bill"
        assert bench.tables.topics.get(DLQ) is not None
        topic = bench.tables.topics.get(DLQ)
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


@pytest.mark.parametrize(
    ("kind", "version", "asked", "of_group", "dead_after"),
    [
        (HeaderType.JSON, 479, 2, 16, 2),
        (HeaderType.JSON, 121, 2, 16, 2),
        (HeaderType.JSON, 120, 2, 5, 5),  # older clients cannot say it
        (HeaderType.MSGPACK, 1, 2, 5, 2),
        (HeaderType.JSON, 479, None, 3, 3),
        (HeaderType.JSON, 479, 0, 3, 0),
    ],
)
async def test_the_limit_is_the_consumers_else_the_groups(
    tmp_path: Path, kind: HeaderType, version: int, asked: int | None, of_group: int, dead_after: int
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        set_group(bench, retry_max_times=of_group)
        client = bench.client(kind)
        record = await sent(bench, client)
        for _ in range(dead_after):
            await client.send_back(record, "billing", 1, max_reconsume_times=asked, version=version)
            await trio.sleep(1.1)
            record = (await bench.read(RETRY))[-1]
        assert await bench.read(DLQ) == []
        await client.send_back(record, "billing", 1, max_reconsume_times=asked, version=version)
        (dead,) = await bench.read(DLQ)
        assert dead.reconsume_times == dead_after + 1


async def test_retries_are_spread_over_the_groups_retry_queues(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        set_group(bench, retry_queue_nums=3)
        client = bench.client()
        for _ in range(60):
            await client.send_back(await sent(bench, client), "billing", 1)
        await trio.sleep(2)
        found = [len(await bench.read(RETRY, queue_id)) for queue_id in range(3)]
        assert sum(found) == 60
        assert min(found) > 0


async def test_a_group_without_retry_queues_drops_what_is_sent_back(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        set_group(bench, retry_queue_nums=0)
        client = bench.client()
        record = await sent(bench, client)
        assert (await client.send_back(record, "billing")).code == 0
        await trio.sleep(20)
        assert bench.tables.topics.get(RETRY) is None


async def test_invalid_send_backs_are_refused_with_rocketmqs_codes(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", groups={"auto_create": False}) as bench:
        client = bench.client()
        record = await sent(bench, client)
        unknown = await client.send_back(record, "billing")
        assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        set_group(bench)
        for offset in (record.physical_offset + 1, 1 << 40, -1):
            record.physical_offset = offset
            assert (await client.send_back(record, "billing")).code == ResponseCode.SYSTEM_ERROR
        half = await client.send_half("orders", b"undecided")
        record.physical_offset = half.physical_offset
        assert (await client.send_back(record, "billing")).code == ResponseCode.SYSTEM_ERROR, "no client was given it"
        topic = bench.tables.topics.get(RETRY)
        assert topic is not None
        topic.perm = 4
        record.physical_offset = 0
        assert (await client.send_back(record, "billing")).code == ResponseCode.NO_PERMISSION


async def test_a_committed_message_that_is_sent_back_stays_committed(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        client = bench.client()
        half = await client.send_half("orders", b"o-1")
        await client.end(half, 8)  # type: ignore[arg-type]
        (record,) = await bench.read("orders")
        await client.send_back(record, "billing", 1)
        await trio.sleep(1.1)
        (retried,) = await bench.read(RETRY)
        assert (retried.body, retried.sys_flag) == (b"o-1", record.sys_flag)
        assert "TRAN_MSG" not in retried.property_map()


@pytest.mark.parametrize("kind", TYPES)
async def test_a_direct_send_to_a_retry_topic_once_too_often_is_a_dead_letter(tmp_path: Path, kind: HeaderType) -> None:
    """What RocketMQ's clients do if 36 fails: one time more than through 36, for there `>` counts, not `>=`."""
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client(kind)
        record = await sent(bench, client)
        properties = {**record.property_map(), "RETRY_TOPIC": "orders", "DELAY": "3"}
        for times in range(1, 5):
            response = await client.send(RETRY, record.body, properties, reconsume_times=times, max_reconsume_times=3)
            assert response.code == 0, response.remark
        (dead,) = await bench.read(DLQ)
        assert (dead.body, dead.reconsume_times) == (b"o-1", 4)
        assert dead.property_map()["DLQ_REASON"] == "max_reconsume_times"
        await trio.sleep(10.1)
        assert [record.reconsume_times for record in await bench.read(RETRY)] == [1, 2, 3]
        assert counts(bench) == (0, 1)


async def test_values_that_producers_write_into_retry_topic_add_no_metric_labels(tmp_path: Path) -> None:
    """A client that sends to a retry topic itself may write anything into RETRY_TOPIC."""
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        for number, level in enumerate((3, -1, 3, -1)):
            record = await sent(bench, client, UNIQ_KEY=f"u{number}", RETRY_TOPIC=f"made up {number}")
            await client.send_back(record, "billing", level)
            properties = {"RETRY_TOPIC": f"made up too {number}", "UNIQ_KEY": f"v{number}"}
            await client.send(RETRY, b"x", properties, reconsume_times=17 * (level < 0))
        for record in await bench.read(RETRY):
            await client.send_back(record, "billing")
        letters = [record.property_map().get("RETRY_TOPIC") for record in await bench.read(DLQ)]
        assert letters == ["orders", None, "orders", None]
        found = bench.broker.counters.retry
        assert dict(found.nacks) == {"billing": 6}
        assert dict(found.retries) == {("billing", "orders"): 2, ("billing", "unknown"): 2}
        assert dict(found.dead_letters) == {("billing", "orders"): 2, ("billing", "unknown"): 2}


async def test_a_direct_send_of_a_group_that_holds_locks_is_a_dead_letter(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        await bench.create_topic("orders")
        bench.parts.core.groups.locks.lock("billing", "c1", [("orders", 0)])
        await client.send(RETRY, b"gave up", {"RETRY_TOPIC": "orders"}, reconsume_times=1)
        (dead,) = await bench.read(DLQ)
        assert dead.property_map()["DLQ_REASON"] == "ordered"
        await trio.sleep(61)
        await client.send(RETRY, b"locks are gone", {"RETRY_TOPIC": "orders"}, reconsume_times=1)
        assert len(await bench.read(DLQ)) == 1
        assert await bench.bodies(RETRY) == [b"locks are gone"]


async def test_a_direct_send_for_a_group_that_is_unknown_is_refused(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", groups={"auto_create": False}) as bench:
        response = await bench.client().send(RETRY, b"x")
        assert response.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_a_killed_broker_delivers_each_retry_once_and_on_time(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        for level in (3, 4):
            await client.send_back(await sent(bench, client), "billing", level)
        await trio.sleep(11)
        assert len(await bench.read(RETRY)) == 1
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        await trio.sleep(18.9)
        assert len(await bench.read(RETRY)) == 1
        await trio.sleep(0.2)
        assert len(await bench.read(RETRY)) == 2
        await trio.sleep(100)
        assert len(await bench.read(RETRY)) == 2


async def test_a_deleted_topics_figures_go_with_it(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        record = await sent(bench, client)
        await client.send_back(record, "billing", -1)
        assert counts(bench) == (0, 1)
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert counts(bench) == (0, 0)
