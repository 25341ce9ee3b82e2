"""Requests of RocketMQ's tools about topics, groups, queues and rates, by a fake clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.observe.counters import PUT_TIMES, Counters
from reput_broker.observe.statistics import ROUND_S, Statistics
from reput_broker.store.base.results import StoreStats
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.consumers import ConsumeStats
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.query import ConsumeQueueBody
from reput_protocol.commands.statistics import BrokerStats, BrokerStatsItem, ConsumeStatsList
from reput_protocol.commands.topic import GENERATION_ATTRIBUTE, KVTable, TopicStats
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)


async def body_of(client: BenchClient, code: int, body: bytes = b"", **ext: str) -> bytes:
    """The body of an answer that succeeds."""
    answer = await client.ask(code, ext, body)
    assert answer is not None
    assert answer.code == 0, answer.remark
    return answer.body


async def refusal_of(client: BenchClient, code: int, body: bytes = b"", **ext: str) -> tuple[int, str]:
    """Code and remark of an answer that does not succeed."""
    answer = await client.ask(code, ext, body)
    assert answer is not None
    assert answer.code != 0
    return answer.code, answer.remark or ""


async def pull_all(client: BenchClient, topic: str, group: str) -> None:
    """Pull and commit what the first queue has, as RocketMQ's tools do without a heartbeat."""
    answer = await client.ask(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        },
    )  # fmt: skip
    assert answer is not None
    assert answer.code == 0, answer.remark
    await commit(client, topic, group, int(str(answer.ext["nextBeginOffset"])))


async def create_groups(client: BenchClient, *groups: str) -> None:
    body = json.dumps({"groupConfigList": [{"groupName": group} for group in groups]}).encode()
    await body_of(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)


async def commit(client: BenchClient, topic: str, group: str, offset: int) -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    await body_of(client, RequestCode.UPDATE_CONSUMER_OFFSET, b"", **ext)


def topic_list(*topics: dict[str, Any]) -> bytes:
    return json.dumps({"topicConfigList": topics}).encode()


async def test_several_topics_are_created_or_none(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        create = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        code, remark = await refusal_of(
            client, create, topic_list({"topicName": "a"}, {"topicName": "b", "readQueueNums": 0})
        )
        assert (code, "0 read queues" in remark) == (ResponseCode.INVALID_PARAMETER, True)
        assert bench.tables.topics.get("a") is None
        await body_of(
            client,
            create,
            topic_list(
                {"topicName": "a", "readQueueNums": 2, "writeQueueNums": 3, "attributes": {"+message.type": "FIFO"}},
                {"topicName": "b", "perm": 4},
            ),
        )
        config = json.loads(await body_of(client, RequestCode.GET_TOPIC_CONFIG, topic="a"))
        assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (2, 3, 6)
        assert config["attributes"]["message.type"] == "FIFO"
        assert json.loads(await body_of(client, RequestCode.GET_TOPIC_CONFIG, topic="b"))["perm"] == 4


async def test_what_a_topic_or_group_may_make_tables_grow_by_is_limited(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        create = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        _, remark = await refusal_of(client, create, topic_list({"topicName": "a", "topicFilterType": "x" * 5000}))
        assert "it is one of SINGLE_TAG, MULTI_TAG" in remark
        group = {"groupName": "g", "groupRetryPolicy": {"type": "x" * 5000}}
        _, remark = await refusal_of(
            client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, json.dumps(group).encode()
        )
        assert "at most 4096 are kept" in remark
        assert bench.tables.groups.get("g") is None


async def attributes_of(client: BenchClient, topic: str) -> dict[str, str]:
    config = json.loads(await body_of(client, RequestCode.GET_TOPIC_CONFIG, topic=topic))
    return {name: value for name, value in config["attributes"].items() if name != GENERATION_ATTRIBUTE}


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("+message.type=LITE", "message.type=LITE is not served; values: NORMAL, FIFO"),
        ("+message.type=fifo", "message.type=fifo is not served"),
        ("+nonsense=1", "'nonsense' is not served; served here: cleanup.policy, message.type"),
        ("+reput.generation=1", "'reput.generation' is not served"),
        ("+reserve.time=7", "reserve.time=7 is not served"),
        ("-reput.generation", "it is not set"),
        ("-queue.type", "it is not set"),
        ("-message.type=FIFO", "write +name=value or -name"),
        ("+message.type", "write +name=value or -name"),
        ("message.type=FIFO", "write +name=value or -name"),
        ("+message.type=FIFO,+message.type=DELAY", "each name once"),
        ("+message.type=FIFO,-message.type", "named twice"),
        ("+queue.type=SimpleCQ", "it is chosen at creation"),
        ("+cleanup.policy=COMPACTION", "it is chosen at creation"),
    ],
)
async def test_an_attribute_that_would_do_nothing_is_refused(tmp_path: Path, attributes: str, reason: str) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        create = RequestCode.UPDATE_AND_CREATE_TOPIC
        ext = {"topic": "t", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        await body_of(client, create, b"", **ext, attributes="+message.type=NORMAL,+reserve.time=-1")
        code, remark = await refusal_of(client, create, b"", **ext, attributes=attributes)
        assert (code, reason in remark) == (ResponseCode.INVALID_PARAMETER, True), remark
        assert await attributes_of(client, "t") == {"message.type": "NORMAL", "reserve.time": "-1"}


async def test_attributes_of_a_topic_are_set_removed_and_kept(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        create = RequestCode.UPDATE_AND_CREATE_TOPIC
        ext = {"topic": "t", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        at_creation = "+queue.type=SimpleCQ,+message.type=FIFO"
        for attributes, expected in (
            (at_creation, {"queue.type": "SimpleCQ", "message.type": "FIFO"}),
            (at_creation, {"queue.type": "SimpleCQ", "message.type": "FIFO"}),
            ("+message.type=MIXED", {"queue.type": "SimpleCQ", "message.type": "MIXED"}),
            ("", {"queue.type": "SimpleCQ", "message.type": "MIXED"}),
            ("-message.type", {"queue.type": "SimpleCQ"}),
        ):
            await body_of(client, create, b"", **ext, attributes=attributes)
            assert await attributes_of(client, "t") == expected
        written_back = {"topicName": "t", "attributes": {"queue.type": "SimpleCQ"}}
        await body_of(client, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, topic_list(written_back))
        assert await attributes_of(client, "t") == {"queue.type": "SimpleCQ"}


async def test_attributes_of_groups_are_not_served_and_kept_if_rocketmq_had_written_them(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        groups = bench.tables.groups
        groups.put(SubscriptionGroupConfig("g", attributes={"old": "1"}))
        create = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        for attributes in ({"+lite.bind.topic": "t"}, {"+old": "2"}, {"nonsense": "1"}, {"-nonsense": ""}):
            body = json.dumps({"groupName": "g", "attributes": attributes}).encode()
            code, _ = await refusal_of(client, create, body)
            assert code == ResponseCode.INVALID_PARAMETER
        for attributes, expected in (({}, {"old": "1"}), ({"old": "1"}, {"old": "1"}), ({"-old": ""}, {})):
            await body_of(client, create, json.dumps({"groupName": "g", "attributes": attributes}).encode())
            config = groups.get("g")
            assert config is not None
            assert config.attributes == expected


async def test_the_system_s_topics_are_listed(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        await client.send("orders", b"x")
        names = json.loads(await body_of(client, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
        assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "broker-a"} <= {*names}
        assert "orders" not in names


async def test_queues_without_a_topic_are_deleted_and_others_kept(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        for topic in ("kept", "orphan"):
            await client.send(topic, b"x")
        bench.tables.topics.delete("orphan")
        await body_of(client, RequestCode.CLEAN_UNUSED_TOPIC)
        names = {topic for topic, _ in bench.broker.store.queues()}
        assert "kept" in names
        assert "orphan" not in names


async def test_nothing_is_in_rocksdb(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        found = json.loads(await body_of(client, RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, topic="t"))
        assert found["checkStatus"] == 0
        assert "none in RocksDB" in found["checkResult"]
        await body_of(client, RequestCode.POP_ROLLBACK)


async def test_entries_of_a_queue_are_shown(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        for tag in ("paid", "open", "paid"):
            await client.send("orders", b"body", {"TAGS": tag})
        ask = RequestCode.QUERY_CONSUME_QUEUE
        where = {"topic": "orders", "queueId": "0", "index": "1", "count": "5", "consumerGroup": "g"}
        body = ConsumeQueueBody.from_json(await body_of(client, ask, b"", **where))
        assert (body.min_queue_index, body.max_queue_index, len(body.queue_data)) == (0, 3, 2)
        first, second = body.queue_data
        assert second.physical_offset == first.physical_offset + first.size
        assert second.tags_code == 3433164  # Java's hash of `paid`
        assert body.filter_data == "g@orders is not online!"
        code, remark = await refusal_of(client, ask, b"", **{**where, "queueId": "9"})
        assert (code, "no queue 9" in remark) == (1, True)


async def test_the_lowest_offset_of_any_group_is_found(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        await create_groups(client, "slow", "middle", "fast")
        for _ in range(5):
            await client.send("orders", b"x")
        for group, offset in (("slow", 1), ("middle", 3), ("fast", 5)):
            await commit(client, "orders", group, offset)

        async def lowest(compare: str, left_out: str) -> dict[str, int]:
            ext = {"topic": "orders", "compareGroup": compare, "filterGroups": left_out}
            found = json.loads(await body_of(client, RequestCode.QUERY_CORRECTION_OFFSET, b"", **ext))
            offsets: dict[str, int] = found["correctionOffsets"]
            return offsets

        assert await lowest("other", "") == {"0": 1}
        assert await lowest("other", "slow,fast") == {"0": 3}
        assert await lowest("slow", "slow") == {"0": (1 << 63) - 1}


async def test_the_progress_of_all_groups_is_added_up(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        await create_groups(client, "done", "behind")
        for _ in range(4):
            await client.send("orders", b"x")
        await pull_all(client, "orders", "done")
        await commit(client, "orders", "behind", 1)
        ask = RequestCode.GET_BROKER_CONSUME_STATS
        stats = ConsumeStatsList.from_json(await body_of(client, ask, isOrder="false"))
        lags = {group: [each.lag for each in found] for row in stats.groups for group, found in row.items()}
        assert lags["done"] == [0]
        assert lags["behind"] == [3]
        assert stats.total_diff == 3
        ordered = ConsumeStatsList.from_json(await body_of(client, ask, isOrder="true"))
        assert ordered.total_diff == 0
        assert all(not found for row in ordered.groups for found in row.values())


async def test_rates_of_topics_and_groups_are_shown(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        view = RequestCode.VIEW_BROKER_STATS_DATA
        code, remark = await refusal_of(client, view, statsName="TOPIC_PUT_NUMS", statsKey="orders")
        assert (code, "TOPIC_PUT_NUMS" in remark) == (1, True)
        await create_groups(client, "readers")
        for _ in range(10):
            await client.send("orders", b"x")
        await pull_all(client, "orders", "readers")
        await trio.sleep(10.1)

        async def minute(name: str, key: str) -> BrokerStatsItem:
            body = await body_of(client, view, statsName=name, statsKey=key)
            return BrokerStats.from_json(body).minute

        one_a_second = pytest.approx(1.0, rel=0.05)
        put = await minute("TOPIC_PUT_NUMS", "orders")
        assert (put.sum, put.avgpt) == (10, 1.0)
        assert put.tps == one_a_second
        read = await minute("GROUP_GET_NUMS", "orders@readers")
        assert (read.sum, read.avgpt) == (10, 10.0)
        assert (await minute("GROUP_GET_SIZE", "orders@readers")).sum > 10 * 90
        ext = {"consumerGroup": "readers", "topic": "orders"}
        consumed = ConsumeStats.from_json(await body_of(client, RequestCode.GET_CONSUME_STATS, b"", **ext))
        assert consumed.consume_tps == one_a_second
        topic = TopicStats.from_json(await body_of(client, RequestCode.GET_TOPIC_STATS_INFO, topic="orders"))
        assert topic.topic_put_tps == one_a_second
        figures = KVTable.from_json(await body_of(client, RequestCode.GET_BROKER_RUNTIME_INFO)).table
        assert float(figures["putTps"].split()[0]) == one_a_second
        assert int(figures["earliestMessageTimeStamp"]) > 0
        by_time = dict(part.rsplit(":", 1) for part in figures["putMessageDistributeTime"].split(" "))
        assert [*by_time] == [*PUT_TIMES]
        assert sum(map(int, by_time.values())) == 10, "of the last minute"


async def test_a_tool_finds_each_runtime_figure_of_rocketmq(tmp_path: Path) -> None:
    """One that is missing, or cannot be read as a number, empties RocketMQ's exporter for Prometheus."""
    golden = json.loads((Path(__file__).parents[3] / "golden/mqadmin.json").read_text())
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        await client.send("orders", b"x" * 100)
        await bench.settled()
        await pull_all(client, "orders", "readers")
        figures = KVTable.from_json(await body_of(client, RequestCode.GET_BROKER_RUNTIME_INFO)).table
    assert {*golden["brokerStatus"][0]} - {*figures} == {"commitLogDiskRatio_DIRECTORY/commitlog"}
    numbers = {
        name: int(value)
        for name, value in figures.items()
        if name.endswith(("Capacity", "Max", "Numbs")) and name != "commitLogDirCapacity"
    }
    assert numbers.keys() >= {"putMessageEntireTimeMax", "getMessageEntireTimeMax", "remainTransientStoreBufferNumbs"}
    assert int(figures["dispatchMaxBuffer"]) > 100
    assert numbers["pullThreadPoolQueueCapacity"] == (384 << 20) // 2048


async def test_rates_of_delayed_messages_are_shown(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        await client.send("orders", b"", {"TIMER_DELAY_SEC": "5"})
        for _ in range(20):
            await client.send("orders", b"", {"TIMER_DELAY_SEC": "9"})
        await trio.sleep(7)
        figures = KVTable.from_json(await body_of(client, RequestCode.GET_BROKER_RUNTIME_INFO)).table
        assert float(figures["timerEnqueueTps"]) == pytest.approx(3.0, rel=0.05)
        assert float(figures["timerDequeueTps"]) == pytest.approx(1 / 7, rel=0.1)


class Rounds:
    """Rounds of statistics, each ten seconds after the one before."""

    def __init__(self) -> None:
        self.counters, self.store, self.now_ms = Counters(), StoreStats(), 0
        self.statistics = Statistics(
            self.counters, self.store, lambda: self.now_ms, local_day=lambda ms: ms // 86_400_000
        )

    async def rounds(self, count: int) -> None:
        for _ in range(count):
            self.now_ms += 1000 * ROUND_S
            await self.statistics.end_round()

    def sums(self) -> tuple[int, int, int]:
        stats = self.statistics.view("TOPIC_PUT_NUMS", "orders")
        assert stats is not None
        return stats.minute.sum, stats.hour.sum, stats.day.sum


async def test_messages_count_in_the_last_minute_hour_and_day() -> None:
    clock = Rounds()
    await clock.rounds(3)
    clock.counters.topics["orders"].count_in(20, 2000)
    await clock.rounds(1)
    assert clock.sums() == (20, 0, 0)
    await clock.rounds(5)
    assert clock.sums() == (20, 0, 0)
    await clock.rounds(1)
    assert clock.sums() == (0, 0, 0)  # a minute ago, and the first ten minutes are not over
    await clock.rounds(50)
    assert clock.sums() == (0, 20, 0)
    await clock.rounds(360)
    assert clock.sums() == (0, 0, 20)
    await clock.rounds(24 * 360)
    assert clock.sums() == (0, 0, 0)


async def test_a_topic_that_is_created_again_counts_from_0() -> None:
    clock = Rounds()
    clock.counters.topics["orders"].count_in(20, 2000)
    await clock.rounds(1)
    clock.counters.forget_topic("orders")
    clock.counters.topics["orders"].count_in(3, 300)
    await clock.rounds(1)
    assert clock.sums()[0] == 23


async def test_a_deleted_topic_is_forgotten() -> None:
    clock = Rounds()
    clock.counters.topics["orders"].count_in(20, 2000)
    await clock.rounds(1)
    clock.counters.forget_topic("orders")
    await clock.rounds(1)
    clock.counters.topics["orders"].count_in(3, 300)
    await clock.rounds(1)
    assert clock.sums()[0] == 3


async def test_rates_of_the_broker_are_of_10_60_and_600_seconds() -> None:
    clock = Rounds()
    await clock.rounds(100)
    assert clock.statistics.figures()["putTps"] == "0.0 0.0 0.0"
    clock.store.put_messages += 60
    await clock.rounds(1)
    assert clock.statistics.figures()["putTps"] == "6.0 1.0 0.1"
    await clock.rounds(1)
    assert clock.statistics.figures()["putTps"] == "0.0 1.0 0.1"


async def test_totals_of_days_change_at_midnight() -> None:
    clock = Rounds()
    found = []
    for messages in (5, 30, 100):
        clock.store.put_messages = messages
        await clock.rounds(8640)
        figures = clock.statistics.figures()
        found.append([figures[f"msgPutTotal{day}"] for day in ("YesterdayMorning", "TodayMorning", "TodayNow")])
    assert found == [[0, 5, 5], [5, 30, 30], [30, 100, 100]]


async def test_what_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        for code, name, why in (
            (513, "UPDATE_AND_CREATE_STATIC_TOPIC", "no static topics"),
            (1002, "CONTROLLER_ELECT_MASTER", "not with RocketMQ's controller"),
            (355, "EXPORT_ROCKSDB_CONFIG_TO_JSON", "no RocksDB"),
        ):
            response_code, remark = await refusal_of(client, code)
            assert response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert remark.startswith(f" request type {code} not supported: {name}; ")
            assert why in remark
        assert await refusal_of(client, 99) == (3, " request type 99 not supported")
