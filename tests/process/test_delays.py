"""Delayed messages through the running broker: in real time, killed, cancelled, listed, and by an injected clock."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_client import AckLevel
from reput_client import Message as AsyncMessage
from reput_client import Producer as AsyncProducer
from reput_client import PullConsumer as AsyncPullConsumer
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.commands.delay import CancelOutcome
from reput_protocol.errors import ReputError
from reput_protocol.record.delays import DELAY_LEVELS_MS
from support.broker_process import BrokerProcess
from support.command import Cli
from support.retention import RESERVED_MS, FakeMachine
from support.waiting import until, wait_until

pytestmark = pytest.mark.process

TOPIC = "later"
QUEUES = 4
SMALL: dict[str, Any] = {
    "commit_log_file_size": 65536,
    "consume_queue_entries": 64,
    "index_slots": 500,
    "index_entries": 2000,
    "clean_delay": "0s",
    "clean_interval": "100ms",
    "delete_files_interval": "1ms",
    "consume_queue_flush_interval": "20ms",
}
LATE_MS = 5_000
"""A machine that does much else at the same time is allowed that much; how late they really are is measured by
benchmarks/delay.py."""


def arrivals(address: str, topic: str = TOPIC) -> dict[bytes, list[int]]:
    """When each message was put into its queue, by its body; more than once if it came more than once."""
    found: dict[bytes, list[int]] = {}
    with PullConsumer(address, group="judge", timeout_s=30.0) as consumer:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                result = consumer.pull(topic, queue_id, offset, max_messages=1000, wait_s=0.0)
                if not result.messages:
                    break
                for message in result.messages:
                    found.setdefault(bytes(message.body), []).append(message.store_timestamp_ms)
                offset = result.next_begin_offset
    return found


def test_short_levels_and_times_are_kept_in_real_time(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as broker:
        due: dict[bytes, int] = {}
        with Producer(broker.address, group="p", timeout_s=30.0) as producer:
            receipt = producer.send(Message(TOPIC, b"level", delay_level=1))
            due[b"level"] = receipt.store_timestamp_ms + DELAY_LEVELS_MS[0]
            for delay_s in (0.05, 0.7, 1.0):
                body = b"%f" % delay_s
                due[body] = int(1000 * (time.time() + delay_s))
                producer.send(Message(TOPIC, body, delay_s=delay_s))
            when = datetime.now(UTC) + timedelta(seconds=0.5)
            producer.send(Message(TOPIC, b"at", deliver_at=when))
            due[b"at"] = int(when.timestamp() * 1000)
            producer.send(Message(TOPIC, b"past", deliver_at=datetime.now(UTC) - timedelta(days=1)))
            came = arrivals(broker.address)
            assert b"past" in came
            assert all(due[body] <= time.time() * 1000 for body in came if body != b"past"), came
        wait_until(lambda: len(arrivals(broker.address)) == len(due) + 1)
        came = arrivals(broker.address)
    late = {body: came[body][0] - due[body] for body in due}
    assert all(len(times) == 1 for times in came.values())
    assert all(0 <= ms < LATE_MS for ms in late.values()), late


@dataclass
class Sent:
    """What one thread knows of what it asked for."""

    due: dict[bytes, int] = field(default_factory=dict)
    """Of acknowledged messages the earliest moment at which they may come."""
    unsure: set[bytes] = field(default_factory=set)
    """Those whose answer never came."""
    cancelled: dict[bytes, CancelOutcome] = field(default_factory=dict)
    cancel_unsure: set[bytes] = field(default_factory=set)


def send_and_cancel(address: str, sent: Sent, rng: random.Random, turn: int) -> None:
    """Send delayed messages, and cancel some, until the broker is gone."""
    number = 0
    try:
        with Producer(address, group="p", timeout_s=3.0) as producer, Admin(address, timeout_s=3.0) as admin:
            while True:
                body = b"%d-%d" % (turn, number)
                number += 1
                level = rng.choice((None, None, 1, 2))
                delay_s = None if level else rng.uniform(0.001, 7.0)
                message = Message(TOPIC, body, unique_id=f"ID-{body.decode()}", delay_level=level, delay_s=delay_s)
                before_ms = time.time_ns() // 1_000_000
                sent.unsure.add(body)
                ack = rng.choice((AckLevel.PAGE_CACHE, AckLevel.PAGE_CACHE, AckLevel.FLUSHED))
                producer.send(message, queue_id=rng.randrange(QUEUES), ack=ack)
                sent.unsure.discard(body)
                delay_ms = DELAY_LEVELS_MS[level - 1] if level else int((delay_s or 0) * 1000)
                sent.due[body] = before_ms + delay_ms
                if rng.random() < 0.1:
                    target = rng.choice([*sent.due])
                    sent.cancel_unsure.add(target)
                    (answer,) = admin.cancel_delayed(TOPIC, f"ID-{target.decode()}")
                    sent.cancel_unsure.discard(target)
                    sent.cancelled[target] = answer.outcome
    except (ReputError, OSError):
        return


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_repeated_when_the_broker_is_killed(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sent = Sent()
    options = {"REPUT_DELAY__FLUSH_INTERVAL": rng.choice(("10ms", "200ms", "1s"))}
    broker = BrokerProcess(tmp_path / "store", environment=options)
    for turn in range(5):
        broker.start()
        broker.wait_ready()
        sender = threading.Thread(target=send_and_cancel, args=(broker.address, sent, rng, turn))
        sender.start()
        time.sleep(rng.uniform(0.2, 2.5))
        if rng.random() < 0.2:
            broker.terminate()
        else:
            broker.kill()
        sender.join()
    with broker:
        never = {body for body, outcome in sent.cancelled.items() if outcome is not CancelOutcome.DELIVERED}
        wait_until(lambda: time.time() * 1000 > max(sent.due.values()) + 500)
        wanted = sent.due.keys() - never - sent.cancel_unsure
        wait_until(lambda: wanted <= arrivals(broker.address).keys(), within_s=30.0)
        came = arrivals(broker.address)
        status = json.loads(_get(broker, "/status"))["delayed"]
    assert len(sent.due) > 100
    assert never, "some cancellations were in time"
    assert not {body: times for body, times in came.items() if len(times) > 1}
    assert not never & came.keys(), "cancelled, and came all the same"
    assert came.keys() <= sent.due.keys() | sent.unsure
    early = {body: due - came[body][0] for body, due in sent.due.items() if body in came and came[body][0] < due}
    assert not early
    late = {body for body, outcome in sent.cancelled.items() if outcome is CancelOutcome.DELIVERED}
    assert late <= came.keys(), "told to be delivered, and did not come"
    assert (status["waiting"], status["dropped"]) == (0, 0)


def _get(broker: BrokerProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}{path}", timeout=10.0) as answer:
        text: str = answer.read().decode()
        return text


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def cli(broker: BrokerProcess) -> Cli:
    return Cli(broker.address)


def test_messages_are_produced_listed_and_cancelled_from_the_command_line(cli: Cli) -> None:
    cli("produce", "shop", "remind", "-k", "o-1", "-t", "x", "--delay", "2h")
    cli("produce", "shop", "later", "-k", "o-2", "--delay-level", "18", "--queue", "2")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    cli("produce", "shop", "at", "-k", "o-2", "--at", tomorrow)
    rows = cli.json("delay", "list", "-t", "shop")
    assert [row["keys"] for row in rows] == [["o-1"], ["o-2"], ["o-2"]]
    assert [row["level"] for row in rows] == [None, 18, None]
    assert [row["size_bytes"] for row in rows] == [6, 5, 2]
    assert all(7100 < row["due_in_s"] <= 7200 for row in rows[:2])
    assert rows[1]["queue"] == 2
    assert cli.json("delay", "list", "-k", "o-1") == [
        row | {"due_in_s": pytest.approx(row["due_in_s"], abs=60)} for row in rows[:1]
    ]
    assert len(cli.json("delay", "list", "-n", "2")) == 2
    dry = cli.json("delay", "cancel", "-t", "shop", "-k", "o-2", "--dry-run")
    assert len(dry) == 2
    done = cli.json("delay", "cancel", "-t", "shop", "-k", "o-2")
    assert [row["outcome"] for row in done] == ["cancelled", "cancelled"]
    again = cli.json("delay", "cancel", "-t", "shop", "-k", "o-2")
    assert [row["outcome"] for row in again] == ["already_cancelled", "already_cancelled"]
    assert [row["keys"] for row in cli.json("delay", "list", "-t", "shop")] == [["o-1"]]
    found = cli("delay", "cancel", "-t", "shop", "-k", "nobody", code=5)
    assert "nobody" in found.stderr
    assert "reput delay list -t shop" in found.stderr


def test_cancelling_too_late_says_so_and_exits_with_1(cli: Cli, broker: BrokerProcess) -> None:
    cli("produce", TOPIC, "soon", "-k", "quick", "--delay", "50ms")
    wait_until(lambda: b"soon" in arrivals(broker.address))
    done = cli("delay", "cancel", "-t", TOPIC, "-k", "quick", code=1)
    assert "delivered" in done.stdout
    assert "1 of 1 messages had already been delivered" in done.stderr


def test_a_delay_that_cannot_be_kept_is_refused_by_its_reason(cli: Cli) -> None:
    far = cli("produce", "shop", "x", "--delay", "4d", code=1)
    assert "delay.timer_max_delay" in far.stderr
    both = cli("produce", "shop", "x", "--delay", "1m", "--delay-level", "3", code=2)
    assert "one delay" in both.stderr


# -- an injected clock ---------------------------------------------------------------------------------------------


def config_of(data_dir: Path, **options: Any) -> BrokerConfig:
    return BrokerConfig(data_dir=data_dir, port=0, http_port=0, store=SMALL, **options)


async def came(broker: Broker, topic: str = TOPIC) -> list[bytes]:
    bodies: list[bytes] = []
    async with AsyncPullConsumer(broker.address, group="g") as consumer:
        for queue_id in range(QUEUES):
            offset = 0
            while (result := await consumer.pull(topic, queue_id, offset, max_messages=1000, wait_s=0.0)).messages:
                bodies += [bytes(message.body) for message in result.messages]
                offset = result.next_begin_offset
    return sorted(bodies)


@pytest.mark.trio
async def test_every_level_and_time_comes_when_the_wall_clock_says_so(tmp_path: Path) -> None:
    """The clock of the whole broker stands still and is set by hand."""
    machine = FakeMachine()
    begin = machine.now_ms
    config = config_of(tmp_path / "store")
    rng = random.Random(4)
    due = {b"level %02d" % level: DELAY_LEVELS_MS[level - 1] for level in range(1, 19)}
    due |= {b"time %02d" % number: rng.randrange(1, 7_200_000) for number in range(10)}
    async with Broker(config, surroundings=machine.surroundings()) as broker:
        async with AsyncProducer(broker.address, group="p") as producer:
            for body, delay_ms in due.items():
                level = int(body[-2:]) if body.startswith(b"level") else None
                delay_s = None if level else delay_ms / 1000
                await producer.send(AsyncMessage(TOPIC, body, delay_level=level, delay_s=delay_s))
        for when in sorted(due.values()):
            machine.now_ms = begin + when - 1
            await trio.sleep(0.02)
            before = sorted(body for body, delay_ms in due.items() if delay_ms < when)
            await until_came(broker, before)
            machine.now_ms = begin + when
            await until_came(broker, sorted(body for body, delay_ms in due.items() if delay_ms <= when))


async def until_came(broker: Broker, bodies: list[bytes]) -> None:
    """Wait until these have come, and see that no others have."""
    with trio.fail_after(20):
        while (found := await came(broker) if bodies else []) != bodies:
            assert set(found) <= set(bodies), sorted(set(found) - set(bodies))
            await trio.sleep(0.02)


@pytest.mark.trio
async def test_log_files_stay_while_messages_in_them_wait_unless_the_disk_is_full(tmp_path: Path) -> None:
    machine = FakeMachine(hour=4)
    data_dir = tmp_path / "store"
    config = config_of(data_dir, delay={"timer_max_delay": "30d", "timer_log_file_size": "4KiB"})
    async with Broker(config, surroundings=machine.surroundings()) as broker:
        store = broker.store
        async with AsyncProducer(broker.address, group="p") as producer:
            for number in range(4):
                await producer.send(AsyncMessage(TOPIC, b"%d" % number, delay_level=18))
            await producer.send(AsyncMessage(TOPIC, b"timed", delay_s=7_000.0))
            for _ in range(60):
                await producer.send(AsyncMessage("other", bytes(4000)))
        stats = broker.sources.delays.stats  # type: ignore[union-attr]
        await until(lambda: stats.waiting[TOPIC] == 5)
        machine.age(data_dir)
        for path in (data_dir / "commitlog").iterdir():  # long before the messages are due
            os.utime(path, ((machine.now_ms - RESERVED_MS) / 1000,) * 2)
        looks = len(machine.looks)
        await until(lambda: len(machine.looks) > looks + 5)
        assert store.min_physical_offset == 0, "they wait there"
        machine.now_ms += DELAY_LEVELS_MS[17]
        await until_came(broker, [b"0", b"1", b"2", b"3", b"timed"])
        await until(lambda: store.min_physical_offset > 0)
        async with AsyncProducer(broker.address, group="p") as producer:
            place = (await producer.send(AsyncMessage(TOPIC, b"endangered", delay_level=18))).physical_offset
            for _ in range(60):
                await producer.send(AsyncMessage("other", bytes(4000)))
        machine.age(data_dir)
        machine.used = 0.95
        await until(lambda: store.min_physical_offset > place)
        machine.used = 0.5
        machine.now_ms += DELAY_LEVELS_MS[17]
        await until(lambda: stats.dropped["lost"] == 1)
        assert b"endangered" not in await came(broker)
        assert stats.waiting[TOPIC] == 0


@pytest.mark.trio
async def test_wheel_off_refuses_times_of_their_own_and_takes_levels(tmp_path: Path) -> None:
    config = config_of(tmp_path / "store", delay={"timer_wheel": False})
    async with Broker(config) as broker, AsyncProducer(broker.address, group="p") as producer:
        with pytest.raises(ReputError, match=r"delay\.timer_wheel is false"):
            await producer.send(AsyncMessage(TOPIC, b"x", delay_s=5.0))
        assert (await producer.send(AsyncMessage(TOPIC, b"x", delay_level=3))).queue_offset == 0
        assert not (tmp_path / "store" / "timerwheel").exists()
