"""Brokers that are stopped with SIGTERM while producers with default settings send: no outcome is unknown."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.errors import ReputError
from support.broker_process import BrokerProcess, free_port

pytestmark = pytest.mark.process

SENDERS = 6
STOPS = 3


def test_no_send_over_a_stop_is_of_unknown_outcome(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store", port=free_port()) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t", queues=1)
        ended = threading.Event()
        stored: list[bytes] = []
        failures: list[ReputError] = []

        def send(producer: Producer, sender: int) -> None:
            number = 0
            while not ended.is_set():
                body = b"%d of %d" % (number, sender)
                try:
                    producer.send(Message("t", body), timeout_s=120.0)
                except ReputError as error:
                    failures.append(error)
                    return
                stored.append(body)
                number += 1

        def post(producer: Producer, sender: int) -> None:
            number = 0
            while not ended.is_set():
                bodies = [b"%d posted by %d" % (number := number + 1, sender) for _ in range(100)]
                try:
                    for body in bodies:
                        producer.post(Message("t", body))
                    producer.flush()
                except ReputError as error:
                    failures.append(error)
                    return
                stored.extend(bodies)

        with Producer(broker.address) as shared, Producer(broker.address, timeout_s=120.0) as poster:
            threads = [threading.Thread(target=send, args=(shared, sender)) for sender in range(SENDERS)]
            threads.append(threading.Thread(target=post, args=(poster, SENDERS)))
            for thread in threads:
                thread.start()
            for _ in range(STOPS):
                until = len(stored) + 200
                while len(stored) < until and not failures:
                    ended.wait(0.005)
                assert broker.terminate() == 0
                broker.start()
                broker.wait_ready()
            ended.set()
            for thread in threads:
                thread.join()
        assert not failures
        found: Counter[bytes] = Counter()
        with PullConsumer(broker.address, group="g") as consumer:
            offset = 0
            while messages := (pulled := consumer.pull("t", 0, offset, wait_s=0)).messages:
                found.update(message.body for message in messages)
                offset = pulled.next_begin_offset
        assert found == Counter(stored)
