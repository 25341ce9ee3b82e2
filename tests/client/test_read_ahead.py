"""Pulls that are requested ahead: whose answers are taken, and how many are kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from reput_client.consume import fetch_records, pull_consumer
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import Answer, FakeBroker

PULL, FETCH = RequestCode.PULL_MESSAGE, RequestCode.FETCH_RECORDS

Change = Callable[[FakeCluster, Any], Awaitable[FakeBroker]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A master, and a slave that lacks the master's second message."""
    with FakeCluster({"broker-a": 2}) as cluster:
        master, slave = cluster.members["broker-a"]
        slave.log = defaultdict(list)
        slave.store("t", b"0")
        master.store("t", b"0", b"lost", b"lost too")
        yield cluster


async def another_master(cluster: FakeCluster, consumer: Any) -> FakeBroker:
    """The master dies, and a commit finds the new one."""
    master, slave = cluster.members["broker-a"]
    cluster.promote(broker_a=1)
    master.stop()
    slave.store("t", b"1", b"2")
    await consumer.commit("t", 0, 1)
    return slave


async def the_old_master_again(cluster: FakeCluster, consumer: Any) -> FakeBroker:
    """The master loses power, and what was only in its memory; it comes back and takes other messages."""
    master, _ = cluster.members["broker-a"]
    master.stop()
    master.log = defaultdict(list)
    master.store("t", b"0", b"1", b"2")
    master.restart()
    await consumer.commit("t", 0, 1)
    return master


@pytest.mark.parametrize("change", [another_master, the_old_master_again])
@pytest.mark.parametrize("columns", [False, True])
@scenario
async def test_what_a_master_answered_before_it_was_replaced_is_not_taken(
    face: Face, cluster: FakeCluster, columns: bool, change: Change
) -> None:
    if columns:
        pytest.importorskip("numpy")
    master, _ = cluster.members["broker-a"]
    async with face.PullConsumer(cluster.names.address, group="g", timeout_s=20.0) as consumer:

        async def pull_from(offset: int) -> tuple[list[bytes], int]:
            if columns:
                found = await consumer.pull_columns("t", 0, offset, max_bytes=1, wait_s=0.0)
                return [found.columns.bodies()[0].tobytes()], found.next_begin_offset
            result = await consumer.pull("t", 0, offset, max_messages=1, wait_s=0.0, read_ahead=True)
            return [message.body for message in result.messages], result.next_begin_offset

        assert await pull_from(0) == ([b"0"], 1)
        await face.until(lambda: master.count(FETCH if columns else PULL) == 2)
        await face.sleep(0.1)
        master = await change(cluster, consumer)
        assert await pull_from(1) == ([b"1"], 2)
        assert await pull_from(2) == ([b"2"], 3)


@scenario
async def test_queues_that_are_read_in_turn_are_requested_ahead_within_a_limit(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has room is kept until it is taken, and makes room for others if that takes long."""
    monkeypatch.setattr(pull_consumer, "AHEAD_BYTES_MAX", 64 << 10)
    with FakeBroker(queues=20) as broker:
        pulls = partial(broker.count, PULL)
        for queue_id in range(20):
            broker.store("t", *(bytes(10_000) for _ in range(6)), queue_id=queue_id)
        async with face.PullConsumer(broker.address, group="g") as consumer:

            async def pull_one(queue_id: int, offset: int, **options: Any) -> None:
                options = {"max_messages": 1, "max_bytes": 16 << 10, "wait_s": 0.0, **options}
                result = await consumer.pull("t", queue_id, offset, **options)
                assert [message.queue_offset for message in result.messages] == [offset]

            for offset in range(2):
                for queue_id in range(20):
                    await pull_one(queue_id, offset)
            await face.until(lambda: pulls() > 40)
            await face.sleep(0.05)
            ahead = pulls() - 40
            assert 4 <= ahead <= 6
            for queue_id in range(20):
                await pull_one(queue_id, 2, read_ahead=False)
            assert pulls() == 60, "those that were kept were taken"

            monkeypatch.setattr(fetch_records, "_UNUSED_S", 0.0)
            for queue_id in range(20):
                await pull_one(queue_id, 0, read_ahead=True)
            await face.until(lambda: pulls() == 100)
            await pull_one(19, 1, read_ahead=False)
            assert pulls() == 100
            await pull_one(0, 1, read_ahead=False)
            assert pulls() == 101


@scenario
async def test_a_pull_that_is_to_go_to_a_slave_is_not_requested_of_the_master(face: Face, broker: FakeBroker) -> None:
    broker.store("t", b"0", b"1", b"2")
    broker.suggests = 1
    async with face.PullConsumer(broker.address, group="g") as consumer:
        for offset in range(2):
            await consumer.pull("t", 0, offset, max_messages=1, wait_s=0.0, read_ahead=True)
        await face.sleep(0.05)
        assert broker.count(PULL) == 2
        broker.suggests = 0
        await consumer.pull("t", 0, 1, max_messages=1, wait_s=0.0, read_ahead=True)
        await face.until(lambda: broker.count(PULL) == 4)


def nothing_durable(header: Header, body: memoryview) -> Answer:
    """Answer a fetch as if no message after the asked ones were on disk."""
    del body
    start = header.ext["startOffset"]
    return Answer(ResponseCode.PULL_NOT_FOUND, {"nextOffset": start, "minOffset": 0, "maxOffset": start})


@scenario
async def test_columns_that_are_pulled_at_the_end_of_the_durable_messages_are_not_requested_ahead(
    face: Face, broker: FakeBroker
) -> None:
    """The next call asks for blocks, and would not take the answer."""
    pytest.importorskip("numpy")
    broker.store("t", b"0", b"1", b"2")
    broker.behave(FETCH, nothing_durable)

    def one_at_a_time(header: Header, body: memoryview) -> Answer:
        header.ext["maxMsgNums"] = 1
        return broker.pull(header, body)

    broker.behave(PULL, one_at_a_time)
    async with face.PullConsumer(broker.address, group="g") as consumer:
        for offset in range(2):
            found = await consumer.pull_columns("t", 0, offset, max_bytes=1, wait_s=0.0)
            assert found.next_begin_offset == offset + 1
        await face.sleep(0.05)
        assert broker.count(PULL) == 2
