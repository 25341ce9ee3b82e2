"""Failover of three real brokers by a real etcd: kill, hand-over, a stopped master, an etcd that is away.

One cluster serves all tests; each begins with three members in sync.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_client.blocking import Consumer, Message, PopConsumer, Producer, PullConsumer
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import Header
from schedules.scene import create, verdict_of
from support.cluster_of_three import ClusterOfThree
from support.etcd_process import MISSING
from support.pops import acknowledge, pop
from support.raw_client import RawClient, in_letters
from support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.fault, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

LEASE_S = 3.0
TOPIC = "failover"
POPPED_FOR_MS = 8000


class Group:
    """The cluster, and the bodies that were acknowledged as replicated."""

    def __init__(self, cluster: ClusterOfThree) -> None:
        self.cluster = cluster
        self.stored: list[bytes] = []

    def master(self) -> int:
        return self.cluster.wait_in_sync(0, 1, 2)

    def put(self, client: RawClient, body: bytes) -> Header:
        """Put one message; note it if it is acknowledged."""
        header, _ = client.request(RequestCode.SEND_MESSAGE_V2, in_letters(TOPIC, ack="replicated"), body)
        if header.code == 0:
            self.stored.append(body)
        return header

    def put_many(self, number: int, count: int, name: str) -> None:
        with RawClient(self.cluster.brokers[number].address) as client:
            for index in range(count):
                self.put_stored(client, b"%s %d" % (name.encode(), index))

    def put_stored(self, client: RawClient, body: bytes) -> None:
        """Put one message, once the slaves are in sync: on a busy machine one falls behind for a moment."""

        def answer() -> Header | None:
            header = self.put(client, body)
            return None if (header.remark or "").startswith("NO_REPLICA") else header

        header = wait_until(answer, 20.0, what="the slaves are out of sync")
        assert header is not None
        assert header.code == 0, header.remark

    def assert_nothing_missing(self, number: int) -> None:
        """All that was acknowledged is read from this broker, once and in order."""
        with PullConsumer(self.cluster.brokers[number].address, group="g") as consumer:
            found: list[bytes] = []
            while len(found) < consumer.max_offset(TOPIC, 0):
                found += [bytes(message.body) for message in consumer.pull(TOPIC, 0, len(found)).messages]
        assert [body for body in found if body in set(self.stored)] == self.stored


@pytest.fixture(scope="module")
def group(module_path: Path) -> Iterator[Group]:
    options = {"REPUT_HA__IN_SYNC_REPLICAS": "2", "REPUT_TOPICS__DEFAULT_QUEUES": "1"}
    with ClusterOfThree(module_path, lease=f"{LEASE_S:g}s", environment=options) as cluster:
        yield Group(cluster)


def test_a_killed_master_is_replaced_and_returns_as_a_slave(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    group.put_many(old, 50, "before the kill")
    cluster.brokers[old].kill()
    new = cluster.wait_master()
    assert new != old
    cluster.wait_in_sync(*{0, 1, 2} - {old})
    group.put_many(new, 50, "after the kill")
    cluster.brokers[old].start()
    cluster.brokers[old].wait_ready()
    assert group.master() == new
    group.assert_nothing_missing(new)


def test_a_hand_over_by_command_loses_nothing(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    new = (old + 1) % 3
    asked = (old + 2) % 3  # a slave, which names the master
    group.put_many(old, 50, "before the hand-over")
    command = [sys.executable, "-m", "reput_cli", "broker", "promote", str(new)]
    subprocess.run([*command, "--server", cluster.brokers[asked].address], check=True, timeout=30)
    assert cluster.wait_in_sync(0, 1, 2) == new
    group.put_many(new, 50, "after the hand-over")
    group.assert_nothing_missing(new)


def test_a_schedule_sends_for_each_time_once_over_a_hand_over_and_a_kill(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    plans = create(cluster.addresses, [(f"@every {ms}ms", "all") for ms in (1000, 1000, 1500)])
    command = [sys.executable, "-m", "reput_cli", "broker", "promote", str((old + 1) % 3)]
    subprocess.run([*command, "--server", cluster.brokers[old].address], check=True, timeout=30)
    master = group.master()
    cluster.brokers[master].kill()
    cluster.wait_master()
    verdict = verdict_of(cluster.addresses, plans)
    cluster.brokers[master].start()
    cluster.brokers[master].wait_ready()
    assert not verdict.wrong, verdict
    assert verdict.times >= 6


def test_clients_follow_a_hand_over_and_a_kill(group: Group) -> None:
    """A group gets everything that was acknowledged, once; a producer needs no retries for what was not stored."""
    cluster, old = group.cluster, group.master()
    addresses = cluster.addresses
    stored: list[bytes] = []
    got: list[bytes] = []
    unknown: set[bytes] = set()
    ended, sent = threading.Event(), threading.Event()

    def produce() -> None:
        with Producer(addresses, ack="replicated", timeout_s=20.0) as producer:
            number = 0
            while not ended.is_set():
                body = b"client %d" % (number := number + 1)
                try:
                    producer.send(Message("clients", body))
                    stored.append(body)
                except (SendOutcomeUnknown, AckNotReached):
                    unknown.add(body)
                time.sleep(0.005)
        sent.set()

    def consume() -> None:
        with Consumer(addresses, group="clients", topic="clients", commit_interval_s=0.2) as consumer:
            while not (sent.is_set() and set(stored) <= set(got)):
                message = consumer.receive(0.5)
                if message is not None:
                    got.append(bytes(message.body))

    def more(count: int) -> None:
        goal, deadline = len(stored) + count, time.monotonic() + 30
        while len(stored) < goal or len(got) < goal - len(unknown):
            assert time.monotonic() < deadline, (len(stored), len(got), goal, cluster.tails())
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.02)

    threads = [threading.Thread(target=produce, daemon=True), threading.Thread(target=consume, daemon=True)]
    for thread in threads:
        thread.start()
    try:
        more(50)
        new = (old + 1) % 3
        command = [sys.executable, "-m", "reput_cli", "broker", "promote", str(new)]
        subprocess.run([*command, "--server", cluster.brokers[old].address], check=True, timeout=30)
        more(50)
        assert group.master() == new
        cluster.brokers[new].kill()
        more(50)
        cluster.brokers[new].start()
        cluster.brokers[new].wait_ready()
    finally:
        ended.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    # Messages may come twice: a new master has the offsets as they were up to a second ago.
    assert set(stored) <= set(got) <= set(stored) | unknown


def test_a_new_master_redelivers_what_was_popped_and_not_acknowledged(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    bodies = [b"%d" % number for number in range(30)]
    with RawClient(cluster.brokers[old].address) as client:
        for body in bodies[:20]:
            client.request(RequestCode.SEND_MESSAGE_V2, in_letters("popped", ack="replicated"), body)
        popped = pop(client, "pops", "popped", invisibleTime=str(POPPED_FOR_MS))
        assert [one.record.body for one in popped] == bodies[:20]
        for one in popped[:12]:
            acknowledge(client, "pops", "popped", one)
        # The copies have all that is before these in the log.
        for body in bodies[20:]:
            client.request(RequestCode.SEND_MESSAGE_V2, in_letters("popped", ack="replicated"), body)
    cluster.brokers[old].kill()
    found: dict[bytes, list[int]] = {body: [] for body in bodies}
    with RawClient(cluster.brokers[cluster.wait_master()].address) as client:
        deadline = time.monotonic() + 60
        while not all(found[body] for body in bodies[12:]):
            assert time.monotonic() < deadline, found
            for one in pop(client, "pops", "popped", pollTime="500"):
                found[one.record.body].append(one.record.reconsume_times)
                acknowledge(client, "pops", "popped", one)
        assert pop(client, "pops", "popped", pollTime="500") == []
    assert [found[body] for body in bodies] == [[]] * 12 + [[1]] * 8 + [[0]] * 10
    cluster.brokers[old].start()
    cluster.brokers[old].wait_ready()


def test_a_pop_consumer_settles_at_the_new_master_what_it_has_from_the_old_one(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    bodies = [b"%d" % number for number in range(10)]
    addresses = cluster.addresses
    with Producer(addresses, ack="replicated", timeout_s=20.0) as producer:
        producer.send_batch([Message("settled", body) for body in bodies])
        with PopConsumer(addresses, group="workers", topic="settled", timeout_s=20.0) as consumer:
            popped = consumer.receive(invisible_s=60.0)
            assert [message.body for message in popped] == bodies
            producer.send(Message("settled", b"behind"))  # the copies have all that is before it
            wait_until(lambda: all(_has_group(cluster, number, "workers") for number in range(3)), 30.0)
            cluster.brokers[old].kill()
            consumer.ack(popped[:4])
            popped[4].extend(60.0)
            popped[4].ack()
            for message in popped[5:]:
                message.nack()
            found: list[bytes] = []
            deadline = time.monotonic() + 60
            while len(found) < 6 and time.monotonic() < deadline:
                messages = consumer.receive(wait_s=5.0)
                found += [message.body for message in messages]
                consumer.ack(messages)
            assert sorted(found) == [*bodies[5:], b"behind"]
            assert consumer.receive(wait_s=2.0) == []
    cluster.brokers[old].start()
    cluster.brokers[old].wait_ready()


def _has_group(cluster: ClusterOfThree, number: int, group: str) -> bool:
    table = cluster.brokers[number].data_dir / "config" / "subscriptionGroup.json"
    return table.exists() and f'"{group}"' in table.read_text()


def test_a_stopping_master_hands_over(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    assert cluster.brokers[old].terminate() == 0
    began = time.monotonic()
    new = cluster.wait_master()
    assert time.monotonic() - began < LEASE_S / 2, "no lease had to end"
    cluster.brokers[old].start()
    cluster.brokers[old].wait_ready()
    group.put_many(group.master(), 10, "after the stop")
    group.assert_nothing_missing(new)


def test_a_master_that_was_stopped_beyond_its_lease_acknowledges_nothing(group: Group) -> None:
    cluster, old = group.cluster, group.master()
    with RawClient(cluster.brokers[old].address) as client:
        group.put_stored(client, b"before the stop")
        os.kill(cluster.brokers[old].pid, signal.SIGSTOP)
        try:
            ext = in_letters(TOPIC, ack="flushed")
            client.send(RequestCode.SEND_MESSAGE_V2, ext, b"to a stopped process")
            (new,) = {_other_master(cluster, old)}
        finally:
            os.kill(cluster.brokers[old].pid, signal.SIGCONT)
        header, _, _ = client.receive()
        assert header.code != 0
        assert header.remark is not None
        assert "lease" in header.remark or "slave" in header.remark, header.remark
    assert group.master() == new
    group.put_many(new, 10, "after the stop of the process")
    group.assert_nothing_missing(new)


def _other_master(cluster: ClusterOfThree, old: int) -> int:
    deadline = time.monotonic() + 20
    while True:
        for number in {0, 1, 2} - {old}:
            if cluster.status(number)["election"]["lease_left_s"] is not None:
                return number
        assert time.monotonic() < deadline, cluster.tails()
        time.sleep(0.05)


def test_without_etcd_the_master_serves_until_its_lease_ends_and_comes_back(group: Group) -> None:
    cluster, master = group.cluster, group.master()
    cluster.etcd.pause()
    try:
        group.put_many(master, 10, "while etcd is away")
        deadline = time.monotonic() + 20
        while True:
            try:
                with RawClient(cluster.brokers[master].address) as client:
                    header = group.put(client, b"while the lease ends %d" % len(group.stored))
            except ConnectionError:
                continue  # closed at the change of role
            remark = header.remark or ""
            if remark.startswith("NOT_MASTER"):
                break
            # A put that was under way at the fence has an unknown outcome.
            assert header.code == 0 or "the lease on being master has ended" in remark, remark
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert cluster.master() is None
    finally:
        cluster.etcd.resume()
    new = group.master()
    group.put_many(new, 10, "after etcd is back")
    group.assert_nothing_missing(new)
