"""Delayed messages in a directory are delivered by either broker, once, and not before their time.

RocketMQ 5.3.3 keeps its own times to the second only, and rather sooner than later; Reput to the millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.apache import SMALL, TIMER_LOG_BYTES, Apache, free_broker_port
from conformance.counts import COUNTS
from conformance.reput_broker_side import GROUP
from conformance.workload import Sent, from_base64
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.commands.base import read_json
from reput_protocol.commands.delay import CancelOutcome
from reput_protocol.record.delays import DELAY_LEVELS_MS
from support.broker_process import BrokerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.process

TOPIC = "later"
QUEUES = 4
ROCKETMQ_EARLY_MS = 2_000
"""It delivers a slot of a second as a whole, rounded down."""
Came = dict[bytes, list[int]]


@contextmanager
def reput_on(data_dir: Path, port: int) -> Iterator[BrokerProcess]:
    """A Reput broker with the sizes that RocketMQ is given."""
    environment = {
        "REPUT_STORE__COMMIT_LOG_FILE_SIZE": f"{SMALL.commit_log_file_size}B",
        "REPUT_STORE__CONSUME_QUEUE_ENTRIES": str(SMALL.consume_queue_entries),
        "REPUT_STORE__INDEX_SLOTS": str(SMALL.index_slots),
        "REPUT_STORE__INDEX_ENTRIES": str(SMALL.index_entries),
        "REPUT_DELAY__TIMER_LOG_FILE_SIZE": f"{TIMER_LOG_BYTES}B",
    }
    with BrokerProcess(data_dir, port=port, environment=environment) as broker:
        yield broker


def seen_by_reput(broker: BrokerProcess) -> Came:
    """When each message was put into its queue."""
    found: Came = {}
    with PullConsumer(broker.address, group=GROUP) as consumer:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                result = consumer.pull(TOPIC, queue_id, offset, max_messages=1000, wait_s=0.0)
                if not result.messages:
                    break
                for message in result.messages:
                    found.setdefault(bytes(message.body), []).append(message.store_timestamp_ms)
                offset = result.next_begin_offset
    return found


def seen_by_apache(apache: Apache) -> Came:
    """The same, by the official client."""
    found: Came = {}
    for queue_id in range(QUEUES):
        for line in apache.ask("read", topic=TOPIC, queueId=queue_id):
            found.setdefault(from_base64(line["body"]), []).append(line["storeTimestamp"])
    return found


def send_by_reput(broker: BrokerProcess, messages: Sequence[Message]) -> dict[bytes, int]:
    """Send them; return when each is due."""
    due: dict[bytes, int] = {}
    with Producer(broker.address, group=GROUP) as producer:
        for number, message in enumerate(messages):
            receipt = producer.send(message, queue_id=number % QUEUES)
            assert message.delay is not None
            delay = int(message.delay.value)
            if message.delay.name == "DELAY":
                delay = DELAY_LEVELS_MS[delay - 1]
            due[bytes(message.body)] = receipt.store_timestamp_ms + delay - 1
    return due


def send_by_apache(apache: Apache, properties: Sequence[tuple[bytes, dict[str, str]]]) -> dict[bytes, int]:
    """Send them with the official producer; return the earliest moment at which each may come."""
    due: dict[bytes, int] = {}
    for number, (body, found) in enumerate(properties):
        before_ms = time.time_ns() // 1_000_000
        apache.put([Sent(TOPIC, number % QUEUES, body, found)])
        if "DELAY" in found:
            due[body] = before_ms + DELAY_LEVELS_MS[int(found["DELAY"]) - 1]
        elif "TIMER_DELIVER_MS" in found:
            due[body] = int(found["TIMER_DELIVER_MS"])
        else:
            due[body] = before_ms + int(found.get("TIMER_DELAY_MS", 0)) + 1000 * int(found.get("TIMER_DELAY_SEC", 0))
    return due


def judge(came: Came, due: dict[bytes, int], *, early_ms: int = 0) -> None:
    """Every message once, and none before its time."""
    assert came.keys() == due.keys()
    assert not {body: times for body, times in came.items() if len(times) > 1}
    assert not {body: due[body] - times[0] for body, times in came.items() if times[0] < due[body] - early_ms}


@pytest.mark.long
@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_what_one_has_not_delivered_the_other_does(tmp_path: Path, stop: str) -> None:
    """From Reput to RocketMQ, which keeps what was cancelled, and with its own messages back to Reput."""
    data_dir, port = tmp_path / "store", free_broker_port()
    with reput_on(data_dir, port) as reput:
        messages = [Message(TOPIC, b"level %d" % n, delay_level=1 + n % 3) for n in range(60)]
        messages += [Message(TOPIC, b"time %d" % n, delay_s=0.2 + 0.25 * n) for n in range(60)]
        due = send_by_reput(reput, messages)
        back = send_by_reput(reput, [Message(TOPIC, b"for its sender %d" % n, delay_s=30.0 + n) for n in range(10)])
        gone = send_by_reput(reput, [Message(TOPIC, b"gone %d" % n, delay_s=16.0 + n, keys=["gone"]) for n in range(3)])
        with Admin(reput.address) as admin:
            answers = admin.cancel_delayed(TOPIC, "gone")
        assert [answer.outcome for answer in answers] == [CancelOutcome.CANCELLED] * 3
        wait_until(lambda: len(seen_by_reput(reput)) > 30)
        delivered = len(seen_by_reput(reput))
        assert reput.terminate() == 0
    table = read_json((data_dir / "config" / "delayOffset.json").read_bytes())["offsetTable"]
    assert {int(level) for level in table} == {1, 2, 3}

    with Apache("broker", data_dir, port=port, group=GROUP, timer_wheel=True) as apache:
        now_ms = time.time_ns() // 1_000_000
        own = [(b"a level %d" % n, {"DELAY": str(1 + n % 4)}) for n in range(60)]
        own += [(b"a ms %d" % n, {"TIMER_DELAY_MS": str(3_000 + 400 * n)}) for n in range(50)]
        own += [(b"a s %d" % n, {"TIMER_DELAY_SEC": str(5 + n)}) for n in range(15)]
        own += [(b"a at %d" % n, {"TIMER_DELIVER_MS": str(now_ms + 20_000 + 333 * n)}) for n in range(30)]
        of_apache = send_by_apache(apache, own)
        time.sleep(max(0.0, max(*due.values(), *gone.values()) / 1000 + 2.0 - time.time()))
        wait_until(lambda: seen_by_apache(apache).keys() >= due.keys())
        handed_over = len(due) - delivered + len({**due, **of_apache}.keys() - seen_by_apache(apache).keys())
        if stop == "clean":
            apache.stop()
        else:
            apache.kill()

    due |= back | of_apache
    with reput_on(data_dir, port) as reput:
        time.sleep(max(0.0, max(due.values()) / 1000 - time.time()))
        wait_until(lambda: seen_by_reput(reput).keys() >= due.keys())
        time.sleep(1.0)
        came = seen_by_reput(reput)
    if stop == "killed":
        # RocketMQ promises no more than at least once: it saves every 10 s what it has delivered.
        came = {body: times[:1] for body, times in came.items()}
    judge(came, due, early_ms=ROCKETMQ_EARLY_MS)
    COUNTS["delayed messages delivered by the other"] += handed_over
