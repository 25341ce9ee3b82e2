"""Transactions with a real broker: committed, rolled back, checked, and the broker killed in between."""

from __future__ import annotations

import random
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from reput_client import Message, ReceivedMessage, TransactionState
from reput_client.blocking import Admin, PullConsumer, TransactionProducer
from reput_protocol.errors import ReputError, TransactionEnded
from reput_protocol.names import TRANS_CHECK_MAX_TIME_TOPIC
from support.broker_process import BrokerProcess
from support.faces import FACES, Face, scenario
from support.waiting import wait_until

pytestmark = pytest.mark.process

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
QUICK = {
    "REPUT_TRANSACTIONS__TIMEOUT": "200ms",
    "REPUT_TRANSACTIONS__CHECK_INTERVAL": "100ms",
    "REPUT_TRANSACTIONS__OP_INTERVAL": "20ms",
    "REPUT_TRANSACTIONS__CHECK_MAX": "1000",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "store", environment=QUICK) as process:
        yield process


def create(broker: BrokerProcess, topic: str = "orders") -> None:
    with Admin(broker.address, timeout_s=30.0) as admin:
        admin.create_topic(topic, queues=1)


def received(broker: BrokerProcess, topic: str = "orders") -> list[ReceivedMessage]:
    """Every message that consumers of the topic get."""
    messages: list[ReceivedMessage] = []
    with PullConsumer(broker.address, group="reader", timeout_s=30.0) as consumer:
        while True:
            result = consumer.pull(topic, 0, len(messages), max_messages=256, wait_s=0.0)
            if not result.messages:
                return messages
            messages += result.messages


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30.0) as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if not name.startswith("#")
    }


def is_open(broker: BrokerProcess, topic: str = "orders") -> float:
    return metrics(broker).get(f'reput_transactions_open{{topic="{topic}"}}', 0.0)


async def never(message: ReceivedMessage) -> TransactionState:
    raise AssertionError(f"asked about {message.message_id}")


def says(state: TransactionState) -> Callable[[Any], Any]:
    async def say(_: Any) -> TransactionState:
        return state

    return say


@pytest.mark.parametrize("face", [Face(name) for name in FACES], ids=FACES)
@scenario
async def test_committed_rolled_back_and_unknown_then_checked(tmp_path: Path, face: Face) -> None:
    with BrokerProcess(tmp_path / "store", environment=QUICK) as broker:
        create(broker)
        asked: list[str] = []

        states = {"later": COMMIT, "never": ROLLBACK}

        async def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.message_id)
            tries = asked.count(message.message_id)
            return states[message.body.decode()] if tries > 1 else UNKNOWN

        async with face.TransactionProducer(broker.address, group="shop", check=check) as producer:
            committed = await producer.send_in_transaction(Message("orders", b"now", tag="t"), says(COMMIT))
            rolled_back = await producer.send_in_transaction(Message("orders", b"no"), says(ROLLBACK))
            assert committed.is_committed
            assert rolled_back.confirmed
            assert received(broker)[0].message_id == committed.message_id
            for body in states:
                receipt = await producer.send_in_transaction(Message("orders", body.encode()), says(UNKNOWN))
                assert not receipt.confirmed
            assert len(received(broker)) == 1
            await face.until(lambda: is_open(broker) == 0.0)
        assert [message.body for message in received(broker)] == [b"now", b"later"]
        assert sorted(Counter(asked).values()) == [2, 2]
        found = metrics(broker)
        assert found['reput_transactions_total{topic="orders",result="commit"}'] == 2
        assert found['reput_transactions_total{topic="orders",result="rollback"}'] == 2
        assert found['reput_transaction_checks_total{topic="orders",result="unknown"}'] == 2
        assert found['reput_transaction_checks_total{topic="orders",result="commit"}'] == 1
        assert found['reput_transaction_checks_total{topic="orders",result="rollback"}'] == 1
        assert found['reput_messages_in_total{topic="orders",kind="transactional"}'] == 2


def test_when_the_producer_has_gone_another_one_of_its_group_is_asked(broker: BrokerProcess) -> None:
    create(broker)
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.message_id)
        return COMMIT

    first = TransactionProducer(broker.address, group="shop", check=lambda _: UNKNOWN)
    with first:
        receipt = first.send_in_transaction(Message("orders", b"o-1"), lambda _: UNKNOWN)
    no_producer = 'reput_transaction_checks_total{topic="orders",result="no_producer"}'
    wait_until(lambda: metrics(broker).get(no_producer, 0.0) > 0)
    assert received(broker) == []
    with TransactionProducer(broker.address, group="other", check=lambda _: ROLLBACK):  # noqa: SIM117
        with TransactionProducer(broker.address, group="shop", check=check):
            wait_until(lambda: is_open(broker) == 0.0)
    assert asked == [receipt.transaction_id]
    (message,) = received(broker)
    assert message.message_id == receipt.message_id


def test_a_local_transaction_that_takes_longer_than_the_broker_waits(broker: BrokerProcess) -> None:
    """The first decision counts: here that of `check`, which did not see the result yet; the producer gets an error."""
    create(broker)
    asked = threading.Event()

    def check(_: ReceivedMessage) -> TransactionState:
        asked.set()
        return ROLLBACK

    def slow(_: Message) -> TransactionState:
        assert asked.wait(30)
        wait_until(lambda: is_open(broker) == 0.0)
        return COMMIT

    def slow_commit(_: Message) -> TransactionState:
        time.sleep(1.0)
        return COMMIT

    with TransactionProducer(broker.address, group="shop", check=check) as producer:
        with pytest.raises(TransactionEnded, match="has been rolled back"):
            producer.send_in_transaction(Message("orders", b"late"), slow)
        patient = producer.send_in_transaction(Message("orders", b"patient"), slow_commit, check_after_s=60)
        assert patient.is_committed
    assert [message.body for message in received(broker)] == [b"patient"]


def test_without_answers_the_message_is_put_aside(tmp_path: Path) -> None:
    quick = {**QUICK, "REPUT_TRANSACTIONS__CHECK_MAX": "3"}
    with BrokerProcess(tmp_path / "store", environment=quick) as broker:
        create(broker)
        asked: list[str] = []

        def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.message_id)
            return UNKNOWN

        with TransactionProducer(broker.address, group="shop", check=check) as producer:
            receipt = producer.send_in_transaction(Message("orders", b"o-1", keys=["k"]), lambda _: UNKNOWN)
            timeout = 'reput_transactions_total{topic="orders",result="timeout"}'
            wait_until(lambda: metrics(broker).get(timeout, 0.0) == 1)
            assert asked == [receipt.transaction_id] * 3
            assert is_open(broker) == 0.0
        (aside,) = received(broker, TRANS_CHECK_MAX_TIME_TOPIC)
        assert (aside.body, aside.keys, aside.message_id) == (b"o-1", ("k",), receipt.message_id)
        assert received(broker) == []


@pytest.mark.fault
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_the_broker_is_killed_between_half_and_end(broker: BrokerProcess, state: TransactionState) -> None:
    """The producer's end finds the broker of the next start; had it died too, the check would find it."""
    create(broker)

    def kill(_: Message) -> TransactionState:
        broker.kill()
        broker.start()
        broker.wait_ready()
        return state

    def check(message: ReceivedMessage) -> TransactionState:
        return state if message.body == b"o-1" else COMMIT

    with TransactionProducer(broker.address, group="shop", check=check, timeout_s=30.0) as producer:
        receipt = producer.send_in_transaction(Message("orders", b"o-1"), kill)
        assert receipt.confirmed

        def dies(_: Message) -> TransactionState:
            broker.kill()
            broker.start()
            broker.wait_ready()
            raise RuntimeError("and so does the producer")

        with pytest.raises(RuntimeError, match="and so does"):
            producer.send_in_transaction(Message("orders", b"o-2"), dies)
        wait_until(lambda: is_open(broker) == 0.0)
    expected = [b"o-1", b"o-2"] if state is COMMIT else [b"o-2"]
    assert [message.body for message in received(broker)] == expected


@pytest.mark.fault
def test_killed_at_any_moment_each_transaction_ends_once_and_as_it_should(tmp_path: Path) -> None:
    """Half messages, ends and op messages are under way all the time while the broker is killed again and again."""
    rng = random.Random(1)
    quick = {**QUICK, "REPUT_TRANSACTIONS__OP_INTERVAL": "1ms"}
    broker = BrokerProcess(tmp_path / "store", environment=quick)
    done: dict[str, TransactionState] = {}  # the application's own records, which no broker can lose

    def check(message: ReceivedMessage) -> TransactionState:
        return done.get(message.message_id, ROLLBACK)

    def local(message: Message) -> TransactionState:
        state = rng.choice([COMMIT, ROLLBACK])
        assert message.unique_id is not None
        done[message.unique_id] = state
        return state if rng.random() < 0.8 else UNKNOWN

    sent, contradicted = count(), count()
    dead = threading.Event()

    def send(producer: TransactionProducer) -> None:
        while not dead.is_set():
            message = Message("orders", b"%d" % next(sent))
            try:
                producer.send_in_transaction(message, local, timeout_s=0.2)
            except TransactionEnded:
                next(contradicted)
            except ReputError:
                pass  # the half message may be there or not; nothing has run, or the end is open

    kills = 6
    with broker:
        create(broker)
        with TransactionProducer(broker.address, group="shop", check=check, timeout_s=5.0) as producer:
            for _ in range(kills):
                dead.clear()
                threads = [threading.Thread(target=send, args=(producer,)) for _ in range(4)]
                for thread in threads:
                    thread.start()
                enough = len(done) + rng.randrange(5, 40)
                wait_until(lambda enough=enough: len(done) >= enough)  # type: ignore[misc]
                time.sleep(rng.random() * 0.01)
                broker.kill()
                broker.start()
                dead.set()
                broker.wait_ready()
                for thread in threads:
                    thread.join()
            wait_until(lambda: is_open(broker) == 0.0)
            time.sleep(0.5)  # another few rounds, in which nothing may happen
        counts = Counter(message.message_id for message in received(broker))
    committed = {unique_id for unique_id, state in done.items() if state is COMMIT}
    assert next(contradicted) == 0
    assert set(counts) == committed, "what was committed is there, and nothing else"
    assert set(counts.values()) <= {1}, "once each"
    assert len(done) >= 5 * kills
