"""Pulls and other reads that a slave answers: by suggestion, or while the master is away."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from reput_client import Backoff
from reput_client.errors import ConnectFailed
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import NotFound
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import Answer

PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster({"broker-a": 2}) as cluster:
        master, slave = cluster.members["broker-a"]
        slave.serves_reads = True
        master.store("t", b"0", b"1", b"2", b"3")
        yield cluster


@scenario
async def test_a_pull_that_waits_at_a_master_that_goes_continues_at_a_slave(face: Face, cluster: FakeCluster) -> None:
    master, slave = cluster.members["broker-a"]

    async with face.PullConsumer(cluster.names.address, group="g") as consumer:
        pulled = []

        async def pull() -> None:
            pulled.append(await consumer.pull("t", 0, 4, wait_s=20.0))

        async def go() -> None:
            await face.until(lambda: master.count(PULL) == 1)
            master.stop()
            await face.until(lambda: slave.count(PULL) == 1)
            slave.store("t", b"4")

        await face.together(pull, go)
        assert [message.body for message in pulled[0].messages] == [b"4"]
        assert slave.count(PULL) == 1


@scenario
async def test_while_master_and_a_slave_are_away_another_slave_is_read(face: Face) -> None:
    with FakeCluster({"broker-a": 3}) as cluster:
        master, dead, slave = cluster.members["broker-a"]
        slave.serves_reads = True
        master.store("t", b"0", b"1")
        master.committed["g", "t", 0] = 1
        for broker in (master, dead):
            broker.stop()

        async with face.PullConsumer(cluster.names.address, group="g", timeout_s=1.0) as consumer:
            assert await consumer.max_offset("t", 0) == 2
            assert await consumer.committed("t", 0) == 1
            assert await bodies(consumer, 0) == [b"0"]


async def bodies(consumer: object, offset: int) -> list[bytes]:
    """Pull one message, and return its body."""
    pulled = await consumer.pull("t", 0, offset, max_messages=1, wait_s=0)  # type: ignore[attr-defined]
    assert pulled.next_begin_offset == offset + len(pulled.messages)
    return [message.body for message in pulled.messages]


@scenario
async def test_a_former_master_is_not_asked_for_offsets(face: Face) -> None:
    """It has become a slave, which the client's route does not say yet."""
    with FakeCluster({"broker-a": 2}) as cluster:
        old, new = cluster.members["broker-a"]

        async with face.PullConsumer(cluster.names.address, group="g") as consumer:
            await consumer.commit("t", 0, 5)
            new.committed = {("g", "t", 0): 7}
            cluster.promote(broker_a=1)
            old.drop_connections()
            assert await consumer.committed("t", 0) == 7


@scenario
async def test_a_suggestion_is_followed_and_the_way_back(face: Face, cluster: FakeCluster) -> None:
    master, slave = cluster.members["broker-a"]

    async with face.PullConsumer(cluster.names.address, group="g") as consumer:
        master.suggests = slave.suggests = 2
        assert [await bodies(consumer, offset) for offset in (0, 1)] == [[b"0"], [b"1"]]
        assert (master.count(PULL), slave.count(PULL)) == (1, 1)
        slave.suggests = 0
        assert [await bodies(consumer, offset) for offset in (2, 3)] == [[b"2"], [b"3"]]
        assert (master.count(PULL), slave.count(PULL)) == (2, 2)
        # A slave that does not have the next message, or refuses: its answer does not count.
        slave.log = {("t", 0): master.log["t", 0][:1]}
        assert await bodies(consumer, 2) == [b"2"]
        assert (master.count(PULL), slave.count(PULL)) == (3, 3)
        slave.serves_reads = False
        assert await bodies(consumer, 2) == [b"2"]
        assert (master.count(PULL), slave.count(PULL)) == (4, 4)


@scenario
async def test_while_the_master_is_away_a_slave_is_read(face: Face, cluster: FakeCluster) -> None:
    master, slave = cluster.members["broker-a"]

    async with face.PullConsumer(cluster.names.address, group="g", timeout_s=0.5) as consumer:
        assert await bodies(consumer, 0) == [b"0"]
        master.stop()
        assert await bodies(consumer, 1) == [b"1"]
        with pytest.raises(ConnectFailed):  # a commit is not taken by a slave
            await consumer.commit("t", 0, 2)
        assert not slave.commits
        master.restart()
        await consumer.commit("t", 0, 2)
        before = slave.count(PULL)
        assert await bodies(consumer, 2) == [b"2"]
        assert slave.count(PULL) == before


@pytest.mark.parametrize("address", ["of a name server", "of the master"])
@scenario
async def test_a_master_that_is_stuck_does_not_cost_the_timeout_of_a_read(
    face: Face, cluster: FakeCluster, address: str
) -> None:
    """Its system accepts connections for it, as for a process that is suspended."""
    master, _ = cluster.members["broker-a"]
    home = master if address == "of the master" else cluster.names
    async with face.PullConsumer(
        home.address, group="g", timeout_s=8.0, new_backoff=lambda: Backoff(2.0, 2.0)
    ) as consumer:
        assert await bodies(consumer, 0) == [b"0"]
        master.is_stuck = True
        began_at = time.monotonic()
        assert await bodies(consumer, 1) == [b"1"]
        assert time.monotonic() - began_at < 3.0, "a second of silence, and one to ask whether it is there"
        asked = len(master.requests)
        assert await bodies(consumer, 2) == [b"2"]
        assert len(master.requests) == asked, "it is not asked at each read"
        master.is_stuck = False
        until = time.monotonic() + 10.0
        asked = master.count(PULL)
        while master.count(PULL) == asked:
            assert time.monotonic() < until, "the master is not asked again"
            await face.sleep(0.1)
            assert await bodies(consumer, 3) == [b"3"]


@scenario
async def test_while_the_master_is_away_a_slave_answers_what_it_can(face: Face, cluster: FakeCluster) -> None:
    """Clients that start then, too: the routes still name the master."""
    master, slave = cluster.members["broker-a"]
    master.committed["g", "t", 0] = 3
    slave.behave(RequestCode.GET_EARLIEST_MSG_STORETIME, Answer(ext={"timestamp": 7}))
    slave.behave(RequestCode.QUERY_MESSAGE, Answer(ext={"indexLastUpdateTimestamp": 0, "indexLastUpdatePhyoffset": 0}))
    found = Answer(ResponseCode.QUERY_NOT_FOUND, remark="NOT_FOUND: none")
    slave.behave(RequestCode.VIEW_MESSAGE_BY_ID, found)
    master.stop()

    async with face.PullConsumer(cluster.names.address, group="g") as consumer:
        assert len((await consumer.pull("t", 0, 1, wait_s=0, broker_name="broker-a")).messages) == 3
        assert len((await consumer.pull_columns("t", 0, 1, wait_s=0)).columns) == 3
        assert await consumer.min_offset("t", 0) == 0
        assert await consumer.max_offset("t", 0) == 4
        assert await consumer.offset_by_time("t", 0, 0) == 4
        assert await consumer.committed("t", 0) == 3
    async with face.Admin(cluster.names.address) as admin:
        assert await admin.earliest_message_time_ms("t", 0) == 7
        assert not (await admin.find_messages("t", "key")).messages
        with pytest.raises(NotFound):
            await admin.view_message("7F00000100002A9F0000000000000000")
    async with face.Consumer(cluster.names.address, group="g", topic="t") as group:
        assert (await group.receive(10.0)).body == b"3"
