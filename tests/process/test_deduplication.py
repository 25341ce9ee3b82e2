"""Answers get lost, brokers are killed between storing and answering, and every message is stored once."""

from __future__ import annotations

import random
import threading
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.errors import BrokerError
from support.broker_process import BrokerProcess, free_port
from support.lossy_proxy import LossyProxy
from support.waiting import wait_until

pytestmark = pytest.mark.process

QUEUES = 4


def is_receipt(answer: bytes) -> bool:
    return b"storeHost" in answer


def is_receipt_of_one(answer: bytes) -> bool:
    """Whether it is the answer to a message that was sent alone."""
    return b"msgId" in answer


def never(answer: bytes) -> bool:
    return False


class Setting:
    """A broker behind a proxy that every client is sent through."""

    def __init__(self, directory: Path, loses: Callable[[bytes], bool], **options: str) -> None:
        port = free_port()
        self.proxy = LossyProxy(port, loses)
        environment = {"REPUT_STORE__FLUSH": "async", "REPUT_TOPICS__DEFAULT_QUEUES": str(QUEUES)} | options
        self.broker = BrokerProcess(directory / "store", port=port, environment=environment)

    def producer(self, **arguments: object) -> Producer:
        settings: dict[str, object] = {"ack": "page_cache", "deduplicate": True, "retries": 30} | arguments
        return Producer(self.proxy.address, **settings)  # type: ignore[arg-type]

    def bodies(self, topic: str) -> list[bytes]:
        """Everything stored in a topic."""
        found: list[bytes] = []
        with PullConsumer(self.broker.address, group="reader") as consumer:
            for queue_id in range(QUEUES):
                offset, end = 0, consumer.max_offset(topic, queue_id)
                while offset < end:
                    pulled = consumer.pull(topic, queue_id, offset)
                    found += [message.body for message in pulled.messages]
                    offset = pulled.next_begin_offset
        return found

    def metric(self, name: str) -> float:
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.broker.http_port}/metrics").read().decode()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + "{"))

    def __enter__(self) -> Setting:
        self.broker.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.proxy.__exit__(None, None, None)
        self.broker.__exit__(error[0], None, None)  # type: ignore[arg-type]


def test_a_send_repeated_after_a_lost_answer_is_stored_once(tmp_path: Path) -> None:
    rng = random.Random(7)
    with Setting(tmp_path, lambda data: is_receipt(data) and rng.random() < 0.3) as setting:
        with Admin(setting.broker.address) as admin:
            admin.create_topic("once", queues=QUEUES)
        sent = [b"%d" % number for number in range(60)]
        with setting.producer() as producer:
            receipts = [producer.send(Message("once", body)) for body in sent[:20]]
            receipts += producer.send_batch([Message("once", body) for body in sent[20:40]])
            for body in sent[40:50]:
                receipts += producer.send_batch([Message("once", body)])
        with setting.producer(linger_s=0.001) as producer:
            receipts += [producer.send(Message("once", body)) for body in sent[50:]]
        assert setting.proxy.lost >= 8, "answers were lost"
        assert sorted(setting.bodies("once")) == sorted(sent)
        assert setting.metric("reput_duplicates_rejected_total") >= 8
        assert setting.metric("reput_messages_in_total") == len(sent)
        with PullConsumer(setting.broker.address, group="reader") as consumer:
            for body, receipt in zip(sent, receipts, strict=True):
                (message,) = consumer.pull("once", receipt.queue_id, receipt.queue_offset, max_messages=1).messages
                assert message.body == body, "the receipt is that of the stored message"
                assert message.physical_offset == receipt.physical_offset
                assert message.message_id == receipt.message_id


def test_without_deduplication_it_is_stored_again(tmp_path: Path) -> None:
    """The test above would notice."""
    lost = [True]
    with Setting(tmp_path, lambda data: is_receipt(data) and bool(lost) and lost.pop()) as setting:
        with setting.producer(deduplicate=False) as producer:
            producer.send(Message("once", b"x"))
        assert setting.bodies("once") == [b"x", b"x"]


def test_a_broker_killed_between_storing_and_answering_knows_what_it_stored(tmp_path: Path) -> None:
    kill_next = threading.Event()

    def lose(data: bytes) -> bool:
        if not is_receipt(data) or not kill_next.is_set():
            return False
        kill_next.clear()
        setting.broker.kill()
        setting.broker.start()
        return True

    setting = Setting(tmp_path, lose, REPUT_STORE__FLUSH="sync")
    with setting, setting.producer(ack="flushed", retries=200, timeout_s=30.0) as producer:
        sent = []
        for number in range(6):
            if number % 3 == 2:
                kill_next.set()
            body = b"%d" % number
            producer.send(Message("once", body), queue_id=0)
            sent.append(body)
        assert setting.proxy.lost == 2
        assert setting.bodies("once") == sent


def test_delayed_messages_that_are_sent_again_are_delivered_once(tmp_path: Path) -> None:
    """Also those whose time comes between the first attempt and the next."""
    rng = random.Random(8)
    with Setting(tmp_path, lambda data: is_receipt_of_one(data) and rng.random() < 0.3) as setting:
        sent = []
        with setting.producer() as producer:
            for number in range(60):
                delay = ({"delay_s": 0.01 * number}, {"delay_level": 1}, {"deliver_at": soon()})[number % 3]
                message = Message("once", b"%d" % number, **delay)
                if number % 2:
                    producer.send(message)
                else:
                    producer.send_batch([message])
                sent.append(message.body)
        assert setting.proxy.lost >= 10, "answers were lost"
        wait_until(lambda: len(setting.bodies("once")) >= len(sent) and setting.metric("reput_delayed_messages") == 0)
        assert sorted(setting.bodies("once")) == sorted(map(bytes, sent))
        assert setting.metric("reput_duplicates_rejected_total") >= 10


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(milliseconds=30)


def test_a_broker_killed_after_storing_delayed_messages_recognises_them(tmp_path: Path) -> None:
    kill_next = threading.Event()

    def lose(data: bytes) -> bool:
        if not is_receipt_of_one(data) or not kill_next.is_set():
            return False
        kill_next.clear()
        setting.broker.kill()
        setting.broker.start()
        return True

    setting = Setting(tmp_path, lose)
    with setting, setting.producer(retries=200, timeout_s=30.0) as producer:
        sent = []
        for number in range(2):
            kill_next.set()
            delay = {"delay_level": 1} if number % 2 else {"delay_s": 0.2}
            message = Message("once", b"%d" % number, **delay)
            producer.send(message, queue_id=0)
            sent.append(message.body)
        assert setting.proxy.lost == 2
        wait_until(lambda: len(setting.bodies("once")) >= len(sent) and setting.metric("reput_delayed_messages") == 0)
        assert sorted(setting.bodies("once")) == sent


def test_ids_of_the_application_are_recognised_from_any_producer(tmp_path: Path) -> None:
    with Setting(tmp_path, never) as setting:
        with setting.producer() as producer:
            first = producer.send(Message("once", b"paid", unique_id="order-17"), queue_id=1)
        with setting.producer(linger_s=0.001) as other:
            again = other.send(Message("once", b"paid", unique_id="order-17"), queue_id=3)
            assert again == first
            assert other.post(Message("once", b"paid", unique_id="order-17")).result() == first
            elsewhere = other.send(Message("another", b"paid", unique_id="order-17"))
            assert elsewhere.topic == "another"
            with pytest.raises(BrokerError, match="1 of 2 messages are stored already, for instance 'order-17'"):
                other.send_batch(
                    [Message("once", b"paid", unique_id=f"order-{number}") for number in (17, 18)], queue_id=1
                )
        assert setting.bodies("once") == [b"paid"]
        setting.broker.terminate()
        setting.broker.start()
        setting.broker.wait_ready()
        with setting.producer() as producer:
            assert producer.send(Message("once", b"paid", unique_id="order-17"))[:5] == first[:5]
        assert setting.bodies("once") == [b"paid"]


def test_after_the_window_it_is_another_message(tmp_path: Path) -> None:
    with Setting(tmp_path, never, REPUT_DEDUP__WINDOW="1s") as setting, setting.producer() as producer:
        first = producer.send(Message("once", b"tick", unique_id="tick"))
        wait_until(lambda: producer.send(Message("once", b"tick", unique_id="tick")) != first, 30)
        assert len(setting.bodies("once")) == 2


def test_without_an_index_nothing_can_be_looked_up(tmp_path: Path) -> None:
    with (
        Setting(tmp_path, never, REPUT_STORE__INDEX="false") as setting,
        setting.producer(retries=0) as producer,
        pytest.raises(BrokerError, match=r"set store\.index"),
    ):
        producer.send(Message("once", b"paid", unique_id="order-17"))
