"""Delayed messages come at their millisecond, once, through stops, kills and power cuts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio

from reput_broker.delay.deliverer import Deliverer
from reput_broker.store.base.results import PutResult, PutStatus
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_OP_HALF_TOPIC
from reput_protocol.properties import encode_properties
from reput_protocol.record.delays import DELAY_LEVELS_MS
from reput_protocol.record.record import Record
from support.delayed import TOPIC, DelayBench, bench_options, some_times
from support.stores import T0, read_queue
from support.tasks import run_by_the_clock
from support.waiting import until

pytestmark = pytest.mark.trio(run=run_by_the_clock)

LEVELS = range(1, 19)


async def test_each_level_waits_exactly_its_delay(tmp_path: Path) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        await trio.sleep(0.5)
        due = {b"level %d" % level: bench.level(b"level %d" % level, level, level % 4) for level in LEVELS}
        assert [due[b"level %d" % n] - T0 - 500 for n in LEVELS] == [*DELAY_LEVELS_MS]
        await trio.sleep(DELAY_LEVELS_MS[-1] / 1000 + 1)
    assert bench.delivered() == {body: [when] for body, when in due.items()}
    assert bench.stats.error_seconds.total == 0.0
    bench.stop()


async def test_ten_random_times_are_kept_to_the_millisecond(tmp_path: Path) -> None:
    rng = random.Random(10)
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        due = {}
        for number, delay_ms in enumerate(some_times(rng, 10, 3_600_000)):
            await trio.sleep(rng.random())
            due[b"%d" % number] = bench.timed(b"%d" % number, delay_ms, number % 4)
        await trio.sleep(3_610)
    assert bench.delivered() == {body: [when] for body, when in due.items()}
    bench.stop()


async def test_a_time_is_kept_however_near_it_is(tmp_path: Path) -> None:
    """Also one whose second is being read already, and one that is due before it gets its unit."""
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        await trio.sleep(10.35)
        due = {b"%d" % ms: bench.timed(b"%d" % ms, ms) for ms in (1, 2, 300, 649, 650, 651, 700, 1650, 2000, 2650)}
        await trio.sleep(5)
    assert bench.delivered() == {body: [when] for body, when in due.items()}
    bench.stop()


async def test_deliveries_wake_for_a_message_that_is_due_earlier_and_for_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = Deliverer.step

    async def counted(self: Deliverer, *, with_timers: bool = True) -> int:
        steps.append(bench.clock_ms() - T0)
        return await step(self, with_timers=with_timers)

    monkeypatch.setattr(Deliverer, "step", counted)
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        await trio.sleep(10.02)
        due = {b"first": bench.timed(b"first", 900)}
        await trio.sleep(0.01)
        steps.clear()
        due[b"later"] = bench.timed(b"later", 920)
        await trio.sleep(0.01)
        assert steps == []
        due[b"earlier"] = bench.timed(b"earlier", 300)
        await trio.sleep(0.01)
        assert steps == [10_040]
        await trio.sleep(1)
    assert bench.delivered() == {body: [when] for body, when in due.items()}
    bench.stop()


async def test_messages_of_one_queue_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    rng = random.Random(3)
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        due = [(bench.timed(b"%d" % n, rng.randrange(1, 4000)), n) for n in range(200)]
        await trio.sleep(5)
    bodies = [*bench.delivered()]
    queue = [record for record in bodies if record]
    assert queue == [b"%d" % number for _, number in sorted(due)]
    bench.stop()


async def test_many_due_at_once_are_put_together(tmp_path: Path) -> None:
    """A second's messages cost a few appends, not one each."""
    bench = DelayBench(bench_options(tmp_path / "store"))
    bench.level(b"first", 3)
    for number in range(300):
        bench.level(b"%d" % number, 3, number % 2)
    blocks = bench.store.stats.put_blocks
    async with bench.running():
        await trio.sleep(11)
    assert len(bench.delivered()) == 301
    assert bench.store.stats.put_blocks - blocks <= 12
    bench.stop()


async def test_one_that_the_store_does_not_take_takes_no_other_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    put = bench.store.put_encoded

    def picky(topic: str, queue_id: int, records: list[bytes]) -> PutResult:
        if any(b"too large" in record for record in records):
            return PutResult(PutStatus.MESSAGE_ILLEGAL)
        return put(topic, queue_id, records)

    monkeypatch.setattr(bench.store, "put_encoded", picky)
    async with bench.running():
        for body in (b"first", b"too large", b"last"):
            bench.level(body, 1)
        await trio.sleep(1.1)
        assert sorted(bench.delivered()) == [b"first", b"last"]
        assert bench.stats.dropped["refused"] == 1
        assert await bench.cancel("ID-too large") == ["DROPPED"]
        assert await bench.cancel("ID-last") == ["DELIVERED"]
    assert bench.stats.waiting[TOPIC] == 0
    bench.stop()


async def test_messages_not_yet_in_the_wheel_are_counted_as_waiting(tmp_path: Path) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    for number in range(50):
        bench.timed(b"%d" % number, 60_000)
    assert bench.parts.status()["waiting"] == 50, "no service has run yet"
    async with bench.running():
        await trio.sleep(1)
        assert bench.parts.status()["waiting"] == 50
        assert await bench.cancel("ID-7") == ["CANCELLED"]
        await trio.sleep(1)
        assert bench.parts.status()["waiting"] == 49
    bench.stop()


async def test_levels_and_times_do_not_hold_each_other_up(tmp_path: Path) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    due = {}
    for number in range(200):
        due[b"l%d" % number] = bench.level(b"l%d" % number, 1 + number % 3)
        due[b"t%d" % number] = bench.timed(b"t%d" % number, 1000 + 50 * number)
    async with bench.running():
        await trio.sleep(12)
    assert bench.delivered() == {body: [when] for body, when in due.items()}
    bench.stop()


async def test_a_delivered_message_has_the_properties_that_its_sender_gave_it(tmp_path: Path) -> None:
    bench = DelayBench(bench_options(tmp_path / "store"))
    bench.level(b"level", 1, 2, TAGS="red", KEYS="a b", colour="blue")
    bench.timed(b"timed", 700, 2, TAGS="red", KEYS="c")
    async with bench.running():
        await trio.sleep(2)
    timed, level = read_queue(bench.store, "orders", 2)
    assert level.property_map() == {"UNIQ_KEY": "ID-level", "TAGS": "red", "KEYS": "a b", "colour": "blue"}
    assert timed.property_map() == {"UNIQ_KEY": "ID-timed", "TAGS": "red", "KEYS": "c"}
    for copy, topic in ((level, "SCHEDULE_TOPIC_XXXX"), (timed, "rmq_sys_wheel_timer")):
        (parked,) = read_queue(bench.store, topic, 0)
        # The record at the very beginning of the log is named by -1.
        assert copy.prepared_transaction_offset == (parked.physical_offset or -1)
        assert (copy.born_timestamp_ms, copy.born_host) == (parked.born_timestamp_ms, parked.born_host)
    bench.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_orderly_restarts_lose_nothing_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bench = DelayBench(bench_options(tmp_path / "store"))
    due: dict[bytes, int] = {}
    for turn in range(6):
        async with bench.running():
            _send_some(bench, rng, due, turn, 40)
            await trio.sleep(rng.uniform(0.0, 4.0))
        bench = bench.restart()
        await trio.sleep(rng.choice((0.0, 0.3, 5.0)))
    await _all_come_once(bench, due)


@pytest.mark.parametrize("seed", range(12))
async def test_kills_at_any_moment_lose_nothing_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(100 + seed)
    bench = DelayBench(bench_options(tmp_path / "0"), flush_interval=rng.choice(("10ms", "200ms", "1s")))
    due: dict[bytes, int] = {}
    for turn in range(1, 9):
        async with bench.running():
            _send_some(bench, rng, due, turn, 40)
            await trio.sleep(rng.choice((0.0, rng.uniform(0.0, 1.5), rng.uniform(0.0, 4.0))))
            _send_some(bench, rng, due, 100 * turn, 5)
        bench = bench.kill()
        await trio.sleep(rng.choice((0.0, 0.0, 2.5)))
    await _all_come_once(bench, due)


async def test_an_op_message_of_transactions_delivers_nothing(tmp_path: Path) -> None:
    """It names a place in the log up to which decisions are written down; a message may wait just there."""
    bench = DelayBench(bench_options(tmp_path / "store"))
    async with bench.running():
        due = {b"%d" % number: bench.timed(b"%d" % number, 20_000) for number in range(3)}
        due |= {b"level %d" % number: bench.level(b"level %d" % number, 4) for number in range(3)}
        for topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            for parked in read_queue(bench.store, topic, 0 if topic == TIMER_TOPIC else 3):
                op_message = Record(
                    TRANS_OP_HALF_TOPIC,
                    b"17,",
                    properties=encode_properties({"TAGS": "d"}),
                    prepared_transaction_offset=parked.physical_offset,
                )
                assert bench.store.put_record(op_message).status is PutStatus.PUT_OK
        bench.wrote()
        await trio.sleep(0.1)  # so that nothing is saved, and the next start reads the log from here on
    bench = bench.kill()
    async with bench.running():
        await trio.sleep(60)
    assert bench.delivered() == {body: [when] for body, when in due.items()}
    bench.stop()


def _send_some(bench: DelayBench, rng: random.Random, due: dict[bytes, int], turn: int, count: int) -> None:
    for number in range(count):
        body = b"%d-%d" % (turn, number)
        if rng.random() < 0.5:
            due[body] = bench.level(body, rng.choice((1, 1, 2, 3)), rng.randrange(4))
        else:
            due[body] = bench.timed(body, rng.randrange(1, 9000), rng.randrange(4))


async def _all_come_once(bench: DelayBench, due: dict[bytes, int]) -> None:
    async with bench.running():
        await until(lambda: bench.clock_ms() > max(due.values()) + 1000, step_s=0.5)
    delivered = bench.delivered()
    assert {body: len(times) for body, times in delivered.items()} == dict.fromkeys(due, 1)
    assert all(times[0] >= due[body] for body, times in delivered.items())
    assert not any(bench.stats.waiting.values())
    assert bench.delays.figures()["timerOffsetBehind"] == 0
    bench.stop()
