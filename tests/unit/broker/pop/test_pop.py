"""POP: what is popped, when it is redelivered, and what survives a kill."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.remoting.request import Response
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.group import SubscriptionGroupConfig, UnregisterClientHeader
from reput_protocol.commands.pop import PopHandle
from reput_protocol.names import POP_PASSED_GROUP, REVIVE_GROUP, TIMER_TOPIC, revive_topic
from reput_protocol.record.put_block import BatchItem, encode_batch
from reput_protocol.record.record import record_views
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, BrokerBench, broker_bench
from support.pops import Popped, popped_messages
from support.tasks import run_by_the_clock

TOPIC, GROUP = "orders", "billing"
MESSAGE_ILLEGAL = ResponseCode.MESSAGE_ILLEGAL
RETRY, DLQ = "%RETRY%billing_orders", "%DLQ%billing"
REVIVE = revive_topic("DefaultCluster")

pytestmark = pytest.mark.trio(run=run_by_the_clock)


class Consumer:
    """A client that pops."""

    def __init__(self, bench: BrokerBench, group: str = GROUP) -> None:
        self.bench = bench
        self.client: BenchClient = bench.client()
        self.group = group

    async def ask_pop(self, **fields: Any) -> Response:
        ext = {
            "consumerGroup": self.group,
            "topic": TOPIC,
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": "10000",
            "pollTime": "0",
            "bornTime": str(self.bench.now_ms),
            "initMode": "0",
            **{name: str(value) for name, value in fields.items()},
        }
        answer = await self.client.ask(RequestCode.POP_MESSAGE, ext)
        assert answer is not None
        return answer

    async def pop(self, **fields: Any) -> list[Popped]:
        await self.bench.settled()
        answer = await self.ask_pop(**fields)
        assert answer.code in (0, ResponseCode.POLLING_TIMEOUT), answer.remark
        return self.messages(answer)

    def messages(self, answer: Response) -> list[Popped]:
        return popped_messages(answer.ext, answer.body)

    def _ext(self, one: Popped) -> dict[str, str]:
        return one.ack_fields(self.group, TOPIC)

    async def ack(self, one: Popped) -> Response:
        answer = await self.client.ask(RequestCode.ACK_MESSAGE, self._ext(one))
        assert answer is not None
        return answer

    async def ack_batch(self, *points: tuple[PopHandle, int]) -> Response:
        """Acknowledge messages of several check points, of each those with a bit."""
        acks = [
            {
                "c": self.group, "t": TOPIC, "r": "0", "so": handle.start_offset, "q": handle.queue_id,
                "rq": handle.revive_queue_id, "pt": handle.pop_time, "it": handle.invisible_time,
                "b": base64.b64encode(bytes([bits])).decode(),
            }
            for handle, bits in points
        ]  # fmt: skip
        body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
        answer = await self.client.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)
        assert answer is not None
        return answer

    async def ask_change(self, one: Popped, invisible_ms: int, **more: str) -> Response:
        ext = {**self._ext(one), "invisibleTime": str(invisible_ms), **more}
        answer = await self.client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
        assert answer is not None
        return answer

    async def change(self, one: Popped, invisible_ms: int, **more: str) -> Popped:
        answer = await self.ask_change(one, invisible_ms, **more)
        assert answer.code == 0, answer.remark
        return one.changed(answer.ext)


async def send(bench: BrokerBench, *bodies: bytes, queues: int = 1, **properties: str) -> None:
    """Send messages, one queue after the other."""
    await bench.create_topic(TOPIC, queues)
    client = bench.client()
    for number, body in enumerate(bodies):
        answer = await client.send(TOPIC, body, properties, queue_id=number % queues)
        assert answer.code == 0, answer.remark


def bodies(popped: list[Popped]) -> list[bytes]:
    return sorted(one.record.body for one in popped)


def committed(bench: BrokerBench, group: str, topic: str, queue_id: int = 0) -> int | None:
    return bench.tables.offsets.query(group, topic, queue_id)


async def test_messages_of_all_queues_are_popped_once(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        sent = [b"%d" % number for number in range(8)]
        await send(bench, *sent, queues=4)
        consumer = Consumer(bench)
        first = await consumer.pop(maxMsgNums=5)
        assert len(first) == 5
        rest = await consumer.pop()
        assert bodies(first + rest) == sent
        assert await consumer.pop() == []
        assert bodies(await Consumer(bench, "other").pop()) == sent, "each group has its own"


async def test_an_acknowledged_message_does_not_come_back_and_another_does(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"kept", b"lost", TAGS="paid")
        consumer = Consumer(bench)
        kept, lost = await consumer.pop()
        assert (await consumer.ack(kept)).code == 0
        await bench.pass_time(9.9)
        assert await consumer.pop() == [], "it is invisible for 10 s"
        await bench.pass_time(0.3)
        (again,) = await consumer.pop()
        assert (again.record.body, again.record.reconsume_times, again.record.tag) == (b"lost", 1, "paid")
        assert again.record.topic == TOPIC, "clients see no retry topic"
        assert again.handle.mark == "1"
        assert again.record.property_map()["1ST_POP_TIME"] == str(lost.handle.pop_time)
        assert (await consumer.ack(again)).code == 0
        await bench.pass_time(60)
        assert await consumer.pop() == []
        await bench.settled()
        assert committed(bench, GROUP, TOPIC) == 2
        assert committed(bench, GROUP, RETRY) == 1


async def test_after_the_last_try_it_is_a_dead_letter(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"m", KEYS="k1")
        bench.tables.groups.put(SubscriptionGroupConfig(GROUP, retry_max_times=2))
        consumer = Consumer(bench)
        for attempt in range(3):
            (one,) = await consumer.pop(invisibleTime=2000)
            assert one.record.reconsume_times == attempt
            await bench.pass_time(2.1)
        assert await consumer.pop() == []
        (dead,) = await bench.read(DLQ)
        assert (dead.body, dead.keys, dead.reconsume_times) == (b"m", ("k1",), 3)
        assert dead.property_map()["RETRY_TOPIC"] == TOPIC
        assert dead.property_map()["DLQ_REASON"] == "max_reconsume_times"
        assert bench.broker.counters.retry.retries[GROUP, TOPIC] == 2
        assert bench.broker.counters.retry.dead_letters[GROUP, TOPIC] == 1


async def test_the_largest_number_of_attempts_stays(tmp_path: Path) -> None:
    most = 0x7FFF_FFFF
    async with broker_bench(tmp_path / "s") as bench:
        await bench.create_topic(TOPIC)
        answer = await bench.client().send(TOPIC, b"m", reconsume_times=most)
        assert answer.code == 0, answer.remark
        consumer = Consumer(bench)
        (one,) = await consumer.pop(invisibleTime=2000)
        await bench.pass_time(2.1)
        (dead,) = await bench.read(DLQ)
        assert (dead.body, dead.reconsume_times) == (b"m", most)
        answer = await consumer.client.send_back(one.record, "other")
        assert answer.code == 0, answer.remark
        (dead,) = await bench.read("%DLQ%other")
        assert (dead.body, dead.reconsume_times) == (b"m", most)


async def test_a_changed_time_replaces_the_first_one(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"m")
        consumer = Consumer(bench)
        (one,) = await consumer.pop()
        await bench.pass_time(5)
        later = await consumer.change(one, 30_000)
        await bench.pass_time(29.9)
        assert await consumer.pop() == []
        sooner = await consumer.change(later, 1_500)
        await bench.pass_time(1.4)
        assert await consumer.pop() == []
        await bench.pass_time(0.3)
        (again,) = await consumer.pop()
        assert again.record.body == b"m"
        assert (await consumer.ack(sooner)).code == 0, "too late, and answered alike"
        await bench.pass_time(10.5)
        assert len(await consumer.pop()) == 1, "the second pop was not acknowledged"


async def test_a_repeated_change_leaves_one_check_point(tmp_path: Path) -> None:
    """The client has not got the answer to the first request."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"extended", b"acknowledged", b"given back", b"by batch")
        consumer = Consumer(bench)
        extended, acknowledged, given_back, by_batch = popped = await consumer.pop()
        await bench.pass_time(5)
        for one in popped:
            await consumer.change(one, 0 if one is given_back else 30_000)
        await bench.pass_time(2)
        changed = await consumer.change(extended, 30_000)
        await consumer.change(given_back, 0)
        assert (await consumer.ack(acknowledged)).code == 0
        assert (await consumer.ack_batch((by_batch.handle, 0b1000))).code == 0
        (again,) = await consumer.pop(invisibleTime=1000_000)
        assert again.record.body == b"given back"
        await bench.pass_time(29)
        assert (await consumer.ack(changed)).code == 0
        await bench.pass_time(60)
        assert await consumer.pop() == []


async def test_an_acknowledged_message_has_no_further_time(tmp_path: Path) -> None:
    """A proxy renewed messages that were acknowledged through another one, by which they were redelivered."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"alone", b"by batch", b"changed before")
        consumer = Consumer(bench)
        alone, by_batch, before = await consumer.pop()
        changed = await consumer.change(before, 20_000)
        assert (await consumer.ack(alone)).code == 0
        assert (await consumer.ack_batch((by_batch.handle, 0b10))).code == 0
        assert (await consumer.ack(changed)).code == 0
        for one in (alone, by_batch, before, changed):
            answer = await consumer.ask_change(one, 30_000)
            assert (answer.code, "has acknowledged" in (answer.remark or "")) == (MESSAGE_ILLEGAL, True)
        assert (await consumer.ack(alone)).code == 0, "repeated"
        await bench.pass_time(60)
        assert await consumer.pop() == []


async def test_its_retry_topics_are_deleted_with_a_topic(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"m")
        tables = bench.tables
        tables.groups.put(SubscriptionGroupConfig(f"other_{TOPIC}"))  # %RETRY%other_orders is its, too
        tables.offsets.commit("a", f"b_{TOPIC}", 0, 1)  # and so is %RETRY%a_b_orders of this topic
        for group in (GROUP, "other", "a_b"):
            await Consumer(bench, group).pop(invisibleTime=2000)
        await bench.pass_time(2.1)
        assert await bench.bodies(RETRY) == [b"m"]
        answer = await bench.client().ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
        assert answer is not None
        assert answer.code == 0, answer.remark
        left = {name for name in tables.topics.all() if name.startswith("%RETRY%")}
        assert left == {f"%RETRY%other_{TOPIC}", f"%RETRY%a_b_{TOPIC}"}
        assert committed(bench, GROUP, RETRY) is None
        assert {name for name, _ in bench.storage.store.queues()} & {RETRY, TOPIC} == set()


async def test_a_message_wakes_one_held_pop(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", queues=2)
        await Consumer(bench).pop()
        answers: list[tuple[float, Response]] = []
        began = trio.current_time()

        async def wait() -> None:
            answer = await Consumer(bench).ask_pop(pollTime=3000)
            answers.append((trio.current_time() - began, answer))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.sleep(1)
            await send(bench, b"1", b"2", queues=2)
        assert [round(at, 1) for at, _ in answers] == [1.0, 1.0]
        found = [Consumer(bench).messages(answer) for _, answer in answers]
        assert bodies([one for some in found for one in some]) == [b"1", b"2"]
        answer = await Consumer(bench).ask_pop(pollTime=2000)
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        assert answer.ext["restNum"] == "0"


async def test_a_held_pop_of_a_member_that_has_left_takes_no_message(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        leaves, stays = Consumer(bench), Consumer(bench)
        await stays.pop()
        answers: dict[str, Response] = {}

        async def wait(name: str, consumer: Consumer) -> None:
            answers[name] = await consumer.ask_pop(pollTime=4000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "leaves", leaves)
            await trio.sleep(0.1)
            nursery.start_soon(wait, "stays", stays)
            await trio.sleep(0.1)
            ext = UnregisterClientHeader(leaves.client.client_id, consumer_group=GROUP)
            await leaves.client.ask(RequestCode.UNREGISTER_CLIENT, ext.to_ext(leaves.client.header_type))
            await send(bench, b"1")
        assert answers["leaves"].code == ResponseCode.POLLING_TIMEOUT
        assert bodies(stays.messages(answers["stays"])) == [b"1"], "woken in the place of the other"


async def test_a_pop_takes_as_many_steps_for_each_queue_of_a_topic_that_has_thousands(tmp_path: Path) -> None:
    """It looked at all queues before for each: one pop of 65,535 queues took two minutes, in which nothing else ran."""

    async def steps(queues: int) -> int:
        async with broker_bench(tmp_path / str(queues)) as bench:
            await bench.create_topic(TOPIC, queues)
            consumer, count = Consumer(bench), 0
            await consumer.pop()

            def note(_frame: Any, event: str, _argument: Any) -> None:
                nonlocal count
                count += event == "call"

            sys.setprofile(note)
            try:
                await consumer.ask_pop()
            finally:
                sys.setprofile(None)
            return count

    few, many = await steps(100), await steps(1000)
    assert many < 11 * few


async def test_a_redelivery_wakes_a_held_pop(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"m")
        consumer = Consumer(bench)
        await consumer.pop(invisibleTime=2000)
        began = trio.current_time()
        (again,) = consumer.messages(await consumer.ask_pop(pollTime=4500))
        assert again.record.reconsume_times == 1
        assert trio.current_time() - began < 2.2


@pytest.mark.parametrize("filters", [{"exp": "paid", "expType": "TAG"}, {"exp": "amount > 5", "expType": "SQL92"}])
async def test_only_what_fits_the_filter_is_popped_and_the_rest_is_passed(
    tmp_path: Path, filters: dict[str, str]
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"no", TAGS="open", amount="1")
        await send(bench, b"yes", TAGS="paid", amount="9")
        await send(bench, b"no", TAGS="open", amount="2")
        consumer = Consumer(bench)
        (one,) = await consumer.pop(**filters)
        assert (one.record.body, one.handle.start_offset, one.handle.queue_offset) == (b"yes", 0, 1)
        assert await consumer.pop(**filters) == []
        await bench.settled()
        assert committed(bench, GROUP, TOPIC) == 3
        assert (await consumer.ack(one)).code == 0
        await bench.pass_time(20)
        assert await consumer.pop(**filters) == []


async def test_a_new_group_begins_where_it_asks_to(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2")
        assert bodies(await Consumer(bench, "first").pop(initMode=0)) == [b"0", b"1", b"2"]
        # RocketMQ: all of a young queue, whose first message is in memory.
        assert bodies(await Consumer(bench, "last").pop(initMode=1)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_check_points_and_acknowledgements_survive_a_kill(tmp_path: Path, flush: str) -> None:
    async with broker_bench(tmp_path / "s", store={"flush": flush}) as bench:
        await send(bench, b"acked", b"popped", b"new")
        consumer = Consumer(bench)
        acked, _ = await consumer.pop(maxMsgNums=2)
        assert (await consumer.ack(acked)).code == 0
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    async with broker_bench(image, at_ms=now_ms + 5000, store={"flush": flush}) as bench:
        consumer = Consumer(bench)
        assert bodies(await consumer.pop()) == [b"new"], "the others are invisible or done with"
        await bench.pass_time(5.5)
        (again,) = await consumer.pop()
        assert (again.record.body, again.record.reconsume_times) == (b"popped", 1)


async def test_a_group_that_a_pop_made_exists_after_a_kill_right_then(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"acked", b"popped")
        await Consumer(bench).pop()  # it makes the topic of check points
        await bench.settled()
        consumer = Consumer(bench, "fresh")
        acked, _ = consumer.messages(await consumer.ask_pop())
        image, now_ms = bench.killed(tmp_path / "image"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert (await Consumer(bench, "fresh").ack(acked)).code == 0
        await bench.pass_time(11)
        assert await bench.bodies("%RETRY%fresh_orders") == [b"popped"]


async def test_what_became_due_while_the_broker_was_down_comes_once(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"acked", b"popped")
        consumer = Consumer(bench)
        acked, _ = await consumer.pop()
        assert (await consumer.ack(acked)).code == 0
        image = bench.killed(tmp_path / "image")
        now_ms = bench.now_ms
    for _ in range(2):  # the second start finds that it is done with
        async with broker_bench(image, at_ms=now_ms + 3_600_000) as bench:
            await bench.pass_time(3)
            assert await bench.bodies(RETRY) == [b"popped"]
        now_ms += 60_000


async def offsets_of_a_slave(bench: BrokerBench) -> bytes:
    """What a slave has in its file of offsets when it asks now."""
    await bench.settled()
    answer = await bench.client().ask(RequestCode.GET_ALL_CONSUMER_OFFSET, {"tableVersion": ""})
    assert answer is not None
    return bytes(answer.body)


def slave(bench: BrokerBench, offsets: bytes, path: Path) -> Path:
    """The directory of a slave that has the whole log, and earlier offsets."""
    config = bench.killed(path) / "config"
    for file in config.glob("consumerOffset.*"):
        file.unlink()
    (config / "consumerOffset.json").write_bytes(offsets)
    return path


async def test_a_new_master_pops_nothing_again_that_was_popped_since_its_offsets(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, *(b"%d" % number for number in range(6)))
        consumer = Consumer(bench)
        (one,) = await consumer.pop(maxMsgNums=1)
        await consumer.ack(one)
        offsets = await offsets_of_a_slave(bench)
        await consumer.ack((await consumer.pop(maxMsgNums=2))[0])
        # Without a delay: the check point is in the revive topic.
        (short,) = await consumer.pop(maxMsgNums=1, invisibleTime=900)
        await consumer.ack(short)
        image, now_ms = slave(bench, offsets, tmp_path / "slave"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert committed(bench, GROUP, TOPIC) == 4
        consumer = Consumer(bench)
        first = await consumer.pop()
        assert bodies(first) == [b"4", b"5"]
        for one in first:
            await consumer.ack(one)
        await bench.pass_time(11)
        (again,) = await consumer.pop()
        assert (again.record.body, again.record.reconsume_times) == (b"2", 1)
        assert bench.tables.offsets.query(POP_PASSED_GROUP, REVIVE, 0) is None


async def test_a_slave_knows_from_where_on_its_own_offsets_lack_pops(tmp_path: Path) -> None:
    """It has been the master, and is again before it has asked the next one for offsets."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2")
        consumer = Consumer(bench)
        await consumer.ack((await consumer.pop(maxMsgNums=1))[0])
        own, now_ms = bench.killed(tmp_path / "own"), bench.now_ms
    role = {"role": "SLAVE", "master": "127.0.0.1:1"}
    async with broker_bench(own, at_ms=now_ms, broker_id=1, ha=role):
        pass
    after_power_cut = (own / "config" / "consumerOffset.json").read_bytes()
    async with broker_bench(tmp_path / "s", at_ms=now_ms) as bench:
        consumer = Consumer(bench)
        await consumer.ack((await consumer.pop(maxMsgNums=1))[0])
        image, now_ms = slave(bench, after_power_cut, tmp_path / "slave"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert committed(bench, GROUP, TOPIC) == 2
        assert bodies(await Consumer(bench).pop()) == [b"2"]


async def test_pops_that_a_truncated_log_forgets_are_taken_back(tmp_path: Path) -> None:
    """Else a broker that was deposed, and is the master again at once, would never redeliver them."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2")
        consumer = Consumer(bench)
        await consumer.pop(maxMsgNums=1)
        await bench.settled()
        storage = bench.storage
        kept = storage.store.max_physical_offset
        for _ in range(2):
            await consumer.pop(maxMsgNums=1)
        await bench.settled()
        assert committed(bench, GROUP, TOPIC) == 3
        await storage.take_back_pops(kept)
        assert committed(bench, GROUP, TOPIC) == 1
        bench.tables.offsets.commit(GROUP, TOPIC, 0, 0)  # reset meanwhile
        await storage.take_back_pops(kept)
        assert committed(bench, GROUP, TOPIC) == 0


async def test_a_new_master_does_not_repeat_redeliveries_since_its_offsets(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2")
        consumer = Consumer(bench)
        await consumer.pop(maxMsgNums=2, invisibleTime=5000)
        offsets = await offsets_of_a_slave(bench)
        await bench.pass_time(6)
        again = await consumer.pop(maxMsgNums=3)
        assert sorted(one.record.reconsume_times for one in again) == [0, 1, 1]
        assert not any("POP_ORIGIN" in one.record.property_map() for one in again)
        for one in again:
            await consumer.ack(one)
        image, now_ms = slave(bench, offsets, tmp_path / "slave"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        await bench.pass_time(20)
        assert await bench.bodies(RETRY) == [b"0", b"1"]
        assert await Consumer(bench).pop() == []


async def test_a_new_master_knows_a_group_that_popped_first_after_its_tables(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1")
        offsets = await offsets_of_a_slave(bench)
        await Consumer(bench).pop(maxMsgNums=1, invisibleTime=5000)
        image, now_ms = slave(bench, offsets, tmp_path / "slave"), bench.now_ms
        for table in ("subscriptionGroup", "topics"):
            (image / f"config/{table}.json").unlink(missing_ok=True)
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert committed(bench, GROUP, TOPIC) == 1
        await bench.pass_time(6)
        assert await bench.bodies(RETRY) == [b"0"], "though no member has asked yet"


async def test_a_new_master_follows_pops_over_messages_that_did_not_fit(tmp_path: Path) -> None:
    filters = {"exp": "paid", "expType": "TAG"}
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", TAGS="paid")
        consumer = Consumer(bench)
        assert bodies(await consumer.pop(**filters)) == [b"0"]
        offsets = await offsets_of_a_slave(bench)
        await send(bench, b"1", b"2", TAGS="open")
        assert await consumer.pop(**filters) == []
        await send(bench, b"3", TAGS="paid")
        assert bodies(await consumer.pop(**filters)) == [b"3"]
        image, now_ms = slave(bench, offsets, tmp_path / "slave"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert committed(bench, GROUP, TOPIC) == 4


async def test_a_new_master_does_not_take_back_a_reset(tmp_path: Path) -> None:
    """Check points of pops before it do not, nor that of a changed time."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2")
        consumer = Consumer(bench)
        popped = await consumer.pop()
        bench.tables.offsets.commit(GROUP, TOPIC, 0, 0)
        bench.parts.core.groups.resets.set(GROUP, TOPIC, 0, 0)
        offsets = await offsets_of_a_slave(bench)
        await consumer.change(popped[2], 60_000)
        await bench.pass_time(10)
        assert len(await bench.read(REVIVE, popped[0].handle.revive_queue_id)) > 1, "the old check point"
        image, now_ms = slave(bench, offsets, tmp_path / "slave"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        assert committed(bench, GROUP, TOPIC) == 0
        popped = await Consumer(bench).pop()
        assert bodies([one for one in popped if not one.record.reconsume_times]) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("down_ms", [450, 5000])
async def test_an_acknowledgement_counts_though_a_stop_has_moved_it_to_a_later_slot(
    tmp_path: Path, down_ms: int
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        consumer = Consumer(bench)
        (one,) = await consumer.pop(invisibleTime=1900)
        await consumer.ack(one)  # delivered in the second that is not over when the broker stops
        await bench.client().send("later", b"", {"TIMER_DELIVER_MS": str(bench.now_ms + 1200)})
        await bench.pass_time(1.5)
        assert len(await bench.read("later")) == 1
        now_ms = bench.now_ms
    async with broker_bench(tmp_path / "s", at_ms=now_ms + down_ms) as bench:
        await bench.pass_time(3)
        assert await Consumer(bench).pop() == []


async def test_a_time_changed_in_the_millisecond_of_the_pop_is_not_an_acknowledgement(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        consumer = Consumer(bench)
        (one,) = await consumer.pop()
        assert bench.now_ms == one.handle.pop_time
        await consumer.change(one, 9500)
        for _ in range(6):
            await bench.pass_time(2)
        assert bodies(await consumer.pop()) == [b"0"]


async def test_progress_is_the_last_entry_done_with(tmp_path: Path) -> None:
    """As RocketMQ counts: it begins again behind it."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"a")
        consumer = Consumer(bench)
        (one,) = await consumer.pop(invisibleTime=5000)
        assert (await consumer.ack(one)).code == 0
        queue_id = one.handle.revive_queue_id
        await bench.pass_time(6)
        entries = await bench.read(REVIVE, queue_id)
        assert [entry.tag for entry in entries] == ["ck", "ack"]
        deadline = str(one.handle.pop_time + 5000 - 1000)
        assert entries[0].property_map()["TIMER_DELIVER_MS"] == deadline, "RocketMQ's service reads it"
        assert json.loads(entries[0].body) == {
            "bm": 0, "bn": "broker-a", "c": GROUP, "d": [0], "it": 5000, "n": 1, "pt": one.handle.pop_time,
            "q": 0, "ro": 0, "so": 0, "t": TOPIC,
        }  # fmt: skip
        assert json.loads(entries[1].body) == {
            "ao": 0, "bn": "broker-a", "c": GROUP, "pt": one.handle.pop_time, "q": 0, "so": 0, "t": TOPIC
        }  # fmt: skip
        await bench.pass_time(3)
        assert committed(bench, REVIVE_GROUP, REVIVE, queue_id) == 1
        offsets = bench.tables.offsets
        assert REVIVE_GROUP not in offsets.groups(), "it would show a lag"


async def test_check_points_of_one_pop_in_two_topics_move_the_group_in_each_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the records of two check points a millisecond passes, in which the second one becomes due."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", queues=2)
        await bench.settled()
        times = iter([bench.now_ms, bench.now_ms + 1])
        monkeypatch.setattr(bench.parts.delay.delay_redirects, "_clock_ms", lambda: next(times))
        assert len(await Consumer(bench).pop(invisibleTime=1001)) == 2
        monkeypatch.undo()
        await bench.settled()
        assert bench.broker.store.max_offset_in_queue(TIMER_TOPIC, 0) == 1, "the other was due at once"
        assert [committed(bench, GROUP, TOPIC, number) for number in range(2)] == [1, 1]
        await bench.pass_time(2)
        assert bodies(await Consumer(bench).pop()) == [b"0", b"1"]


async def test_a_batch_acknowledges_messages_of_several_check_points(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2", b"3", queues=2)
        consumer = Consumer(bench)
        popped = await consumer.pop()
        handles = {one.handle.queue_id: one.handle for one in popped}
        answer = await consumer.ack_batch((handles[0], 0b11), (handles[1], 0b01))
        assert answer.code == 0, answer.remark
        await bench.pass_time(11)
        (again,) = await consumer.pop()
        assert again.record.body == next(
            one.record.body for one in popped if (one.handle.queue_id, one.handle.queue_offset) == (1, 1)
        )


async def test_a_batch_with_an_acknowledgement_that_is_refused_acknowledges_nothing(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, *(b"%d" % number for number in range(6)), queues=2)
        consumer = Consumer(bench)
        first, *_ = await consumer.pop(queueId=0)
        ordered, _ = await consumer.pop(queueId=1, order="true", maxMsgNums=2)
        points = [(first.handle, 0b11), (ordered.handle, 0b01)]
        answer = await consumer.ack_batch(*points, (ordered.handle, 0b100))
        assert "is not one that group" in (answer.remark or "")
        assert committed(bench, GROUP, TOPIC, 1) == 0
        assert (await consumer.ack_batch(*points)).code == 0
        assert committed(bench, GROUP, TOPIC, 1) == 1


async def test_ordered_messages_block_their_queue_until_they_are_acknowledged(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1", b"2")
        consumer = Consumer(bench)
        first, second = await consumer.pop(order="true", maxMsgNums=2, attemptId="a")
        assert first.handle.is_ordered
        assert await consumer.pop(order="true") == []
        assert bodies(await consumer.pop(order="true", maxMsgNums=2, attemptId="a")) == [b"0", b"1"], "a repetition"
        assert (await consumer.ack(first)).code == 0
        assert committed(bench, GROUP, TOPIC) == 1
        assert await consumer.pop(order="true") == []
        began = trio.current_time()

        async def finish() -> None:
            await trio.sleep(1)
            assert (await consumer.ack(second)).code == 0

        async with trio.open_nursery() as nursery:
            nursery.start_soon(finish)
            answer = await Consumer(bench).ask_pop(order="true", pollTime=4000)
        assert bodies(consumer.messages(answer)) == [b"2"]
        assert trio.current_time() - began < 1.1, "the acknowledgement wakes it"


async def test_ordered_messages_that_are_not_acknowledged_are_counted(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1")
        consumer = Consumer(bench)
        (one,) = await consumer.pop(order="true", maxMsgNums=1, invisibleTime=60_000)
        changed = await consumer.change(one, 2000)
        assert changed.handle.pop_time == one.handle.pop_time
        began = trio.current_time()
        answer = await consumer.ask_pop(order="true", pollTime=4500, attemptId="b")
        assert round(trio.current_time() - began) == 2, "it is visible again, and wakes the pop"
        assert bodies(consumer.messages(answer)) == [b"0", b"1"]
        assert answer.ext["orderCountInfo"] == "0 qo0%0 1;0 0 0"
        assert (await consumer.ack(one)).code == 0, "it was popped again meanwhile"
        assert committed(bench, GROUP, TOPIC) == 0


async def test_an_ordered_message_given_back_untried_has_no_attempt_however_often(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        consumer = Consumer(bench)
        for _ in range(2):
            (one,) = await consumer.pop(order="true")
            await consumer.change(one, 0, suspend="true")
            await consumer.change(one, 0, suspend="true")  # the first answer was lost
        now_ms = bench.now_ms
    async with broker_bench(tmp_path / "s", at_ms=now_ms) as bench:
        consumer = Consumer(bench)
        answer = await consumer.ask_pop(order="true")
        assert answer.ext["orderCountInfo"] == "0 0 0"
        (one,) = consumer.messages(answer)
        await consumer.change(one, 0, suspend="true")
        await consumer.change(one, 0)
        assert (await consumer.ask_pop(order="true")).ext["orderCountInfo"] == "0 qo0%0 1;0 0 1"


async def test_an_acknowledgement_that_ends_the_block_earlier_wakes_a_held_pop_then(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1")
        consumer = Consumer(bench)
        first, second = await consumer.pop(order="true", invisibleTime=2000)
        second = await consumer.change(second, 10_000)
        await consumer.change(first, 4000)
        began = trio.current_time()
        answers: list[Response] = []

        async def wait() -> None:
            answers.append(await Consumer(bench).ask_pop(order="true", pollTime=15_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(3)
            assert (await consumer.ack(second)).code == 0, "the first one blocks the queue for 1 s more"
        assert bodies(consumer.messages(answers[0])) == [b"0", b"1"]
        assert round(trio.current_time() - began) == 4


async def test_ordered_progress_survives_a_kill(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1")
        consumer = Consumer(bench)
        first, _ = await consumer.pop(order="true", invisibleTime=60_000)
        await bench.pass_time(6)  # the table is saved
        assert (await consumer.ack(first)).code == 0
        image, now_ms = bench.killed(tmp_path / "image"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms) as bench:
        consumer = Consumer(bench)
        assert await consumer.pop(order="true") == [], "still blocked"
        await bench.pass_time(60)
        assert bodies(await consumer.pop(order="true")) == [b"1"]


async def test_peeks_notifications_and_the_number_of_waiting_pops(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        consumer = Consumer(bench)
        await consumer.pop()
        where = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1"}
        peek = {**where, "maxMsgNums": "5"}
        notify = {**where, "pollTime": "3000", "bornTime": "0"}
        answer = await consumer.client.ask(RequestCode.PEEK_MESSAGE, peek)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        answer = await consumer.client.ask(RequestCode.NOTIFICATION, notify)
        assert answer is not None
        assert answer.ext == {"hasMsg": "false", "pollingFull": "false"}
        began = trio.current_time()
        waiting: list[int] = []

        async def arrive() -> None:
            await trio.sleep(1)
            info = await consumer.client.ask(RequestCode.POLLING_INFO, where)
            assert info is not None
            waiting.append(int(str(info.ext["pollingNum"])))
            await send(bench, b"1")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(arrive)
            nursery.start_soon(lambda: Consumer(bench, "other").ask_pop(queueId=0, pollTime=1200))
            answer = await bench.client().ask(RequestCode.NOTIFICATION, notify)
        assert answer is not None
        assert answer.ext["hasMsg"] == "true"
        assert trio.current_time() - began < 1.5
        assert waiting == [0], "none of this group"
        answer = await consumer.client.ask(RequestCode.PEEK_MESSAGE, peek)
        assert answer is not None
        assert [view.body for view in record_views(answer.body)] == [b"1"]
        assert bodies(await consumer.pop()) == [b"1"], "a peek takes nothing"


async def test_a_pop_that_leaves_messages_wakes_the_next_notification(tmp_path: Path) -> None:
    """Messages that are stored together wake one, whose member may take only some of them."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        await Consumer(bench).pop()
        notify = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "pollTime": "3000", "bornTime": "0",
        }  # fmt: skip
        began = trio.current_time()
        woken_at: list[float] = []
        taken: list[Popped] = []

        async def member() -> None:
            answer = await bench.client().ask(RequestCode.NOTIFICATION, notify)
            assert answer is not None
            assert answer.ext["hasMsg"] == "true"
            woken_at.append(round(trio.current_time() - began, 1))
            taken.extend(await Consumer(bench).pop(maxMsgNums=1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(member)
            nursery.start_soon(member)
            await trio.sleep(1)
            client = bench.client()
            batch = encode_batch([BatchItem(0, body, b"") for body in (b"1", b"2")])
            ext = client.send_header(TOPIC, {}, batch=True, queue_id=0).to_ext_v2(HeaderType.JSON)
            answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, ext, batch)
            assert answer is not None
            assert answer.code == 0, answer.remark
        assert woken_at == [1.0, 1.0]
        assert bodies(taken) == [b"1", b"2"]


async def test_a_reset_moves_what_is_popped_next(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0", b"1")
        consumer = Consumer(bench)
        assert len(await consumer.pop()) == 2
        state = bench.parts.core.groups
        bench.tables.offsets.commit(GROUP, TOPIC, 0, 0)
        state.resets.set(GROUP, TOPIC, 0, 0)
        assert bodies(await consumer.pop()) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"queueId": "7"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"offset": "99"}, ResponseCode.NO_MESSAGE),
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "absent"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"extraInfo": "1 2 3"}, ResponseCode.INVALID_PARAMETER),
        ({"extraInfo": "0 1700000000000 1000 8 0 broker-a 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"extraInfo": f"0 {1 << 62} 1000 1 0 broker-a 0 0"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_acknowledgements_of_what_cannot_be_are_refused(
    tmp_path: Path, change: dict[str, str], code: int
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"m")
        consumer = Consumer(bench)
        (one,) = await consumer.pop()
        answer = await consumer.client.ask(RequestCode.ACK_MESSAGE, {**consumer._ext(one), **change})
        assert answer is not None
        assert answer.code == code, answer.remark


@pytest.mark.parametrize("change", [{"maxMsgNums": 33}, {"maxMsgNums": 0}, {"invisibleTime": 0}, {"queueId": 4}])
async def test_pops_of_what_cannot_be_are_refused(tmp_path: Path, change: dict[str, int]) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"m")
        assert (await Consumer(bench).ask_pop(**change)).code == ResponseCode.INVALID_PARAMETER


async def test_no_client_writes_check_points(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        assert (await bench.client().send(REVIVE, b"{}", {"TAGS": "ck"})).code == ResponseCode.NO_PERMISSION
        await send(bench, b"m")
        await Consumer(bench).pop()
        assert (await bench.client().send(REVIVE, b"{}", {"TAGS": "ck"})).code == ResponseCode.NO_PERMISSION
        assert await bench.read(REVIVE, 0) == []


async def test_without_the_timer_nothing_is_popped(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s", delay={"timer_wheel": False}) as bench:
        await send(bench, b"m")
        assert (await Consumer(bench).ask_pop()).code == ResponseCode.SYSTEM_ERROR
        assert committed(bench, GROUP, TOPIC) is None


async def test_no_client_commits_the_brokers_own_progress(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        await Consumer(bench).pop()
        commit = {"consumerGroup": REVIVE_GROUP, "topic": REVIVE, "queueId": "0", "commitOffset": "1000000"}
        for header_type in HeaderType:
            answer = await bench.client(header_type).ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            assert answer is not None
            assert answer.code == ResponseCode.NO_PERMISSION
        assert committed(bench, REVIVE_GROUP, REVIVE) != 1_000_000


async def test_a_stop_that_dispatches_the_last_check_point_is_in_order(tmp_path: Path) -> None:
    """No task commits what it says, as the tables are saved by then: the messages are popped again."""
    async with broker_bench(tmp_path / "s") as bench:
        await send(bench, b"0")
        await bench.settled()
        bench.broker.store.confirm_offset = bench.broker.store.max_physical_offset
        pending = Consumer(bench)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pending.pop)
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
    assert not (tmp_path / "s" / "abort").exists()


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_with_a_pool_of_buffers_an_acknowledged_message_does_not_come_back(tmp_path: Path, flush: str) -> None:
    """What the timer delivers is only in a buffer for a while, and cannot be read before it is committed."""
    async with broker_bench(tmp_path / "s", store={"flush": flush, "transient_store_pool": True}) as bench:
        await send(bench, *(b"%d" % number for number in range(8)))
        consumer = Consumer(bench)
        popped = await consumer.pop(invisibleTime=2000)
        for one in popped[1:]:
            assert (await consumer.ack(one)).code == 0
        await bench.pass_time(1)
        await trio.sleep(3)
        assert bodies(await consumer.pop(invisibleTime=2000)) == [b"0"]


async def test_with_a_pool_of_buffers_a_kill_loses_no_redelivery_and_no_delayed_message(tmp_path: Path) -> None:
    """What is delivered is only in a buffer; the progress must not be saved before it is in its file."""
    pool = {
        "transient_store_pool": True,
        "flush": "async",
        "commit_interval": "100ms",
        "commit_thorough_interval": "60s",
        "flush_thorough_interval": "60s",
    }
    async with broker_bench(tmp_path / "s", store=pool) as bench:
        await send(bench, b"0")
        consumer = Consumer(bench)
        assert bodies(await consumer.pop(invisibleTime=8000)) == [b"0"]
        later = await consumer.client.send(TOPIC, b"later", {"DELAY": "2"})
        assert later.code == 0
        await trio.sleep(20)
        image, now_ms = bench.killed(tmp_path / "image"), bench.now_ms
    async with broker_bench(image, at_ms=now_ms, store={**pool, "transient_store_pool": False}) as bench:
        await trio.sleep(10)
        assert bodies(await Consumer(bench).pop()) == [b"0", b"later"]
