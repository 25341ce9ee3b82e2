"""Redeliveries with a real broker: in real time where that is short, and through kills."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Message, Producer, PullConsumer, ReceivedMessage
from reput_client.consume.send_back import send_back
from reput_protocol.errors import TopicNotFound
from reput_protocol.record.message import MessageQueue
from support.broker_process import BrokerProcess, free_port
from support.lossy_proxy import LossyProxy
from support.waiting import wait_until

pytestmark = pytest.mark.process

GROUP, RETRY, DLQ = "billing", "%RETRY%billing", "%DLQ%billing"


class Member:
    """What a member of a group does with messages it cannot handle, one queue at a time."""

    def __init__(self, broker: BrokerProcess | LossyProxy) -> None:
        self._consumer = PullConsumer(broker.address, group=GROUP, timeout_s=30.0)
        self._offsets: Counter[str] = Counter()

    def __enter__(self) -> Member:
        self._consumer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._consumer.close()

    def pull(self, topic: str, wait_s: float = 0.0) -> list[ReceivedMessage]:
        """What has come to a topic since the last pull; nothing as long as there is no such topic."""
        try:
            result = self._consumer.pull(topic, 0, self._offsets[topic], max_messages=256, wait_s=wait_s)
        except TopicNotFound:
            return []
        self._offsets[topic] = result.next_begin_offset
        return list(result.messages)

    def position(self, topic: str) -> int:
        return self._offsets[topic]

    def give_back(self, message: ReceivedMessage, delay_level: int = 0, limit: int | None = None) -> None:
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        runtime, session = self._consumer._runtime, self._consumer._client._session
        runtime.run(
            send_back(
                session,
                message,
                group=GROUP,
                queue=queue,
                delay_level=delay_level,
                max_reconsume_times=limit,
                reason="it is a test",
            )
        )


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "store") as process:
        with Admin(process.address, timeout_s=30.0) as admin:
            admin.create_topic("orders", queues=1)
        yield process


def send(broker: BrokerProcess, number: int) -> list[str]:
    with Producer(broker.address, group="p", timeout_s=30.0) as producer:
        receipts = producer.send_batch(
            [Message("orders", b"%d" % n, tag=f"t{n % 2}", keys=[f"k{n}"]) for n in range(number)]
        )
    return [receipt.message_id for receipt in receipts]


@pytest.mark.parametrize(("level", "found_in"), [(-1, DLQ), (1, RETRY)])
def test_a_lost_answer_makes_no_second_one(tmp_path: Path, level: int, found_in: str) -> None:
    loses = {"next": False}
    port = free_port()
    proxy = LossyProxy(port, lambda _: loses.pop("next", False))
    with proxy, BrokerProcess(tmp_path, port=port) as broker:
        with Admin(broker.address, timeout_s=30.0) as admin:
            admin.create_topic("orders", queues=1)
        (message_id,) = send(broker, 1)
        with Member(proxy) as member:
            (message,) = member.pull("orders", 5.0)
            loses["next"] = True
            member.give_back(message, level)
            assert proxy.lost == 1
            assert [found.message_id for found in _until_some(member, found_in)] == [message_id]
            time.sleep(1.5 if level > 0 else 0)
            assert member.pull(found_in, 1.0) == []


def test_a_retry_is_never_early_and_keeps_what_the_message_was(broker: BrokerProcess) -> None:
    (message_id,) = send(broker, 1)
    with Member(broker) as member:
        (message,) = member.pull("orders", 5.0)
        for attempt, level in enumerate((1, 2, 1), 1):
            given_back_at_ms = int(time.time() * 1000)
            member.give_back(message, level)
            message = next(iter(_until_some(member, RETRY)))
            late_ms = message.store_timestamp_ms - given_back_at_ms - {1: 1000, 2: 5000}[level]
            assert late_ms >= 0
            assert (message.reconsume_times, message.body, message.tag) == (attempt, b"0", "t0")
            assert (message.message_id, message.keys) == (message_id, ("k0",))
            found = message.properties
            assert (found["RETRY_TOPIC"], found["RETRY_REASON"]) == ("orders", "it is a test")


def test_every_message_is_tried_as_often_as_it_may_be_and_then_a_dead_letter_also_through_kills(
    broker: BrokerProcess,
) -> None:
    """Twelve messages, two more tries each: 36 deliveries, twelve dead letters, after any events meanwhile."""
    ids = send(broker, 12)
    tries: Counter[str] = Counter()
    kills = 0
    with Member(broker) as member:
        while tries.total() < 36:
            for message in _until_some(member, RETRY if tries else "orders"):
                tries[message.message_id] += 1
                member.give_back(message, 1, limit=2)
                if tries.total() % 16 == 0:
                    broker.kill()
                    broker.start()
                    broker.wait_ready()
                    kills += 1
        assert len(_until_some(member, DLQ)) == 12
        time.sleep(2.5)
        assert member.pull(RETRY) == [], "nothing comes once more"
        assert member.pull(DLQ) == []
    assert tries == Counter(dict.fromkeys(ids, 3))
    assert kills == 2
    with PullConsumer(broker.address, group="reader", timeout_s=30.0) as reader:
        dead = reader.pull(DLQ, 0, 0, max_messages=256, wait_s=0.0).messages
    assert sorted(message.message_id for message in dead) == sorted(ids)
    assert {message.reconsume_times for message in dead} == {3}
    assert {message.properties["DLQ_REASON"] for message in dead} == {"max_reconsume_times"}


def _until_some(member: Member, topic: str) -> list[ReceivedMessage]:
    return wait_until(
        lambda: member.pull(topic, 1.0), what=lambda: f"nothing came to {topic} from {member.position(topic)} on"
    )
