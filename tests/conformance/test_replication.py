"""A Reput slave of an Apache master, and an Apache slave of a Reput master: the same log, to the byte.

Messages are sent before, between and after restarts of either, and while either is killed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from conformance.apache import Apache, as_request, free_broker_port
from conformance.counts import COUNTS
from conformance.reput_broker_side import broker_process, send_lists
from conformance.test_broker_handover import for_apache, for_reput
from conformance.test_store_handover import Lists, apache_puts
from conformance.workload import Sent
from reput_broker.tables.config_file import decode
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import ReputError
from support.broker_process import BrokerProcess, free_port
from support.raw_client import RawClient
from support.waiting import wait_until

pytestmark = pytest.mark.process

COUNT = 150
DEADLINE_S = 30


def log_of(data_dir: Path) -> dict[str, bytes]:
    """The files of the log that hold anything; a broker prepares the next ones in advance."""
    files = {path.name: path.read_bytes() for path in sorted((data_dir / "commitlog").glob("0*"))}
    return {name: data for name, data in files.items() if any(data)}


def wait_for_the_same_log(master: Path, slave: Path, *, from_file: int = 0) -> None:
    """Return once the slave's log is that of the master from some file on."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        theirs = dict([*log_of(master).items()][from_file:])
        ours = log_of(slave)
        if ours == theirs:
            COUNTS["bytes of replicated logs equal"] += sum(map(len, ours.values()))
            return
        if time.monotonic() > deadline:
            assert ours.keys() == theirs.keys()
            for name in ours:
                assert ours[name] == theirs[name], f"{name} differs"
        time.sleep(0.05)


def wait_for_a_slave(master: BrokerProcess) -> None:
    wait_until(lambda: "slave_connected" in master.log_path.read_text(), DEADLINE_S)


def wait_until_it_grows(data_dir: Path) -> None:
    """Return once more has been added to the log."""
    before, deadline = log_of(data_dir), time.monotonic() + DEADLINE_S
    while log_of(data_dir) == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def constant_load(address: str) -> Iterator[None]:
    """Messages without a pause, whatever becomes of them."""
    has_ended = threading.Event()

    def send() -> None:
        with Producer(address) as producer:
            while not has_ended.is_set():
                with suppress(ReputError):
                    producer.send(Message("orders", bytes(500)), queue_id=0)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


def queues_of(data_dir: Path) -> dict[str, bytes]:
    root = data_dir / "consumequeue"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("0*") if path.is_file()}


def loads(make: Callable[[int, int], Lists], seed: int) -> Iterator[Lists]:
    """Different messages each time."""
    while True:
        yield make(seed, COUNT)
        seed += 1


class ReputSlave:
    """A Reput process that copies the log of a RocketMQ broker."""

    def __init__(self, data_dir: Path, master_port: int, ha_port: int) -> None:
        options = {
            "REPUT_BROKER_ID": "1",
            "REPUT_HA__ROLE": "SLAVE",
            "REPUT_HA__MASTER": f"127.0.0.1:{master_port}",
            "REPUT_HA__MASTER_HA_ADDRESS": f"127.0.0.1:{ha_port}",
        }
        self.process: BrokerProcess = broker_process(data_dir, free_port(), **options)


@pytest.mark.long
def test_a_reput_slave_of_an_apache_master(tmp_path: Path) -> None:
    master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
    port, ha_port = free_broker_port(), free_port()
    load = loads(for_apache, 51)
    many = [as_request(Sent("orders", 0, bytes(500)))] * 1000
    with ReputSlave(slave_dir, port, ha_port).process as slave:
        with Apache("broker", master_dir, port=port, ha_port=ha_port) as master:
            apache_puts(master, next(load), done="SEND_OK")
            wait_for_the_same_log(master_dir, slave_dir)

            master.send("put", messages=many, batch=False)
            wait_until_it_grows(slave_dir)
            slave.kill()
            killed_at = log_of(master_dir)
            slave.start()
            assert all(line["status"] == "SEND_OK" for line in master.lines())
            assert log_of(master_dir) != killed_at, "the load had ended before the kill"
            wait_for_the_same_log(master_dir, slave_dir)

            slave.terminate()
            apache_puts(master, next(load), done="SEND_OK")
            slave.start()
            slave.wait_ready()
            wait_for_the_same_log(master_dir, slave_dir)
            master.send("put", messages=many, batch=False)
            wait_until_it_grows(slave_dir)
            master.kill()
        with Apache("broker", master_dir, port=port, ha_port=ha_port) as master:
            apache_puts(master, next(load), done="SEND_OK")
            wait_for_the_same_log(master_dir, slave_dir)
            master.stop()
        with Apache("broker", master_dir, port=port, ha_port=ha_port) as master:
            apache_puts(master, next(load), done="SEND_OK")
            wait_for_the_same_log(master_dir, slave_dir)
            master.stop()
    assert queues_of(slave_dir) == queues_of(master_dir)
    COUNTS["queue files of a slave equal"] += len(queues_of(slave_dir))


@pytest.mark.long
def test_a_reput_slave_counts_for_a_sync_master_of_apache(tmp_path: Path) -> None:
    """RocketMQ answers SEND_OK only once the slave has reported the message; and the slave may begin late."""
    master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
    port, ha_port = free_broker_port(), free_port()
    load = loads(for_apache, 61)
    with Apache("broker", master_dir, port=port, ha_port=ha_port) as master:
        apache_puts(master, next(load), done="SEND_OK")
        master.stop()
    files = len(log_of(master_dir))
    assert files > 1
    with (
        Apache("broker", master_dir, port=port, ha_port=ha_port, role="SYNC_MASTER", in_sync_replicas=2) as master,
        ReputSlave(slave_dir, port, ha_port).process,
    ):
        wait_for_the_same_log(master_dir, slave_dir, from_file=files - 1)
        apache_puts(master, next(load), done="SEND_OK")
        wait_for_the_same_log(master_dir, slave_dir, from_file=files - 1)


@pytest.mark.long
def test_an_apache_slave_of_a_reput_master(tmp_path: Path) -> None:
    master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
    port, ha_port, slave_port = free_port(), free_port(), free_broker_port()
    load = loads(for_reput, 71)
    slave_options = {"port": slave_port, "role": "SLAVE", "ha_master": f"127.0.0.1:{ha_port}"}

    def apache_slave() -> Apache:
        return Apache("broker", slave_dir, **slave_options)  # type: ignore[arg-type]

    with broker_process(master_dir, port, REPUT_HA_PORT=str(ha_port)) as master:
        with apache_slave() as slave:
            wait_for_a_slave(master)  # it begins at the last file of the log
            send_lists(master.address, next(load))
            wait_for_the_same_log(master_dir, slave_dir)
            with constant_load(master.address):
                wait_until_it_grows(slave_dir)
                slave.kill()
        send_lists(master.address, next(load))
        with apache_slave() as slave:
            wait_for_the_same_log(master_dir, slave_dir)

            with constant_load(master.address):
                wait_until_it_grows(slave_dir)
                master.kill()
                master.start()
                master.wait_ready()
                wait_until_it_grows(slave_dir)
            send_lists(master.address, next(load))
            wait_for_the_same_log(master_dir, slave_dir)

            master.terminate()
            master.start()
            master.wait_ready()
            send_lists(master.address, next(load))
            wait_for_the_same_log(master_dir, slave_dir)
            slave.stop()
        send_lists(master.address, next(load))
        with apache_slave() as slave:
            wait_for_the_same_log(master_dir, slave_dir)
            slave.stop()
    assert queues_of(slave_dir) == queues_of(master_dir)
    COUNTS["queue files of a slave equal"] += len(queues_of(slave_dir))


def test_an_apache_slave_makes_messages_replicated(tmp_path: Path) -> None:
    master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
    port, ha_port = free_port(), free_port()
    with (
        broker_process(master_dir, port, REPUT_HA_PORT=str(ha_port)) as master,
        Apache("broker", slave_dir, port=free_broker_port(), role="SLAVE", ha_master=f"127.0.0.1:{ha_port}"),
        Producer(master.address, ack="replicated", timeout_s=10) as producer,
    ):
        wait_for_a_slave(master)
        send_lists(master.address, for_reput(81, 20))
        wait_for_the_same_log(master_dir, slave_dir)
        for number in range(20):
            producer.send(Message("orders", b"%d" % number), queue_id=0)
            assert log_of(slave_dir) == log_of(master_dir)


def tables_of(data_dir: Path) -> dict[str, Any]:
    """The tables in the files of a broker that has stopped."""
    config = data_dir / "config"
    offsets = decode((config / "consumerOffset.json").read_bytes())["offsetTable"]
    return {
        "queues": decode((config / "topics.json").read_bytes())["topicConfigTable"]["orders"]["readQueueNums"],
        "retries": decode((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]["g"][
            "retryMaxTimes"
        ],
        "offsets": offsets["orders@conformance"],
        "levels": decode((config / "delayOffset.json").read_bytes())["offsetTable"],
    }


def mqadmin(apache: Apache, *arguments: str) -> str:
    (line,) = apache.ask("admin", arguments=list(arguments))
    printed: str = line["printed"]
    return printed


@pytest.mark.long
def test_an_apache_slave_takes_over_the_tables_of_a_reput_master(tmp_path: Path) -> None:
    master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
    port, ha_port = free_broker_port(), free_port()
    options = {"REPUT_HA_PORT": str(ha_port), "REPUT_FAST_PORT": str(port - 2)}
    with broker_process(master_dir, port, **options) as master:
        with Admin(master.address) as admin, PullConsumer(master.address, group="conformance") as consumer:
            admin.create_topic("orders", queues=3)
            with RawClient(master.address) as raw:
                group = SubscriptionGroupConfig("g", retry_max_times=3)
                raw.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group.to_json())
            with Producer(master.address) as producer:
                producer.send(Message("orders", b"delayed", delay_level=1), queue_id=1)
                producer.send(Message("orders", b"at once"), queue_id=0)
                producer.send(Message("orders", b"waits", delay_s=3600), queue_id=0)
            consumer.commit("orders", 0, 1)
            found = consumer.pull("orders", queue_id=1, offset=0, wait_s=10.0)
            assert [message.body for message in found.messages] == [b"delayed"]
        slave_options = {"role": "SLAVE", "ha_master": f"127.0.0.1:{ha_port}", "master": master.address}
        with Apache("broker", slave_dir, port=free_broker_port(), timer_wheel=True, **slave_options) as slave:  # type: ignore[arg-type]
            wait_for_a_slave(master)
            printed = mqadmin(slave, "haStatus", "-b", master.address)
            assert "#SlaveNum\t1" in printed
            assert "OK" in printed
            slave.stop()
    assert tables_of(slave_dir) == {"queues": 3, "retries": 3, "offsets": {"0": 1}, "levels": {"1": 1}}
    timer = (slave_dir / "config" / "timermetrics").read_bytes()
    assert decode(timer)["timingCount"]["orders"]["count"] >= 1
    COUNTS["tables taken over"] += len(tables_of(slave_dir))


@pytest.mark.long
def test_a_reput_slave_takes_over_the_tables_of_an_apache_master(tmp_path: Path) -> None:
    master_dir, slave_dir = tmp_path / "master", tmp_path / "slave"
    port, ha_port = free_broker_port(), free_port()
    with Apache("broker", master_dir, port=port, ha_port=ha_port) as master:
        address = f"127.0.0.1:{port}"
        mqadmin(master, "updateTopic", "-b", address, "-t", "orders", "-r", "3", "-w", "3")
        mqadmin(master, "updateSubGroup", "-b", address, "-g", "g", "-r", "3")
        mqadmin(master, "updateSubGroup", "-b", address, "-g", "conformance")
        apache_puts(master, [[Sent("orders", 0, b"x")]], done="SEND_OK")
        master.ask("commit", topic="orders", queueId=0, offset=1)
        with ReputSlave(slave_dir, port, ha_port).process as slave:
            deadline = time.monotonic() + DEADLINE_S
            offsets = slave_dir / "config" / "consumerOffset.json"
            while not (offsets.exists() and b"orders@conformance" in offsets.read_bytes()):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            printed = mqadmin(master, "haStatus", "-b", slave.address)
            assert f"#MasterAddr\t{address}" in printed
        master.stop()
    (slave_dir / "config" / "delayOffset.json").write_bytes(b'{"offsetTable":{}}')
    assert tables_of(slave_dir) == {"queues": 3, "retries": 3, "offsets": {"0": 1}, "levels": {}}
    COUNTS["tables taken over"] += len(tables_of(slave_dir))
