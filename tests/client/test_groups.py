"""Members of a group against a scripted broker, with every API: joining, sharing, leaving, commits.

The fake broker keeps groups as a real one does (`fake_groups.py`); strangers are members that only it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from reput_client import Message, RetryHere
from reput_client.consume.group.allocation import circularly
from reput_client.consume.group.handover import LEAVE_AFTER_S
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import BrokerError
from reput_protocol.record.message import MessageQueue
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

HEART_BEAT = RequestCode.HEART_BEAT
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
UNREGISTER = RequestCode.UNREGISTER_CLIENT
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
PULL = RequestCode.PULL_MESSAGE
FIRST, LAST = "0.0.0.0@0#0", "zzz@0#0"
"""Ids of strangers that sort before and after those of the members under test."""


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(queues=4) as broker:
        yield broker


async def fill(face: Face, broker: FakeBroker, count: int, topic: str = "t") -> None:
    """Put `count` numbered messages into each queue."""
    async with face.Producer(broker.address) as producer:
        for queue_id in range(broker.queues):
            bodies = [b"%d-%d" % (queue_id, number) for number in range(count)]
            await producer.send_batch([Message(topic, body) for body in bodies], queue_id=queue_id)


async def put(face: Face, broker: FakeBroker, body: bytes, queue_id: int, topic: str = "t") -> None:
    async with face.Producer(broker.address) as producer:
        await producer.send(Message(topic, body), queue_id=queue_id)


def queue_ids(consumer: object, topic: str = "t") -> list[int]:
    return [queue.queue_id for queue in consumer.assignment if queue.topic == topic]  # type: ignore[attr-defined]


@scenario
async def test_a_member_says_so_before_it_asks_who_the_others_are_and_when_it_leaves(
    face: Face, broker: FakeBroker
) -> None:

    async with face.Consumer(broker.address, group="g", topics={"t": "a || b", "u": "*"}) as consumer:
        assert broker.groups.members("g") == [consumer.client_id]
        assert await consumer.members() == [consumer.client_id]
        queues = [(q.topic, q.queue_id) for q in consumer.assignment]
        assert queues == [(topic, n) for topic in ("%RETRY%g", "t", "u") for n in range(4)]
    codes = [header.code for header in broker.requests]
    assert codes.index(HEART_BEAT) < codes.index(MEMBERS)
    assert [code for code in codes if code in (UPDATE, UNREGISTER)][-1] == UNREGISTER, "commits come first"
    assert broker.groups.members("g") == []
    (sent,) = broker.groups.heartbeats[0].consumers
    assert (sent.group_name, sent.consume_type, sent.message_model) == ("g", "CONSUME_PASSIVELY", "CLUSTERING")
    assert sent.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    wanted = {data.topic: (data.sub_string, data.tags_set) for data in sent.subscriptions}
    assert wanted == {"t": ("a || b", ["a", "b"]), "u": ("*", []), "%RETRY%g": ("*", [])}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"topic": "t"}, ("*", "TAG")),
        ({"topic": "t", "tags": "b || a"}, ("b || a", "TAG")),
        ({"topics": {"t": "a"}}, ("a", "TAG")),
        ({"topic": "t", "sql": "n > 5"}, ("n > 5", "SQL92")),
        ({"topics": ["t"], "sql": "n > 5"}, ("n > 5", "SQL92")),
    ],
)
@scenario
async def test_a_heartbeat_says_what_is_wanted(
    face: Face, broker: FakeBroker, asked: dict[str, Any], expected: tuple[str, str]
) -> None:

    async with face.Consumer(broker.address, group="g", **asked):
        (data,) = broker.groups.heartbeats[-1].consumers
    said = {data.topic: (data.sub_string, data.expression_type) for data in data.subscriptions}
    assert said == {"t": expected, "%RETRY%g": ("*", "TAG")}


@scenario
async def test_members_share_the_queues_and_the_last_one_has_them_all(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 5)
    seen: list[bytes] = []
    async with face.Consumer(broker.address, group="g", topic="t") as first:
        assert queue_ids(first) == [0, 1, 2, 3]
        async with face.Consumer(broker.address, group="g", topic="t") as second:
            await face.until(lambda: queue_ids(first) == [0, 1] and queue_ids(second) == [2, 3])
            for consumer in (first, second):
                while (message := await consumer.receive(0.3)) is not None:
                    seen.append(message.body)
            assert len(seen) == 20
        await face.until(lambda: queue_ids(first) == [0, 1, 2, 3])
        assert await first.receive(0.3) is None, "the second has committed what it handled"
    assert sorted(seen) == sorted(b"%d-%d" % (q, n) for q in range(4) for n in range(5))
    assert all(broker.committed["g", "t", q] == 5 for q in range(4))


@scenario
async def test_a_death_is_noticed_while_the_application_is_busy(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 1)
    stranger = broker.groups.add_stranger("g", FIRST)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert queue_ids(consumer) == [2, 3]
        assert await consumer.receive(5.0) is not None  # its handling begins
        broker.groups.gone(stranger)
        started_at = time.monotonic()
        await face.until(lambda: queue_ids(consumer) == [0, 1, 2, 3])
        assert time.monotonic() - started_at < 5.0
        assert {(await consumer.receive(5.0)).queue_id for _ in range(3)} >= {0, 1}


@scenario
async def test_a_queue_is_given_up_and_committed_while_the_application_is_busy(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 3)
    async with face.Consumer(broker.address, group="g", topic="t", allocation=circularly) as consumer:
        got = [await consumer.receive(5.0) for _ in range(12)]
        in_hand = got[-1]
        broker.groups.add_stranger("g", FIRST)
        await face.until(lambda: queue_ids(consumer) == [1, 3])
        expected = [2 if in_hand.queue_id == queue_id else 3 for queue_id in (0, 2)]
        await face.until(lambda: [broker.committed["g", "t", q] for q in (0, 2)] == expected)
        await face.sleep(2 * LEAVE_AFTER_S)
        before = len(broker.commits)
        assert await consumer.receive(0.2) is None  # the current message is handled, too late
        await consumer.commit()
        late = {queue_id for _, topic, queue_id, _ in broker.commits[before:] if topic == "t"}
        assert late <= {1, 3}, "what is handled after its queue has gone counts no more"
        for queue_id in range(4):
            await put(face, broker, b"new", queue_id)
        assert {(await consumer.receive(5.0)).queue_id for _ in range(2)} == {1, 3}


@scenario
async def test_what_is_in_flight_when_a_queue_goes_has_a_moment_to_finish(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 2)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        messages = [await consumer.take(5.0) for _ in range(8)]
        broker.groups.add_stranger("g", FIRST)
        await face.until(lambda: queue_ids(consumer) == [2, 3])
        for message in messages:
            message.ack()
        await face.until(lambda: all(broker.committed["g", "t", q] == 2 for q in (0, 1)))


@scenario
async def test_a_new_member_takes_no_queue_before_a_living_one_had_time_to_let_go(
    face: Face, broker: FakeBroker
) -> None:

    started_at = time.monotonic()
    broker.groups.add_stranger("g", FIRST)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert queue_ids(consumer) == [2, 3]
    codes = [header.code for header in broker.requests]
    assert codes.count(RequestCode.QUERY_CONSUMER_OFFSET) == 4, "two queues of each topic"
    assert time.monotonic() - started_at > 0.3


@scenario
async def test_the_place_where_a_group_begins_is_committed_at_once(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 3)
    async with face.Consumer(broker.address, group="g", topic="t", start="latest"):
        await face.until(lambda: all(broker.committed.get(("g", "t", q)) == 3 for q in range(4)))


@scenario
async def test_a_member_that_was_cut_off_and_overtaken_goes_on_where_the_group_is(
    face: Face, broker: FakeBroker
) -> None:

    await fill(face, broker, 10)
    async with face.Consumer(
        broker.address, group="g", topic="t", commit_interval_s=60.0, prefetch_messages=16
    ) as consumer:
        got = [await consumer.receive(5.0) for _ in range(4)]
        assert len(got) == 4
        for queue_id in range(4):  # another member had the queues meanwhile
            broker.committed["g", "t", queue_id] = 8
        accepted = broker.accepted
        broker.drop_connections()
        await face.until(lambda: broker.accepted > accepted)  # prefetched messages are delivered until it is noticed
        bodies = set()
        while (message := await consumer.receive(1.0)) is not None:
            bodies.add(message.body)
        assert bodies == {b"%d-%d" % (q, n) for q in range(4) for n in (8, 9)}
    assert all(broker.committed["g", "t", q] == 10 for q in range(4))
    for queue_id in range(4):
        offsets = [offset for _, t, q, offset in broker.commits if (t, q) == ("t", queue_id)]
        assert all(offset <= 4 or offset >= 8 for offset in offsets)


@scenario
async def test_a_member_that_stood_still_begins_nothing_before_it_knows_whether_it_is_one(
    face: Face, broker: FakeBroker
) -> None:

    await fill(face, broker, 10)
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=60.0) as consumer:
        assert await consumer.receive(5.0) is not None
        broker.groups.tell("g")  # more to read than the connection's end
        for queue_id in range(4):
            broker.committed["g", "t", queue_id] = 9
        broker.drop_connections()
        time.sleep(0.3)  # noqa: ASYNC251 - the whole event loop stands still
        found = []
        while (message := await consumer.receive(1.0)) is not None:
            found.append(message.queue_offset)
    assert found == [9] * 4


@scenario
async def test_a_member_that_was_cut_off_and_not_overtaken_handles_nothing_twice(
    face: Face, broker: FakeBroker
) -> None:

    await fill(face, broker, 10)
    bodies = []
    async with face.Consumer(
        broker.address, group="g", topic="t", commit_interval_s=60.0, prefetch_messages=16
    ) as consumer:
        for number in range(40):
            if number in (5, 17, 30):
                broker.drop_connections()
            bodies.append((await consumer.receive(10.0)).body)
        assert await consumer.receive(0.2) is None
    assert sorted(bodies) == sorted(b"%d-%d" % (q, n) for q in range(4) for n in range(10))
    assert broker.groups.members("g") == []


@scenario
async def test_a_reset_while_a_member_was_away_is_followed(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 4)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        for _ in range(16):
            await consumer.receive(5.0)
        await consumer.commit()
        for queue_id in range(4):
            broker.committed["g", "t", queue_id] = 1
        broker.drop_connections()
        again = [(await consumer.receive(10.0)).queue_offset for _ in range(12)]
        assert sorted(again) == sorted([1, 2, 3] * 4)


@scenario
async def test_a_commit_never_lowers_what_another_member_has_committed(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 4)
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=60.0) as consumer:
        for _ in range(16):
            await consumer.receive(5.0)
        for queue_id in range(4):
            broker.committed["g", "t", queue_id] = 100
    assert all(broker.committed["g", "t", q] == 100 for q in range(4))


@scenario
async def test_progress_is_committed_while_the_application_is_busy(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 2)
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=0.05) as consumer:
        for _ in range(8):
            await consumer.receive(5.0)
        await face.until(lambda: sum(broker.committed.get(("g", "t", q), 0) for q in range(4)) == 7)


@scenario
async def test_a_pull_takes_progress_along(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 1)
    broker.behave(UPDATE, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: not now"))
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=60.0) as consumer:
        for _ in range(4):
            await consumer.receive(5.0)
        assert await consumer.receive(0.1) is None
        for queue_id in range(4):
            await put(face, broker, b"more", queue_id)
        for _ in range(4):
            await consumer.receive(5.0)
        assert await consumer.receive(0.1) is None
        await face.until(lambda: all(broker.committed.get(("g", "t", q)) == 2 for q in range(4)))
        broker.behave(UPDATE, None)


@scenario
async def test_a_group_that_does_not_take_us(face: Face, broker: FakeBroker) -> None:

    refusal = Answer(ResponseCode.NO_PERMISSION, remark="PERMISSION_DENIED: the group is closed")
    broker.behave(HEART_BEAT, refusal)
    with pytest.raises(BrokerError, match="the group is closed"):
        async with face.Consumer(broker.address, group="g", topic="t"):
            pass
    broker.behave(HEART_BEAT, None)
    async with face.Consumer(broker.address, group="g", topic="t", heartbeat_interval_s=0.05) as consumer:
        broker.behave(HEART_BEAT, refusal)
        with pytest.raises(BrokerError, match="the group is closed"):
            await consumer.receive(10.0)
        broker.behave(HEART_BEAT, None)
        await put(face, broker, b"x", 0)
        beats = broker.count(HEART_BEAT)
        await face.until(lambda: broker.count(HEART_BEAT) > beats + 1)
        assert (await consumer.receive(5.0)).body == b"x"


@scenario
async def test_a_member_that_the_broker_has_forgotten_joins_again(face: Face, broker: FakeBroker) -> None:

    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        broker.behave(MEMBERS, Answer(ResponseCode.SYSTEM_ERROR, remark="no consumer for this group, g"))
        beats = broker.count(HEART_BEAT)
        broker.groups.tell("g")
        await face.until(lambda: broker.count(HEART_BEAT) > beats)
        assert queue_ids(consumer) == [0, 1, 2, 3], "what cannot be found out changes nothing"
        broker.behave(MEMBERS, None)


@scenario
async def test_several_topics(face: Face, broker: FakeBroker) -> None:

    for topic in ("t", "u"):
        await fill(face, broker, 2, topic)
    async with face.Consumer(broker.address, group="g", topics=["t", "u"]) as consumer:
        assert (consumer.topic, consumer.topics) == ("t", ("t", "u"))
        got = [(m.topic, m.queue_id, m.queue_offset) for m in [await consumer.receive(5.0) for _ in range(16)]]
        assert sorted(got) == [(t, q, n) for t in ("t", "u") for q in range(4) for n in range(2)]
    assert {broker.committed["g", topic, q] for topic in ("t", "u") for q in range(4)} == {2}


@scenario
async def test_what_comes_back_shows_the_topic_that_it_was_sent_to(face: Face, broker: FakeBroker) -> None:

    broker.store("%RETRY%g", b"again", queue_id=2, RETRY_TOPIC="t")
    broker.store("%RETRY%g", b"odd", queue_id=3)
    async with face.Consumer(broker.address, group="g", topic="t", tags="only", start="latest") as consumer:
        got = {m.body: m for m in [await consumer.receive(5.0) for _ in range(2)]}
        assert got[b"again"].topic == "t"
        assert got[b"again"].queue == MessageQueue("%RETRY%g", "fake", 2)
        assert got[b"odd"].topic == "%RETRY%g"
        message = await consumer.take(0.1)
        assert message is None
    assert [broker.committed["g", "%RETRY%g", q] for q in range(4)] == [0, 0, 1, 1]


@scenario
async def test_a_message_that_is_to_come_again_holds_the_commit_back(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address) as producer:
        await producer.send_batch([Message("t", b"%d" % n) for n in range(4)], queue_id=0)
    async with face.Consumer(broker.address, group="g", topic="t", on_failure=RetryHere(0.2)) as consumer:
        first = await consumer.receive(5.0)
        await consumer.failed(first, ValueError("not now"))
        order = [(await consumer.receive(5.0)).body for _ in range(3)]
        assert order == [b"1", b"2", b"3"]
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 0
        assert (await consumer.receive(5.0)).body == b"0"
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 4


@scenario
async def test_flow_control_stops_pulling_behind_a_message_that_is_not_handled(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address) as producer:
        await producer.send_batch([Message("t", b"%d" % n) for n in range(400)], queue_id=0)
    for bounds, most in (
        ({"queue_span_max": 60}, 60 + 16),
        ({"queue_messages_max": 40}, 40),
        ({"queue_bytes_max": 4000}, 100),
    ):
        async with face.Consumer(
            broker.address, group=f"g{most}", topic="t", prefetch_messages=128, **bounds
        ) as consumer:
            hung = await consumer.take(5.0)
            taken = 1
            while (message := await consumer.take(0.3)) is not None:
                taken += 1
                if "queue_span_max" in bounds:
                    message.ack()
            assert taken <= most
            hung.ack()
            if "queue_span_max" in bounds:
                while taken < 400:
                    message = await consumer.take(5.0)
                    message.ack()
                    taken += 1


def test_arguments_that_make_no_sense(face: Face) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {},
        {"topic": "t", "topics": ["u"]},
        {"topics": []},
        {"topic": "t", "mode": "anycast"},
        {"topic": "t", "start": "now"},
        {"topic": "t", "start": -1},
        {"topic": "t", "queue_span_max": 0},
        {"topic": "t", "heartbeat_interval_s": 0},
    )
    for options in wrong:
        with pytest.raises(ValueError, match=r".+"):
            face.Consumer("127.0.0.1:1", group="g", **options)


@pytest.mark.parametrize("kind", ["Consumer", "PopConsumer"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": ["t"]}, "pass it as topics="),
        ({"topic": "t", "tags": ["paid"]}, "|| joins several"),
        ({"topics": {"t": ["paid"]}}, "|| joins several"),
        ({"topic": "t", "start": 1.5}, "not float"),
        ({"topic": "t", "start": None}, "not NoneType"),
        ({"topic": "t", "on_failure": RetryHere}, "pass an object: RetryHere()"),
        ({"topic": "t", "on_failure": print}, "such as GiveBack()"),
    ],
)
def test_arguments_of_a_wrong_type(face: Face, kind: str, options: dict[str, Any], says: str) -> None:
    """Before there is a consumer, not where the argument is used first."""
    with pytest.raises(TypeError) as caught:
        getattr(face, kind)("127.0.0.1:1", group="g", **options)
    assert says in str(caught.value)


@pytest.mark.parametrize("face", ["trio", "asyncio"], indirect=True)
@pytest.mark.parametrize("kind", ["Consumer", "PopConsumer"])
@scenario
async def test_a_handler_takes_the_message(face: Face, broker: FakeBroker, kind: str) -> None:
    """One of RabbitMQ's callbacks would fail with every message until all are dead letters."""

    async def callback(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        raise AssertionError(body)

    async with getattr(face, kind)(broker.address, group="g", topic="t", orderly=False) as consumer:
        with pytest.raises(TypeError, match="cannot be called with the message as its only argument"):
            await consumer.run(callback)
        with pytest.raises(TypeError, match="pass it without calling it"):
            await consumer.run(None)
