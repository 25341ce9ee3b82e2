"""Transactions from the first request to the last, under a clock that jumps."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.transactions import feature
from reput_protocol.codes import MessageSysFlag, RequestCode, ResponseCode, TransactionState
from reput_protocol.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANSACTION_CHECK_GROUP,
)
from reput_protocol.wire.header import HeaderType, Value
from support.broker_bench import T0, BenchClient, BrokerBench, Half, broker_bench
from support.tasks import run_by_the_clock

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
KINDS = pytest.mark.parametrize("kind", [HeaderType.JSON, HeaderType.BINARY, HeaderType.MSGPACK])

pytestmark = pytest.mark.trio(run=run_by_the_clock)


@asynccontextmanager
async def orders(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[BrokerBench, BenchClient]]:
    """Run a broker with the topic `orders`, and connect a client."""
    async with broker_bench(tmp_path / "s", **options) as bench:
        await bench.create_topic("orders")
        yield bench, bench.client()


def open_of(bench: BrokerBench, topic: str = "orders") -> int:
    return bench.storage.half_queue.transactions.open_by_topic[topic]


def counted(bench: BrokerBench) -> dict[str, int]:
    return {result: count for (_, result), count in bench.broker.counters.retry.transactions.items()}


def checked(bench: BrokerBench) -> dict[str, int]:
    return {result: count for (_, result), count in bench.broker.counters.retry.checks.items()}


async def op_bodies(bench: BrokerBench) -> list[bytes]:
    return await bench.bodies(TRANS_OP_HALF_TOPIC)


def progress(bench: BrokerBench) -> tuple[int | None, int | None]:
    offsets = bench.tables.offsets
    return (
        offsets.query(TRANSACTION_CHECK_GROUP, TRANS_HALF_TOPIC, 0),
        offsets.query(TRANSACTION_CHECK_GROUP, TRANS_OP_HALF_TOPIC, 0),
    )


@KINDS
async def test_a_half_message_is_invisible_until_it_is_committed(tmp_path: Path, kind: HeaderType) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders", 4)
        client = bench.client(kind)
        half = await client.send_half("orders", b"o-42", properties={"TAGS": "paid"}, queue_id=3, flag=7)
        assert (half.queue_offset, len(half.unique_key)) == (0, 32)
        assert await bench.bodies("orders", 3) == []
        (stored,) = await bench.half_records()
        assert stored.sys_flag & MessageSysFlag.TRANSACTION_MASK == 0
        found = stored.property_map()
        assert (found["REAL_TOPIC"], found["REAL_QID"], found["TRAN_MSG"]) == ("orders", "3", "true")
        assert found["__transactionId__"] == found["UNIQ_KEY"] == half.unique_key
        assert open_of(bench) == 1

        response = await client.end(half, COMMIT)
        assert response is not None
        assert response.code == 0
        (record,) = await bench.read("orders", 3)
        assert (record.body, record.flag, record.tag) == (b"o-42", 7, "paid")
        assert record.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_COMMIT
        assert record.prepared_transaction_offset == half.physical_offset
        assert record.born_timestamp_ms == stored.born_timestamp_ms
        left = record.property_map()
        assert left["PGROUP"] == "shop"
        assert not {"REAL_TOPIC", "REAL_QID", "TRAN_MSG"} & set(left)
        assert (open_of(bench), counted(bench)) == (0, {"commit": 1})


async def test_a_rollback_is_never_seen_and_leaves_one_op_message(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        half = await client.send_half("orders", b"o-1")
        response = await client.end(half, ROLLBACK)
        assert response is not None
        assert response.code == 0
        assert await op_bodies(bench) == [], "decisions gather for op_interval"
        await trio.sleep(3.1)
        assert await op_bodies(bench) == [b"0,"]
        (op,) = await bench.read(TRANS_OP_HALF_TOPIC)
        assert (op.tag, op.sys_flag & MessageSysFlag.TRANSACTION_MASK) == ("d", 0)
        assert len(op.unique_key or "") == 32
        await trio.sleep(100)
        assert await bench.bodies("orders") == []
        assert len(await bench.half_records()) == 1, "it is not asked about"
        assert (open_of(bench), counted(bench)) == (0, {"rollback": 1})
        assert progress(bench) == (1, 1)


async def test_progress_waits_for_op_messages(tmp_path: Path) -> None:
    """A slave with older progress that takes over knows only op messages."""
    options = {"op_interval": "40s", "check_interval": "5s"}
    async with orders(tmp_path, transactions=options) as (bench, client):
        await client.end(await client.send_half("orders", b"o-1"), ROLLBACK)
        await trio.sleep(30)
        assert await op_bodies(bench) == []
        assert progress(bench) == (0, 0)
        await trio.sleep(30)
        assert await op_bodies(bench) == [b"0,"]
        assert progress(bench) == (1, 1)


async def test_many_decisions_share_op_messages_of_bounded_size(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", transactions={"op_message_size": "64B"}) as bench:
        await bench.create_topic("orders")
        client = bench.client(HeaderType.MSGPACK)
        halves = [await client.send_half("orders", b"%d" % n) for n in range(60)]
        for half in halves:
            await client.end(half, COMMIT if half.queue_offset % 2 else ROLLBACK, oneway=True)
        await trio.sleep(4)
        bodies = await op_bodies(bench)
        named = [int(number) for body in bodies for number in body.decode().split(",") if number]
        assert sorted(named) == list(range(60))
        assert all(64 - 3 <= len(body) <= 64 + 3 for body in bodies[:-1])
        assert await bench.bodies("orders") == [b"%d" % n for n in range(1, 60, 2)]
        records = await bench.read(TRANS_OP_HALF_TOPIC)
        assert records[-1].prepared_transaction_offset == records[-1].physical_offset, "nothing is left"


async def test_open_transactions_are_checked_with_rocketmqs_fields(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders", 2)
        client = bench.client()
        await client.heartbeat("shop")
        half = await client.send_half("orders", b"o-1", queue_id=1)
        assert await client.end(half, UNKNOWN) is None, "RocketMQ answers nothing to that"
        await trio.sleep(29)
        assert client.checks() == []
        await trio.sleep(2)
        ((asked, record),) = client.checks()
        first, copy = await bench.half_records()
        assert (asked.queue_offset, asked.physical_offset) == (1, copy.physical_offset)
        assert asked.unique_key == half.unique_key
        assert asked.message_id == copy.offset_message_id
        assert (record.topic, record.queue_id, record.body) == ("orders", 1, b"o-1")
        assert (record.queue_offset, record.physical_offset) == (1, copy.physical_offset)
        assert copy.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
        assert copy.property_map()["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
        assert (copy.body, copy.born_timestamp_ms, copy.born_host) == (
            first.body, first.born_timestamp_ms, first.born_host,
        )  # fmt: skip
        response = await client.end(asked, COMMIT, from_check=True)
        assert response is not None
        assert response.code == 0
        (committed,) = await bench.read("orders", 1)
        assert committed.prepared_transaction_offset == copy.physical_offset
        assert checked(bench) == {"commit": 1}
        await trio.sleep(65)
        assert client.checks() == []
        assert progress(bench) == (2, 1), "both copies are written down with the decision, in one op message"
        assert await op_bodies(bench) == [b"0,1,"]


async def test_a_producer_that_does_not_know_is_asked_again_until_it_knows(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        client = bench.client(HeaderType.MSGPACK)
        await client.heartbeat("shop")
        await client.send_half("orders", b"o-1")
        for _ in range(3):
            await trio.sleep(30.5)
            ((asked, _),) = client.checks()
            response = await client.end(asked, UNKNOWN, from_check=True)
            assert response is not None
            assert response.code == 0, "our own client is told that it was heard"
        await trio.sleep(30.5)
        ((asked, _),) = client.checks()
        await client.end(asked, ROLLBACK, from_check=True)
        await trio.sleep(60)
        assert client.checks() == []
        assert await bench.bodies("orders") == []
        assert checked(bench) == {"unknown": 3, "rollback": 1}
        assert [r.property_map().get("TRANSACTION_CHECK_TIMES") for r in await bench.half_records()] == [
            None, "1", "2", "3", "4",
        ]  # fmt: skip


async def test_if_its_producer_has_gone_another_one_of_the_group_is_asked(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        first, second, stranger = bench.client(), bench.client(HeaderType.BINARY), bench.client()
        for client, group in ((first, "shop"), (stranger, "other")):
            await client.heartbeat(group)
        await first.send_half("orders", b"o-1")
        bench.gone(first)
        await trio.sleep(31)
        assert checked(bench) == {"no_producer": 1}
        await second.heartbeat("shop")
        await trio.sleep(30)
        assert (first.checks(), stranger.checks()) == ([], [])
        ((asked, _),) = second.checks()
        await second.end(asked, COMMIT, from_check=True, oneway=True)
        assert await bench.bodies("orders") == [b"o-1"]


async def test_the_producers_of_a_group_are_asked_in_rotation(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        clients = [bench.client() for _ in range(3)]
        for client in clients:
            await client.heartbeat("shop")
        for number in range(6):
            await clients[0].send_half("orders", b"%d" % number)
        await trio.sleep(31)
        assert [len(client.checks()) for client in clients] == [2, 2, 2]


async def test_a_producer_that_reads_nothing_is_replaced_by_another(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        stuck, ready = bench.client(), bench.client()
        await stuck.heartbeat("shop")
        await ready.heartbeat("shop")
        stuck.is_full = True
        for number in range(4):
            await ready.send_half("orders", b"%d" % number)
        await trio.sleep(32)
        assert (len(stuck.checks()), len(ready.checks())) == (0, 4)


async def test_a_producer_that_reads_nothing_delays_only_the_checks_of_its_group(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", transactions={"check_max": 6}) as bench:
        await bench.create_topic("orders")
        stuck, ready = bench.client(), bench.client()
        await stuck.heartbeat("stuck")
        await ready.heartbeat("shop")
        stuck.is_full = True
        for number in range(200):
            await ready.send_half("orders", b"%d" % number, group="stuck")
        await ready.send_half("orders", b"after those")
        await trio.sleep(31)
        assert [record.body for _, record in ready.checks()] == [b"after those"], "in the same second"
        assert stuck.checks() == []
        await trio.sleep(60)
        stuck.is_full = False
        await stuck.heartbeat("stuck")
        await trio.sleep(30)
        assert len(stuck.checks()) == 200, "what was not asked was not counted, but for one batch in each round"
        assert counted(bench) == {}


async def test_one_asked_about_too_often_is_put_aside_exactly_once(tmp_path: Path) -> None:
    async with orders(tmp_path, transactions={"check_max": 3}) as (bench, client):
        await client.heartbeat("shop")
        half = await client.send_half("orders", b"o-1", properties={"KEYS": "k"})
        await trio.sleep(30 * 6 + 1)
        assert len(client.checks()) == 3
        (aside,) = await bench.read(TRANS_CHECK_MAX_TIME_TOPIC)
        assert (aside.body, aside.keys) == (b"o-1", ("k",))
        assert aside.property_map()["REAL_TOPIC"] == "orders"
        assert bench.tables.topics.get(TRANS_CHECK_MAX_TIME_TOPIC) is not None
        assert (open_of(bench), counted(bench)) == (0, {"timeout": 1})
        response = await client.end(half, COMMIT)
        assert response is not None
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "put aside" in (response.remark or "")
        assert await bench.bodies("orders") == []


async def test_one_older_than_the_logs_files_get_is_put_aside(tmp_path: Path) -> None:
    options = {"check_max": 1000}
    async with broker_bench(tmp_path / "s", store={"file_reserved_time": "1h"}, transactions=options) as bench:
        await bench.create_topic("orders")
        client = bench.client()
        await client.send_half("orders", b"old", born_timestamp=bench.now_ms + 3_700_000)
        await trio.sleep(31)
        assert len(await bench.half_records()) == 2, "nobody is there to be asked: it was copied"
        await bench.pass_time(3_600)
        await client.send_half("orders", b"young")
        await trio.sleep(31)
        assert await bench.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"old"]
        assert open_of(bench) == 1


async def test_a_message_with_a_time_of_its_own_is_left_alone_until_then(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        slow = await client.send_half("orders", b"slow", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"})
        await client.send_half("orders", b"quick")
        await trio.sleep(31)
        assert [record.body for _, record in client.checks()] == [b"quick"]
        await trio.sleep(60)
        assert [record.body for _, record in client.checks()] == [b"quick"] * 2
        assert len(await bench.half_records()) == 2 + 3, "it was not copied meanwhile"
        assert progress(bench)[0] == 0, "a restart would look at it again"
        await trio.sleep(30)  # 121 s
        checks = {record.body: asked for asked, record in client.checks()}
        assert set(checks) == {b"slow", b"quick"}
        late = await client.end(slow, COMMIT)
        assert late is not None
        assert late.code == ResponseCode.ILLEGAL_OPERATION
        asked = await client.end(checks[b"slow"], COMMIT, from_check=True)
        assert asked is not None
        assert asked.code == 0
        assert await bench.bodies("orders") == [b"slow"]


async def test_an_answer_for_the_first_copy_counts_though_a_later_one_was_asked_about(tmp_path: Path) -> None:
    """A local transaction took longer than the first question: RocketMQ would deliver the message twice."""
    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        half = await client.send_half("orders", b"o-1")
        await trio.sleep(61)
        (_, record), (asked, _) = client.checks()
        assert record.queue_offset == 1
        for answer in (half, asked, half):
            response = await client.end(answer, COMMIT)
            assert response is not None
            assert response.code == 0, "it has been committed, as the producer wants it"
        contrary = await client.end(asked, ROLLBACK, from_check=True)
        assert contrary is not None
        assert contrary.code == ResponseCode.SYSTEM_ERROR
        assert await bench.bodies("orders") == [b"o-1"]
        await trio.sleep(100)
        assert client.checks() == []
        assert counted(bench) == {"commit": 1}


async def test_the_end_of_a_transaction_is_refused_with_rocketmqs_codes(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        await client.send("orders", b"ordinary", {"PGROUP": "shop"})
        half = await client.send_half("orders", b"o-1")
        (ordinary,) = await bench.read("orders")

        async def code_of(wrong: Half, **fields: str) -> int:
            response = await client.end(wrong, COMMIT, **fields)  # type: ignore[arg-type]
            assert response is not None
            return response.code

        assert await code_of(half, group="other") == ResponseCode.SYSTEM_ERROR
        for queue_offset, physical_offset in (
            (1, half.physical_offset),  # the offset in the half queue is wrong
            (0, half.physical_offset + 1),  # no record begins there
            (0, ordinary.physical_offset),  # not a half message
            (0, -5),
            (0, 1 << 40),
        ):
            wrong = Half("shop", queue_offset, physical_offset, half.unique_key, half.message_id)
            assert await code_of(wrong) == ResponseCode.SYSTEM_ERROR
        assert await bench.bodies("orders") == [b"ordinary"]
        assert await code_of(half) == 0


async def test_half_messages_can_be_refused_and_those_that_are_there_still_end(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        half = await bench.client().send_half("orders", b"o-1")
    async with broker_bench(tmp_path / "s", transactions={"reject": True}) as bench:
        client = bench.client()
        refused = await client.send("orders", b"o-2", {"TRAN_MSG": "true", "PGROUP": "shop"})
        assert refused.code == ResponseCode.NO_PERMISSION
        response = await client.end(half, COMMIT)
        assert response is not None
        assert response.code == 0
        assert await bench.bodies("orders") == [b"o-1"]


async def test_system_topics_accept_nothing_from_clients(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC):
            response = await bench.client().send(topic, b"x", {"TAGS": "d"})
            assert response.code in (ResponseCode.NO_PERMISSION, ResponseCode.TOPIC_NOT_EXIST)


async def test_transaction_bits_without_the_property_are_refused(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        for bits in (4, 8, 12):
            response = await bench.client().send("orders", b"x", sys_flag=bits)
            assert response.code == ResponseCode.MESSAGE_ILLEGAL
        assert await bench.bodies("orders") == []


async def test_the_brokers_properties_in_a_clients_half_message_are_dropped(tmp_path: Path) -> None:
    """A first offset far away would make a table as long as that, and one of another's its end."""
    async with orders(tmp_path) as (bench, client):
        await client.send_half("orders", b"mine")
        said = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "99"}
        await client.send_half("orders", b"theirs", properties=said)
        far = {"TRAN_PREPARED_QUEUE_OFFSET": "999999999999"}
        half = await client.send_half("orders", b"far", properties=far)
        response = await client.end(half, COMMIT)
        assert response is not None
        assert response.code == 0
        assert len(bench.storage.half_queue.transactions._states) == 3
        await trio.sleep(31)
        assert await bench.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == []


async def test_a_delay_counts_from_the_commit(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        client = bench.client(HeaderType.MSGPACK)
        half = await client.send_half("orders", b"later", properties={"DELAY": "3"})
        await trio.sleep(20)
        assert len(await bench.half_records()) == 1
        await client.end(half, COMMIT)
        await trio.sleep(9.9)
        assert await bench.bodies("orders") == []
        await trio.sleep(0.2)
        assert await bench.bodies("orders") == [b"later"]
        refused = await client.send("orders", b"x", {"TRAN_MSG": "true", "PGROUP": "g", "TIMER_DELAY_SEC": "99999999"})
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL, "a delay that cannot be is refused at once"


async def test_a_commit_for_a_topic_that_was_deleted_is_refused(tmp_path: Path) -> None:
    async with orders(tmp_path) as (_, client):
        half = await client.send_half("orders", b"o-1")
        await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        response = await client.end(half, COMMIT)
        assert response is not None
        assert response.code == ResponseCode.TOPIC_NOT_EXIST
        again = await client.end(half, ROLLBACK)
        assert again is not None
        assert again.code == 0


@pytest.mark.parametrize("wrong_ms", [-1_000_000_000, 1_000_000_000, -1 << 62, 1 << 62])
async def test_a_producers_wrong_clock_ends_nothing_and_hurries_no_check(tmp_path: Path, wrong_ms: int) -> None:
    """The age counts from when the message was stored. By the producer's clock it could be put aside at once."""
    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        await trio.sleep(29.5)
        born_ms = bench.now_ms + wrong_ms
        own_time = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}
        slow = await client.send_half("orders", b"slow", properties=own_time, born_timestamp=born_ms)
        await client.send_half("orders", b"quick", born_timestamp=born_ms)
        await trio.sleep(1)
        assert client.checks() == []
        await trio.sleep(90)
        assert [record.body for _, record in client.checks()] == [b"quick"] * 3
        assert (open_of(bench), counted(bench)) == (2, {})
        response = await client.end(slow, COMMIT)
        assert response is not None
        assert response.code == 0, response.remark
        (record,) = await bench.read("orders")
        assert (record.body, record.born_timestamp_ms) == (b"slow", born_ms)
        assert "REPUT_HALF_STORED" not in record.property_map()


async def test_half_messages_from_before_the_clock_was_set_back_hold_up_no_other(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", at_ms=T0 + 86_400_000) as bench:
        await bench.create_topic("orders")
        await bench.client().send_half("orders", b"ahead")
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        await client.heartbeat("shop")
        await client.send_half("orders", b"now")
        await trio.sleep(31)
        assert [record.body for _, record in client.checks()] == [b"ahead", b"now"]


async def _committed_after_restart(bench: BrokerBench, client: BenchClient) -> list[bytes]:
    await client.heartbeat("shop")
    await trio.sleep(31)
    for asked, _ in client.checks():
        await client.end(asked, COMMIT, from_check=True)
    return await bench.bodies("orders")


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_a_broker_killed_between_half_and_end_asks_after_its_start(tmp_path: Path, is_confirmed: bool) -> None:
    """So does a new master that does not know yet which of its messages are confirmed."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        await bench.client().send_half("orders", b"o-1")
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        store, client = bench.broker.store, bench.client()
        store.confirm_offset = None if is_confirmed else 0
        await client.heartbeat("shop")
        await trio.sleep(31)
        assert [record.body for _, record in client.checks()] == [b"o-1"]
        assert open_of(bench) == 1
        store.confirm_offset = None
        assert await _committed_after_restart(bench, client) == [b"o-1"]


async def test_a_broker_killed_between_commit_and_op_message_commits_once(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        halves = [await client.send_half("orders", b"%d" % n) for n in range(4)]
        await client.end(halves[0], COMMIT)
        await trio.sleep(4)  # this one is written down
        await client.end(halves[1], COMMIT)
        await client.end(halves[2], ROLLBACK)
        assert await bench.bodies("orders") == [b"0", b"1"]
        assert await op_bodies(bench) == [b"0,"]
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert open_of(bench) == 2, "a rollback is nowhere but in its op message"
        client = bench.client()
        repeated = await client.end(halves[1], COMMIT)
        assert repeated is not None
        assert repeated.code == 0
        await trio.sleep(0.1)
        assert await op_bodies(bench) == [b"0,", b"1,"], "it is written down now"
        assert await _committed_after_restart(bench, client) == [b"0", b"1", b"2", b"3"]


async def test_a_broker_killed_in_the_middle_of_a_round_asks_about_the_latest_copy_only(tmp_path: Path) -> None:
    """The copies are there, the progress is not saved, and no op message names the first ones."""
    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        halves = [await client.send_half("orders", b"%d" % n) for n in range(3)]
        bench.tables.offsets.commit = lambda *_: None  # type: ignore[method-assign]
        await trio.sleep(30.5)
        asked = [half for half, _ in client.checks()]
        await client.end(asked[0], COMMIT, from_check=True)
        await client.end(halves[1], COMMIT)
        assert progress(bench) == (None, None)
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert open_of(bench) == 1
        client = bench.client()
        await client.heartbeat("shop")
        await trio.sleep(31)
        ((half, record),) = client.checks()
        assert (record.body, record.property_map()["TRANSACTION_CHECK_TIMES"]) == (b"2", "2")
        await client.end(half, COMMIT, from_check=True)
        assert sorted(await bench.bodies("orders")) == [b"0", b"1", b"2"]


async def test_a_delayed_message_committed_before_the_kill_is_committed_once(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        half = await client.send_half("orders", b"later", properties={"DELAY": "5"})
        await client.end(half, COMMIT)
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert open_of(bench) == 0
        await trio.sleep(61)
        assert await bench.bodies("orders") == [b"later"]


async def test_one_put_aside_before_the_kill_stays_so(tmp_path: Path) -> None:
    async with orders(tmp_path, transactions={"check_max": 1}) as (bench, client):
        await client.send_half("orders", b"o-1")
        await trio.sleep(59)
        bench.tables.offsets.commit = lambda *_: None  # type: ignore[method-assign]
        await trio.sleep(1.5)
        assert counted(bench) == {"timeout": 1}
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert open_of(bench) == 0
        await trio.sleep(61)
        assert await bench.bodies(TRANS_CHECK_MAX_TIME_TOPIC) == [b"o-1"]


async def test_an_orderly_stop_leaves_nothing_to_look_for(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        for state in (COMMIT, ROLLBACK):
            half = await client.send_half("orders", b"%d" % state)
            await client.end(half, state)
    async with broker_bench(tmp_path / "s") as bench:
        assert open_of(bench) == 0
        assert await op_bodies(bench) == [b"0,1,"]


async def test_a_message_sent_back_is_not_taken_for_the_commit_of_the_first_message_of_the_log(tmp_path: Path) -> None:
    """The half message at log offset 0 is named by 0, and so is none: by messages that were sent back."""
    async with orders(tmp_path) as (bench, client):
        first = await client.send_half("orders", b"first")
        assert first.physical_offset == 0
        second = await client.send_half("orders", b"second")
        await client.end(second, COMMIT)
        (record,) = await bench.read("orders")
        response = await client.send_back(record, "billing")
        assert response.code == 0
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert open_of(bench) == 1


async def test_progress_moves_and_old_op_messages_are_forgotten(tmp_path: Path) -> None:
    async with orders(tmp_path) as (bench, client):
        for number in range(20):
            half = await client.send_half("orders", b"%d" % number)
            await client.end(half, COMMIT)
            await trio.sleep(4)
        await trio.sleep(31)
        assert progress(bench) == (20, len(await op_bodies(bench)))
    async with broker_bench(tmp_path / "s") as bench:
        assert bench.storage.half_queue.transactions.position == 20
        assert not bench.storage.half_queue.ops.messages


async def test_a_power_cut_in_the_middle_of_an_op_message_commits_once(tmp_path: Path) -> None:
    """Some of the op message's pages have reached the disk and some have not; its first bytes are there or not."""
    async with orders(tmp_path) as (bench, client):
        half = await client.send_half("orders", b"o-1")
        await client.end(half, COMMIT)
        assert await bench.bodies("orders") == [b"o-1"]
        before = bench.killed(tmp_path / "before")
        now_ms = bench.now_ms
        await trio.sleep(3.1)
        (op,) = await bench.read(TRANS_OP_HALF_TOPIC)
        after = bench.killed(tmp_path / "after")
    log = Path("commitlog", "0" * 20)
    written, at = (after / log).read_bytes(), op.physical_offset
    size = int.from_bytes(written[at : at + 4], "big")
    for number, (start, end) in enumerate([(0, 8), (8, size), (0, 30), (0, size - 1)]):
        image = tmp_path / f"torn{number}"
        shutil.copytree(before, image)
        with (image / log).open("r+b") as file:
            file.seek(at + start)
            file.write(written[at + start : at + end])
        async with broker_bench(image, at_ms=now_ms) as bench:
            assert open_of(bench) == 0
            await trio.sleep(4)
            assert await op_bodies(bench) == [b"0,"]
            assert await _committed_after_restart(bench, bench.client()) == [b"o-1"]


async def test_an_answer_that_comes_at_once_finds_the_copy_that_it_names(tmp_path: Path) -> None:
    """It was asked about before the copy was synced, and so could not be read: the answer was refused."""

    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        answers: list[int] = []

        async def answer() -> None:
            for asked, _ in client.checks():
                response = await client.end(asked, COMMIT, from_check=True)
                answers.append(-1 if response is None else response.code)

        ask = client.send_request

        def answered_at_once(code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
            bench.nursery.start_soon(answer)
            return ask(code, ext, body)

        client.send_request = answered_at_once  # type: ignore[method-assign]
        for number in range(200):
            await client.send_half("orders", b"%d" % number)
        await trio.sleep(31)
        assert answers == [0] * 200
        assert len(await bench.bodies("orders")) == 200


async def test_progress_is_not_saved_before_what_it_rests_on_is_on_the_disk(tmp_path: Path) -> None:
    """A power cut would take the copy and leave the progress after the first one: it would never be checked again."""
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic("orders")
        await bench.client().send_half("orders", b"o-1")
        await bench.settled()
        store = bench.broker.store
        flush, store.flush_commit_log = store.flush_commit_log, lambda: store.flushed_offset
        await trio.sleep(61)
        assert bench.storage.half_queue.transactions.position == 1
        assert store.flush_behind_bytes > 0
        assert progress(bench)[0] in (None, 0)
        store.flush_commit_log = flush
        await trio.sleep(31)
        assert progress(bench)[0] not in (None, 0)


async def test_a_message_that_waits_long_is_copied_before_a_start_would_have_to_search_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature, "_SEARCH_BYTES_MAX", 100_000)
    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        await client.send_half("orders", b"slow", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1000"})
        await trio.sleep(65)
        assert len(await bench.half_records()) == 1
        for _ in range(3):
            await client.send("orders", bytes(50_000))
        await trio.sleep(100)
        first, copy = await bench.half_records()
        added = {"TRAN_PREPARED_QUEUE_OFFSET": "0", "REPUT_HALF_STORED": str(first.store_timestamp_ms)}
        assert copy.property_map() == {**first.property_map(), **added}
        assert client.checks() == [], "that is no question"
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert (open_of(bench), progress(bench)[0]) == (1, 1)
        client = bench.client()
        await bench.pass_time(1000 - (now_ms - T0) / 1000 - 1)
        await client.heartbeat("shop")
        await trio.sleep(35)
        assert [record.body for _, record in client.checks()] == [b"slow"]


async def test_earlier_copies_that_a_start_finds_are_written_down_as_done(tmp_path: Path) -> None:
    """They were only remembered. The next op message said that all before it was in op messages, and the start after
    that took the first copy for open although a later one had been committed."""
    async with orders(tmp_path) as (bench, client):
        await client.heartbeat("shop")
        # Progress stands still in front of this one.
        await client.send_half("orders", b"slow", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "9999"})
        await client.send_half("orders", b"o-1")
        await trio.sleep(30.5)
        ((asked, _),) = client.checks()
        first = bench.killed(tmp_path / "first")
        assert await op_bodies(bench) == []
        now_ms = bench.now_ms
    async with broker_bench(first, at_ms=now_ms) as bench:
        await bench.client().end(asked, COMMIT, from_check=True)
        await trio.sleep(4)
        assert b"".join(await op_bodies(bench)) == b"1,2,"
        second = bench.killed(tmp_path / "second")
        now_ms = bench.now_ms
    async with broker_bench(second, at_ms=now_ms) as bench:
        assert open_of(bench) == 1
        assert await _committed_after_restart(bench, bench.client()) == [b"o-1"]


async def test_with_a_pool_of_buffers_transactions_end_as_they_do_without(tmp_path: Path) -> None:
    """An op message named the end of what was committed to the file: some earlier record, perhaps a parked one, which
    the next start would have taken for delivered."""
    pool = {"transient_store_pool": True, "flush": "async"}
    async with orders(tmp_path, store=pool) as (bench, client):
        await client.heartbeat("shop")
        halves = [await client.send_half("orders", b"%d" % number) for number in range(4)]
        await client.end(halves[0], COMMIT)
        await client.end(halves[1], ROLLBACK)
        header = client.send_header("orders", {"DELAY": "4"})
        ext = header.to_ext_v2(client.header_type)
        await client.ask(RequestCode.SEND_MESSAGE_V2, ext, b"later", oneway=True)
        await bench.parts.transactions._writer.write()
        await trio.sleep(31)
        for asked, _ in client.checks():
            await client.end(asked, COMMIT, from_check=True)
        assert await bench.bodies("orders") == [b"0", b"later", b"2", b"3"]
        await trio.sleep(5)
        for op in await bench.read(TRANS_OP_HALF_TOPIC):
            assert op.prepared_transaction_offset in (0, op.physical_offset)
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms, store=pool) as bench:
        assert open_of(bench) == 0
