"""Cancelling reports correctly whether it was in time, in every race; lists show the pending messages only."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from reput_broker.delay.delayed_record import CANCELLED_BORN
from reput_broker.delay.feature import _PendingCancel
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Refusal, Response
from reput_protocol.names import DELAY_CANCEL_TOPIC, TIMER_TOPIC
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from support.delayed import TOPIC, DelayBench, bench_options
from support.stores import T0, read_queue
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)


def bench_of(tmp_path: Path, **delay: object) -> DelayBench:
    return DelayBench(bench_options(tmp_path / "store"), **delay)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["level", "timed", "far"])
async def test_before_its_time_after_it_and_twice(tmp_path: Path, kind: str) -> None:
    bench = bench_of(tmp_path, file_reserved_time="2m")
    delay_ms = 300_000 if kind == "far" else 10_000

    def send(body: bytes, key: str) -> None:
        if kind == "level":
            bench.level(body, 3, KEYS=key)
        else:
            bench.timed(body, delay_ms, KEYS=key)

    async with bench.running():
        await trio.sleep(0.4)
        send(b"in time", "a b")
        send(b"too late", "c")
        send(b"neighbour", "d")
        assert await bench.cancel("b") == ["CANCELLED"]
        assert await bench.cancel("ID-in time") == ["ALREADY_CANCELLED"]
        assert await bench.cancel("a") == ["ALREADY_CANCELLED"]
        assert sorted(await bench.listed()) == [b"neighbour", b"too late"]
        assert bench.stats.waiting[TOPIC] == 2
        await trio.sleep((T0 + 400 + delay_ms - 1 - bench.clock_ms()) / 1000)
        assert not bench.delivered()
        await trio.sleep(0.002)
        assert sorted(bench.delivered()) == [b"neighbour", b"too late"]
        assert await bench.cancel("c") == ["DELIVERED"]
        assert await bench.cancel("a") == ["ALREADY_CANCELLED"], "long after it would have been due"
        assert await bench.cancel("nobody") == []
        assert await bench.cancel("c", topic="others") == []
    assert bench.stats.waiting[TOPIC] == 0
    assert bench.stats.cancelled[TOPIC] == 1
    bench.stop()


@pytest.mark.parametrize("kind", ["level", "timed"])
async def test_a_cancellation_holds_through_a_kill_and_a_stop(tmp_path: Path, kind: str) -> None:
    bench = bench_of(tmp_path)
    async with bench.running():
        for body in (b"gone", b"stays"):
            if kind == "level":
                bench.level(body, 3, KEYS="k")
            else:
                bench.timed(body, 10_000, KEYS="k")
        assert await bench.cancel("ID-gone") == ["CANCELLED"]
        bench_of_the_next = bench.kill()
    bench = bench_of_the_next
    async with bench.running():
        await trio.sleep(1)
        assert await bench.cancel("ID-gone") == ["ALREADY_CANCELLED"]
    bench = bench.restart()
    async with bench.running():
        assert await bench.listed() == [b"stays"]
        await trio.sleep(12)
        assert [*bench.delivered()] == [b"stays"]
        assert await bench.cancel("ID-gone") == ["ALREADY_CANCELLED"]
        assert await bench.cancel("ID-stays") == ["DELIVERED"]
    bench.stop()


@pytest.mark.parametrize("kind", ["level", "timed"])
async def test_a_new_master_cancels_what_it_does_not_know_to_be_confirmed(tmp_path: Path, kind: str) -> None:
    bench = bench_of(tmp_path)
    for body in (b"gone", b"stays"):
        if kind == "level":
            bench.level(body, 3)
        else:
            bench.timed(body, 10_000)
    bench = bench.kill()
    async with bench.running():
        bench.store.confirm_offset = 0
        assert await bench.cancel("ID-gone") == ["CANCELLED"]
        bench.store.confirm_offset = None
        await trio.sleep(12)
        assert await bench.cancel("ID-stays") == ["DELIVERED"]
        assert [*bench.delivered()] == [b"stays"]
    bench.stop()


async def test_a_cancellation_holds_where_the_timer_s_files_are_made_again_later(tmp_path: Path) -> None:
    """A message further ahead than half a turn of the wheel was put into another slot then, and fired there."""
    bench = bench_of(tmp_path, wheel_slots=600, file_reserved_time="2m")
    async with bench.running():
        for body in (b"gone", b"stays"):
            bench.timed(body, 332_000)
        assert await bench.cancel("ID-gone") == ["CANCELLED"]
    bench.abandon()
    shutil.rmtree(bench.options.data_dir / "timerlog")
    for name in ("timerwheel", "config/timercheck"):
        (bench.options.data_dir / name).unlink(missing_ok=True)
    await trio.sleep(2)
    bench = bench.go_on()
    async with bench.running():
        await trio.sleep(335)
        assert [*bench.delivered()] == [b"stays"]
    bench.stop()


async def test_the_same_unique_id_sent_once_more_is_another_message(tmp_path: Path) -> None:
    """A reminder is cancelled, and made again for the same second."""
    bench = bench_of(tmp_path)
    when = str(T0 + 10_000)
    async with bench.running():
        bench.park(b"first", TIMER_DELIVER_MS=when, UNIQ_KEY="reminder")
        assert await bench.cancel("reminder") == ["CANCELLED"]
        record = Record(TOPIC, b"second", born_timestamp_ms=77)
        found = {"UNIQ_KEY": "reminder", "TIMER_DELIVER_MS": when}
        parked = bench.parts.delay_redirects.redirect(record, found)
        assert parked is not None
        bench.store.put_record(parked)
        bench.wrote()
        await trio.sleep(0.1)
        assert await bench.listed() == [b"second"]
        await trio.sleep(11)
    assert [*bench.delivered()] == [b"second"]
    bench.stop()


async def test_rocketmqs_delete_messages_are_respected(tmp_path: Path) -> None:
    """They name a topic and a unique id, and are in the slot of the message (store-format 11.3)."""
    bench = bench_of(tmp_path)
    async with bench.running():
        bench.timed(b"gone", 10_000)
        bench.timed(b"stays", 10_000)
        bench.park(b"0", UNIQ_KEY="D", TIMER_DELAY_MS="10000", TIMER_DEL_UNIQKEY="orders+ID-gone")
        await trio.sleep(1)
        assert await bench.listed() == [b"stays"]
        assert await bench.cancel("ID-gone") == ["CANCELLED"], "nothing says that somebody else was first"
        bench.timed(b"late", 10_000)
        await trio.sleep(8.5)  # its slot is in memory now
        bench.park(b"0", UNIQ_KEY="E", TIMER_DELIVER_MS=str(T0 + 11_000), TIMER_DEL_UNIQKEY="orders+ID-late")
        await trio.sleep(5)
    assert [*bench.delivered()] == [b"stays"]
    assert not any(bench.stats.waiting.values())
    bench.stop()


async def test_our_delete_messages_are_rocketmq_s(tmp_path: Path) -> None:
    """Either broker heeds them: for the slot in which the message is, with the key that RocketMQ builds."""
    bench = bench_of(tmp_path, file_reserved_time="2m")
    async with bench.running():
        await trio.sleep(0.25)
        due = bench.timed(b"near", 20_000, KEYS="k1 k2")
        bench.timed(b"far", 200_000)
        bench.level(b"level", 18, KEYS="k3")
        for body in ("near", "far", "level"):
            assert await bench.cancel(f"ID-{body}") == ["CANCELLED"]
    near, far = (record.property_map() for record in read_queue(bench.store, TIMER_TOPIC)[2:])
    assert near == {
        "REAL_TOPIC": TOPIC,
        "REAL_QID": "0",
        "UNIQ_KEY": "ID-near",
        "KEYS": "k1 k2",
        "TIMER_OUT_MS": str((due - 1) // 1000 * 1000),
        "TIMER_DELIVER_MS": str((due - 1) // 1000 * 1000 + 1000),
        "TIMER_DEL_UNIQKEY": "orders+ID-near",
        CANCELLED_BORN: "0",
    }
    assert far["TIMER_OUT_MS"] == str(T0 + 60_000), "where it is parked anew"
    (level,) = read_queue(bench.store, DELAY_CANCEL_TOPIC)
    parked = read_queue(bench.store, "SCHEDULE_TOPIC_XXXX", 17)[0]
    assert level.prepared_transaction_offset == parked.physical_offset
    assert level.property_map()["KEYS"] == "k3"
    bench.stop()


async def test_cancelling_races_with_delivery_and_one_of_them_wins(tmp_path: Path) -> None:
    """Many messages, cancelled one after the other in the milliseconds in which they fire."""
    bench = bench_of(tmp_path)
    answers: dict[bytes, str] = {}
    async with bench.running():
        bodies = [b"%d" % number for number in range(120)]
        for number, body in enumerate(bodies):
            if number % 2:
                bench.level(body, 1)
            else:
                bench.timed(body, 990 + number // 6)
        await trio.sleep(0.985)

        async def cancel(some: list[bytes]) -> None:
            for body in some:
                answers.update(await bench.cancelled(f"ID-{body.decode()}"))
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            for start in range(4):
                nursery.start_soon(cancel, bodies[start::4])
        await trio.sleep(5)
    came = bench.delivered()
    assert set(answers) == set(bodies)
    assert {body for body, answer in answers.items() if answer == "DELIVERED"} == came.keys()
    assert {"CANCELLED", "DELIVERED"} == set(answers.values())
    assert all(len(times) == 1 for times in came.values())
    bench.stop()


async def test_there_is_no_answer_before_the_record_is_on_disk(tmp_path: Path) -> None:
    """What has just been put must be found, so the broker waits; not for ever."""
    bench = bench_of(tmp_path)
    async with bench.running():
        bench.timed(b"x", 60_000)
        bench.holds_writes = True
        bench.store.put_record(Record(TOPIC, b"ordinary", properties=encode_properties({"UNIQ_KEY": "y"})))
        with pytest.raises(Refusal, match="try again"):
            await bench.cancel("ID-x")
        bench.holds_writes = False
        bench.wrote()
        assert await bench.cancel("ID-x") == ["CANCELLED"]
    bench.stop()


async def test_without_an_index_messages_are_found_by_looking_at_all_that_wait(tmp_path: Path) -> None:
    bench = DelayBench(bench_options(tmp_path / "store", index_enabled=False))
    async with bench.running():
        for number in range(40):
            bench.level(b"l%d" % number, 5, KEYS=f"k{number % 4}")
            bench.timed(b"t%d" % number, 60_000 + number, KEYS=f"k{number % 4}")
        await trio.sleep(1)
        assert await bench.cancel("k2") == ["CANCELLED"] * 20
        assert len(await bench.listed()) == 60
        await trio.sleep(61)
    assert len(bench.delivered()) == 60
    bench.stop()


async def test_entries_that_hold_addresses_are_listed_by_their_records_times(tmp_path: Path) -> None:
    """They are all that is left where the extended entries are lost."""
    bench = DelayBench(bench_options(tmp_path / "store", consume_queue_ext=True))
    async with bench.running():
        for level in (18, 3, 10):
            bench.level(b"l%d" % level, level)
        bench.timed(b"t", 60_000)
        await trio.sleep(0.1)
    bench.stop()
    shutil.rmtree(tmp_path / "store" / "consumequeue_ext")
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        assert await bench.listed() == [b"l3", b"t", b"l10", b"l18"]
    bench.stop()


@pytest.mark.parametrize("count", [1, 3, 100])
async def test_pages_of_any_size_list_everything_soonest_first(tmp_path: Path, count: int) -> None:
    bench = bench_of(tmp_path)
    async with bench.running():
        due = [(bench.timed(b"t%d" % number, 700 * number + 1), b"t%d" % number) for number in range(1, 60)]
        due += [(bench.level(b"l%d" % level, level), b"l%d" % level) for level in range(1, 19)]
        listed = await bench.listed(count)
        when = {body: ms for ms, body in due}
        assert sorted(listed) == sorted(when)
        seconds = [when[body] // 1000 for body in listed]
        assert all(later >= sooner - 1 for sooner, later in pairwise(seconds))
    bench.stop()


async def test_after_the_fence_a_cancellation_is_not_acknowledged() -> None:
    fence, answers = Fence(), list[Response]()
    fence.end("handed over")
    client = SimpleNamespace(answer=lambda _, response: answers.append(response))
    request: Any = SimpleNamespace(client=client, received_at=0.0)
    _PendingCancel(request, Response(0, body=b"[]"), 0, fence, 0).acknowledge()
    (answer,) = answers
    assert answer.code != 0
    assert "cancelled, but possibly not on disk: handed over" in (answer.remark or "")
    assert answer.body == b"[]"
