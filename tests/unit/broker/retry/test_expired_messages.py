"""Messages with a time to live, under a fake clock: no consumer gets them once it is over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.tables.topic_access import TopicAccess
from reput_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.pull import PullMessageHeader, PullMessageResult
from reput_protocol.record.record import Record, encode_record, record_views
from reput_protocol.wire.header import HeaderType
from support.broker_bench import T0, BrokerBench, broker_bench
from support.pops import Popped, pop_fields, popped_messages
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

GROUP = "g"


async def group(bench: BrokerBench, **fields: Any) -> None:
    body = SubscriptionGroupConfig(GROUP, **fields).to_json()
    answer = await bench.client().ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
    assert answer is not None
    assert answer.code == 0, answer.remark


async def send(bench: BrokerBench, body: bytes, properties: Mapping[str, str], topic: str = "T") -> None:
    answer = await bench.client().send(topic, body, properties)
    assert answer.code == 0, answer.remark


async def pull(bench: BrokerBench, offset: int = 0, topic: str = "T") -> tuple[int, list[bytes], int]:
    """Return the code, the bodies and the next offset."""
    header = PullMessageHeader(GROUP, topic, 0, offset, 32, PullSysFlag.SUBSCRIPTION, subscription="*")
    answer = await bench.client().ask(RequestCode.PULL_MESSAGE, header.to_ext(HeaderType.JSON))
    assert answer is not None
    bodies = [bytes(view.body_view) for view in record_views(answer.body)]
    return answer.code, bodies, PullMessageResult.from_ext(answer.ext).next_begin_offset


async def pop(bench: BrokerBench, **fields: Any) -> list[Popped]:
    answer = await bench.client().ask(RequestCode.POP_MESSAGE, pop_fields(GROUP, "T", **fields))
    assert answer is not None
    return popped_messages(answer.ext, answer.body) if answer.code == 0 else []


async def dead_letters(bench: BrokerBench) -> list[Record]:
    return await bench.read(f"%DLQ%{GROUP}")


def expired(bench: BrokerBench, topic: str = "T") -> int:
    return bench.broker.counters.groups[topic, GROUP].expired


async def test_a_pull_leaves_out_what_has_expired(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "5000"})
        await send(bench, b"b", {})
        await send(bench, b"c", {"EXPIRES_AT_MS": str(T0 + 60_000)})
        await send(bench, b"d", {"EXPIRES_AFTER_MS": "90000", "EXPIRES_AT_MS": str(T0 + 6000)})
        await send(bench, b"e", {"EXPIRES_AFTER_MS": "soon"})
        await bench.settled()
        assert await pull(bench) == (0, [b"a", b"b", b"c", b"d", b"e"], 5)
        await trio.sleep(10)
        assert await pull(bench) == (0, [b"b", b"c", b"e"], 5)
        assert expired(bench) == 2
        await trio.sleep(60)
        assert await pull(bench, 2) == (0, [b"e"], 5)
        assert await pull(bench, 3) == (0, [b"e"], 5)
        assert await bench.bodies("T") == [b"a", b"b", b"c", b"d", b"e"], "the log has them still"
        config = bench.tables.topics.get("T")
        assert config is not None
        assert config.attributes["reput.expiring"] == "true"
    async with broker_bench(tmp_path, at_ms=T0 + 3_600_000) as bench:
        assert await pull(bench) == (0, [b"b", b"e"], 5)


async def test_a_pull_of_nothing_but_expired_messages_continues_after_them(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        for number in range(40):
            await send(bench, b"%d" % number, {"EXPIRES_AFTER_MS": "1"})
        await trio.sleep(1)
        assert await pull(bench) == (int(ResponseCode.PULL_RETRY_IMMEDIATELY), [], 32)
        assert await pull(bench, 32) == (int(ResponseCode.PULL_RETRY_IMMEDIATELY), [], 40)


async def test_a_pop_leaves_them_out_and_passes_them(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        for body in (b"a", b"b"):
            await send(bench, body, {"EXPIRES_AFTER_MS": "5000"})
        await send(bench, b"c", {})
        await trio.sleep(10)
        (one,) = await pop(bench)
        assert one.record.body == b"c"
        assert expired(bench) == 2
        await send(bench, b"d", {"EXPIRES_AFTER_MS": "1"})
        await trio.sleep(1)
        assert await pop(bench) == []
        await send(bench, b"e", {})
        await bench.settled()
        assert [one.record.body for one in await pop(bench)] == [b"e"]
        assert expired(bench) == 3


async def test_an_ordered_pop_passes_them(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench, consume_message_orderly=True)
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "1"})
        await trio.sleep(1)
        assert await pop(bench, order="true") == []
        await send(bench, b"b", {"EXPIRES_AFTER_MS": "1"})
        await send(bench, b"c", {})
        await trio.sleep(1)
        (one,) = await pop(bench, order="true")
        assert one.record.body == b"c"


async def test_an_ordered_pop_does_not_wait_because_of_them(tmp_path: Path) -> None:
    """They take all its places, and another queue has a message. It begins with any queue, so several groups try."""
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T", queues=2)
        for body in (b"a", b"b"):
            await send(bench, body, {"EXPIRES_AFTER_MS": "1"})
        answer = await bench.client().send("T", b"c", {}, queue_id=1)
        assert answer.code == 0, answer.remark
        await trio.sleep(1)
        for number in range(5):
            began_at = trio.current_time()
            found = await pop(bench, order="true", maxMsgNums="2", pollTime="4000", consumerGroup=f"g{number}")
            assert [one.record.body for one in found] == [b"c"]
            assert trio.current_time() - began_at < 1


async def test_a_redelivered_message_keeps_its_moment(tmp_path: Path) -> None:
    """Popped with 10 s left of 15 s, and not acknowledged for 6 s: it comes again once, and not after its time."""
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "15000"})
        await trio.sleep(1)
        assert len(await pop(bench, invisibleTime="6000")) == 1
        await trio.sleep(8)
        (again,) = await pop(bench, invisibleTime="6000")
        assert again.record.property_map()["EXPIRES_AT_MS"] == str(T0 + 15_000)
        assert "EXPIRES_AFTER_MS" not in again.record.property_map()
        await trio.sleep(8)
        assert await pop(bench) == []
        assert expired(bench, f"%RETRY%{GROUP}_T") == 1


async def test_a_message_that_is_sent_back_keeps_its_moment(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "15000"})
        (record,) = await bench.read("T")
        answer = await bench.client().send_back(record, GROUP, 3)
        assert answer.code == 0, answer.remark
        await trio.sleep(11)
        assert await pull(bench, topic=f"%RETRY%{GROUP}") == (0, [b"a"], 1)
        await trio.sleep(5)
        code, bodies, _ = await pull(bench, topic=f"%RETRY%{GROUP}")
        assert (code, bodies) == (int(ResponseCode.PULL_RETRY_IMMEDIATELY), [])


async def test_the_time_of_a_delayed_message_counts_from_its_delivery(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        await send(bench, b"a", {"TIMER_DELAY_MS": "60000", "EXPIRES_AFTER_MS": "5000"})
        await trio.sleep(62)
        await bench.settled()
        assert await pull(bench) == (0, [b"a"], 1)
        await trio.sleep(4)
        assert (await pull(bench))[1] == []


@pytest.mark.parametrize("how", ["pull", "pop"])
async def test_a_group_may_have_them_as_dead_letters(tmp_path: Path, how: str) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench, attributes={"+reput.expired": "dead-letter"})
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "5000", "KEYS": "k"})
        await send(bench, b"b", {})
        (original, _) = await bench.read("T")
        await trio.sleep(10)
        for _ in range(2):  # a pull may be repeated
            if how == "pull":
                assert await pull(bench) == (0, [b"b"], 2)
                assert bench.broker.store.max_offset_in_queue(f"%DLQ%{GROUP}", 0) == 1, "before the answer"
        if how == "pop":
            assert [one.record.body for one in await pop(bench)] == [b"b"]
        (letter,) = await dead_letters(bench)
        found = letter.property_map()
        assert (letter.body, letter.keys, found["DLQ_REASON"]) == (b"a", ("k",), "expired")
        assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == ("T", original.offset_message_id)
        assert not [name for name in found if name.startswith("EXPIRES")]
        assert bench.broker.counters.retry.dead_letters[GROUP, "T"] == 1
        await trio.sleep(30)
        assert (await pull(bench, topic=f"%DLQ%{GROUP}"))[1] == [b"a"], "a dead letter does not expire"


async def test_a_pull_fails_alone_if_the_dead_letter_topic_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench, attributes={"+reput.expired": "dead-letter"})
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "1"})
        await trio.sleep(1)
        monkeypatch.setattr(TopicAccess, "create_internal", full)
        header = PullMessageHeader(GROUP, "T", 0, 0, 32, PullSysFlag.SUBSCRIPTION, subscription="*")
        answer = await bench.client().ask(RequestCode.PULL_MESSAGE, header.to_ext(HeaderType.JSON))
        assert answer is not None
        assert "No space left on device" in (answer.remark or "")
        monkeypatch.undo()
        assert (await pull(bench))[1:] == ([], 1)
        assert [letter.body for letter in await dead_letters(bench)] == [b"a"]


async def test_a_redelivered_message_that_expires_is_a_dead_letter_of_its_topic(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench, attributes={"+reput.expired": "dead-letter"})
        await send(bench, b"a", {"EXPIRES_AFTER_MS": "15000"})
        await trio.sleep(1)
        assert len(await pop(bench, invisibleTime="20000")) == 1
        await trio.sleep(25)
        assert await pop(bench) == []
        (letter,) = await dead_letters(bench)
        found = letter.property_map()
        assert (found["RETRY_TOPIC"], found["DLQ_REASON"]) == ("T", "expired")


async def test_other_topics_are_not_looked_at(tmp_path: Path) -> None:
    """A property of the same name that was stored without the broker's knowledge has no effect there."""
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        await send(bench, b"a", {"other": "EXPIRES_AFTER_MS"})
        await trio.sleep(10)
        assert (await pull(bench))[1] == [b"a"]
        assert bench.tables.topics.expiring == set()


async def test_a_block_may_have_them_in_a_topic_that_is_looked_at(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        await group(bench)
        client = bench.client()
        block = bytes(encode_record(Record("T", b"a", properties=b"EXPIRES_AFTER_MS\x011\x02")))
        for body in ({}, {"attributes": "+reput.expiring=true"}):
            if body:
                ext = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", **body}
                changed = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
                assert changed is not None
                assert changed.code == 0, changed.remark
            answer = await client.ask(RequestCode.PUT_MESSAGE, {"topic": "T", "queueId": 0, "count": 1}, block)
            assert answer is not None
            assert answer.code == 0, answer.remark
            await trio.sleep(1)
            assert (await pull(bench))[1] == ([] if body else [b"a"])


async def test_the_groups_setting_has_two_values(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        body = SubscriptionGroupConfig(GROUP, attributes={"+reput.expired": "maybe"}).to_json()
        assert json.loads(body)["attributes"] == {"+reput.expired": "maybe"}
        answer = await bench.client().ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        assert answer is not None
        assert "values: drop, dead-letter" in (answer.remark or "")
