"""Sends over several brokers: round robin, past those that do not take messages, and after a failover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reput_client import Message
from reput_client.errors import (
    BrokerBusy,
    ConnectFailed,
    NotMaster,
    PartlySent,
    ReplyTimeout,
    SendOutcomeUnknown,
    StoreUnavailable,
)
from reput_client.produce.queue_selector import AnyBroker
from reput_protocol.codes import RequestCode, ResponseCode
from support.faces import Face, scenario
from support.fake_cluster import FakeCluster
from support.fakes import HANG_UP, Answer, FakeBroker

pytestmark = pytest.mark.usefixtures("slow_is_not_faulty")

PUT = RequestCode.PUT_MESSAGE
BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: too many requests")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two brokers, the first with a slave."""
    with FakeCluster({"broker-a": 2, "broker-b": 1}, queues=2) as cluster:
        yield cluster


def stored(broker: FakeBroker) -> int:
    return sum(map(len, broker.log.values()))


@scenario
async def test_sends_go_round_all_queues_of_all_brokers(face: Face, cluster: FakeCluster) -> None:

    async with face.Producer(cluster.names.address) as producer:
        for _ in range(8):
            await producer.send(Message("t", b"x"))
        await producer.send_many("t", [b"x"] * 8, batch=2)
        for _ in range(4):
            await producer.send_oneway(Message("t", b"x"))
    for name in cluster.members:
        assert [len(cluster.master(name).log["t", number]) for number in range(2)] == [4, 4]


@pytest.mark.parametrize("how", ["stopped", "busy", "deposed"])
@scenario
async def test_a_broker_that_takes_nothing_is_left_out_and_comes_back(
    face: Face, cluster: FakeCluster, how: str
) -> None:
    """Every kind of send goes to the other broker; nothing of it fails."""
    first, second = cluster.master("broker-a"), cluster.master("broker-b")

    async def send_all(producer: Any) -> int:
        for _ in range(4):
            await producer.send(Message("t", b"x"))
        await producer.send_many("t", [b"x"] * 8, batch=2)
        await face.post_all(producer, [Message("t", b"x")] * 4)
        await producer.send_batch([Message("t", b"x")] * 2)
        for _ in range(4):
            await producer.post(Message("t", b"x"))
            await producer.flush()
        return 22

    async with face.Producer(cluster.names.address, timeout_s=5.0) as producer:
        sent = await send_all(producer)
        assert stored(first)
        assert stored(first) + stored(second) == sent
        before = stored(first)
        if how == "stopped":
            first.stop()
            await face.sleep(0.1)  # or a frame may leave for the connection that has just ended
        elif how == "busy":
            first.behave(PUT, BUSY)
        else:
            cluster.promote(broker_a=None)
        sent += await send_all(producer)
        assert stored(first) == before
        assert stored(first) + stored(second) == sent
        if how == "stopped":
            first.restart()
        first.behave(PUT, None)
        cluster.promote(broker_a=0)
        for _ in range(400):
            await producer.send(Message("t", b"x"))
            if stored(first) > before:
                break
            await face.sleep(0.01)
        assert stored(first) > before


@scenario
async def test_a_queue_that_was_chosen_waits_for_its_new_master(face: Face, cluster: FakeCluster) -> None:
    """By number or by key, in every kind of send; none goes elsewhere."""
    old, new = cluster.members["broker-a"]
    cluster.gone.add("broker-b")

    async with face.Producer(cluster.names.address, timeout_s=5.0) as producer:
        await producer.send(Message("t", b"x"), queue_id=1)
        await producer.send_many("t", [b"x"], queue_id=1)
        old.stop()
        cluster.promote(broker_a=None)
        await face.sleep(0.1)  # or a frame may leave for the connection that has just ended

        async def fail_over() -> None:
            await face.sleep(0.3)
            cluster.promote(broker_a=1)

        async def send() -> None:
            assert (await producer.send(Message("t", b"x"), queue_id=1)).store_host == new.address

        async def send_by_key() -> None:
            await producer.send(Message("t", b"x"), ordering_key="k")

        async def send_many() -> None:
            assert (await producer.send_many("t", [b"x"], queue_id=1))[0].store_host == new.address

        await face.together(fail_over, send, send_by_key, send_many)
    assert stored(new) == 5


@scenario
async def test_a_planned_hand_over_is_followed(face: Face, cluster: FakeCluster) -> None:
    """The old master stays connected and says that it is none."""
    old, new = cluster.members["broker-a"]
    cluster.gone.add("broker-b")

    async with face.Producer(f"{old.address},{new.address}", timeout_s=5.0) as producer:
        await producer.send(Message("t", b"x"))
        await producer.send_many("t", [b"x"])
        cluster.promote(broker_a=1)
        assert (await producer.send(Message("t", b"x"))).store_host == new.address
        assert (await producer.send_many("t", [b"x"]))[0].store_host == new.address
        posted = await producer.post(Message("t", b"x"))
        await producer.flush()
        assert posted.error is None
    assert stored(new) == 5


@scenario
async def test_without_a_new_master_the_reason_is_the_error(face: Face, cluster: FakeCluster) -> None:
    cluster.gone.add("broker-b")

    async with face.Producer(cluster.names.address, timeout_s=0.2) as producer:
        await producer.send(Message("t", b"x"))
        cluster.members["broker-a"][0].is_slave = True
        for options in ({}, {"queue_id": 0}):
            with pytest.raises(NotMaster):
                await producer.send(Message("t", b"x"), **options)
        with pytest.raises(PartlySent) as caught:
            await producer.send_many("t", [b"x"])
        assert isinstance(caught.value.errors[0], NotMaster)
        cluster.members["broker-a"][0].stop()
        with pytest.raises(ConnectFailed):
            await producer.send(Message("t", b"x"))


@scenario
async def test_a_master_that_waits_for_its_slaves_is_waited_for(face: Face, cluster: FakeCluster) -> None:
    """As for a moment after a failover; without slaves waiting would not help."""
    broker = cluster.master("broker-a")
    cluster.gone.add("broker-b")
    lacking = Answer(ResponseCode.SERVICE_NOT_AVAILABLE, remark="NO_REPLICA: it takes 2 members in sync")

    async with face.Producer(cluster.names.address, timeout_s=5.0) as producer:
        for options in ({}, {"queue_id": 0}):
            broker.behave(PUT, lacking)

            async def back() -> None:
                await face.sleep(0.3)
                broker.behave(PUT, None)

            async def send(options: dict[str, int] = options) -> None:
                await producer.send(Message("t", b"x"), **options)

            async def send_many(options: dict[str, int] = options) -> None:
                await producer.send_many("t", [b"x"], **options)

            await face.together(back, send, send_many)
    assert stored(broker) == 4
    alone = cluster.master("broker-b")
    cluster.gone = {"broker-a"}
    alone.behave(PUT, lacking)
    async with face.Producer(cluster.names.address, timeout_s=5.0, retries=0) as producer:
        with pytest.raises(StoreUnavailable):
            await producer.send(Message("t", b"x"))
        with pytest.raises(PartlySent, match="NO_REPLICA"):
            await producer.send_many("t", [b"x"])
    assert alone.count(PUT) == 2


@scenario
async def test_what_no_broker_takes_fails_with_a_brokers_reason(face: Face, cluster: FakeCluster) -> None:
    for name in cluster.members:
        cluster.master(name).behave(PUT, BUSY)

    async with face.Producer(cluster.names.address, retries=0) as producer:
        with pytest.raises(BrokerBusy):
            await producer.send(Message("t", b"x"))
        with pytest.raises(PartlySent, match="BUSY"):
            await producer.send_many("t", [b"x"])
    assert all(cluster.master(name).count(PUT) == 2 for name in cluster.members)


@scenario
async def test_a_queue_of_any_broker(face: Face) -> None:
    """Of tasks that wait, whose queue is the priority that they have afterwards."""
    with FakeCluster({"broker-a": 1, "broker-b": 1}, queues=3) as cluster:
        async with face.Producer(cluster.names.address) as producer:
            found = [await producer.send(Message("t", b"x"), queue_id=AnyBroker(2)) for _ in range(6)]
            masters = [cluster.master(name) for name in cluster.members]
            assert [master.count(PUT) for master in masters] == [3, 3]
            masters[0].behave(PUT, BUSY)
            found += [await producer.send(Message("t", b"x"), queue_id=AnyBroker(2)) for _ in range(6)]
        assert masters[1].count(PUT) == 9
        assert {receipt.queue_id for receipt in found} == {2}


@scenario
async def test_what_may_be_stored_is_not_sent_elsewhere(face: Face, cluster: FakeCluster) -> None:
    for name in cluster.members:
        cluster.master(name).behave(PUT, HANG_UP)

    async with face.Producer(cluster.names.address, retries=0) as producer:
        for count in (1, 2):
            with pytest.raises(SendOutcomeUnknown):
                await producer.send(Message("t", b"x"))
            assert sum(cluster.master(name).count(PUT) for name in cluster.members) == count
        with pytest.raises(SendOutcomeUnknown):
            await producer.send_batch([Message("t", b"x")])
        assert sum(cluster.master(name).count(PUT) for name in cluster.members) == 3


@scenario
async def test_a_repeated_message_goes_to_the_broker_that_may_have_it(face: Face, cluster: FakeCluster) -> None:
    """Only there it is recognised."""
    broker = {name: cluster.master(name) for name in cluster.members}
    for each in broker.values():
        each.behave(PUT, HANG_UP)

    async with face.Producer(cluster.names.address, deduplicate=True, retries=3) as producer:
        for _ in range(2):
            counts = [each.count(PUT) for each in broker.values()]
            with pytest.raises(SendOutcomeUnknown):
                await producer.send(Message("t", b"x"))
            more = [each.count(PUT) - count for each, count in zip(broker.values(), counts, strict=True)]
            assert sorted(more) == [0, 4]


@scenario
async def test_a_request_goes_to_a_broker_that_takes_it(face: Face, cluster: FakeCluster) -> None:
    """It is sent once, like every other message to the next queue, and one broker knows the producer."""
    first, second = cluster.master("broker-a"), cluster.master("broker-b")
    first.behave(RequestCode.HEART_BEAT, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later"))
    second.behave(RequestCode.HEART_BEAT, Answer())
    second.behave(RequestCode.UNREGISTER_CLIENT, Answer())
    async with face.Producer(cluster.names.address) as producer:
        for _ in range(4):
            second.behave(RequestCode.SEND_MESSAGE_V2, second.park)
            with pytest.raises(ReplyTimeout) as late:
                await producer.request(Message("t", b"ping"), timeout_s=0.3)
            assert late.value.is_stored
    assert first.count(RequestCode.HEART_BEAT) > 0
    assert (first.count(RequestCode.SEND_MESSAGE_V2), second.count(RequestCode.SEND_MESSAGE_V2)) == (0, 4)
