"""Several brokers of one cluster by one command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import load_config
from reput_broker.serve import _SideBySide, parts_of
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from support.broker_process import BrokerProcess
from support.waiting import wait_until

pytestmark = pytest.mark.process


def test_brokers_share_a_topic_and_one_that_is_killed_comes_again(tmp_path: Path) -> None:
    started = tmp_path / "address"
    brokers = BrokerProcess(
        tmp_path / "data",
        arguments=["--brokers", "2", "--address-file", str(started)],
        environment={"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "1MiB"},
    )
    with brokers:
        wait_until(started.exists, 30.0)
        first, second = started.read_text().strip().split(",")
        assert first == brokers.address
        with Admin(second) as admin:
            admin.create_topic("wide", queues=2)
            assert set(admin.topic_configs("wide")) == {"broker-a", "broker-b"}
        with PullConsumer(first, group="readers") as consumer:  # a name service learns of it a moment later
            wait_until(lambda: len(consumer.queues("wide")) == 4, 10.0)
        with Producer(first) as producer:
            receipts = producer.send_many("wide", [b"%d" % number for number in range(2000)], batch=16)
            assert len({(receipt.store_host, receipt.queue_id) for receipt in receipts}) == 4
            (other,) = _children_of(brokers.pid, with_text="data/broker-b")
            os.kill(other, signal.SIGKILL)
            producer.send_batch([Message("wide", b"after")] * 4)
        with PullConsumer(second, group="readers") as consumer:
            # Its name service begins empty, and the other broker registers when it notices.
            wait_until(lambda: len(consumer.queues("wide")) == 4, 30.0)
            queues = consumer.queues("wide")
            ends = [consumer.max_offset(t, number, broker_name=name) for t, name, number in queues]
            assert sum(ends) == 2004
        assert _children_of(brokers.pid, with_text="data/broker-b") not in ([], [other])
        assert brokers.terminate() == 0


def _children_of(parent: int, with_text: str) -> list[int]:
    """Return the children of a process that have a text in their environment."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if with_text.encode() in Path(f"/proc/{pid}/environ").read_bytes()]


def test_what_cannot_be_the_same_for_several_brokers_is_refused_at_once() -> None:
    options = {"port": 0, "access.enabled": True, "ha_port": 7, "election.etcd": ["http://x:1"], "allow_insecure": True}
    with pytest.raises(ConfigError) as refused:
        parts_of(load_config(overrides=options), 2)
    assert [problem.key for problem in refused.value.problems] == [*("port", "ha.role", "access.admin_secret")]
    with pytest.raises(ConfigError, match="2 to 26"):
        parts_of(load_config(), 27)


def test_names_directories_and_addresses_of_the_brokers() -> None:
    config = load_config(
        overrides={"broker_name": "shop", "advertise": "example.org:7", "data_dir": "/x", "http_port": 99}
    )
    first, second = parts_of(config, 2)
    assert (first.name, first.address) == ("shop", "example.org:10911")
    assert (second.name, second.address) == ("shop-b", "example.org:10921")
    assert second.options["DATA_DIR"] == "/x/shop-b"
    assert (first.options["HTTP_PORT"], second.options["HTTP_PORT"]) == ("99", "109")
    assert first.options["NAME_SERVERS"] == "example.org:10911,example.org:10921"


def test_brokers_are_ready_once_each_is_registered_with_each_of_them() -> None:
    """With name servers of others it may be registered long before."""
    parts = parts_of(load_config(overrides={"name_servers": ["127.0.0.1:9876"], "log.format": "json"}), 2)
    ready: list[str] = []
    brokers = _SideBySide(parts, [], lambda: ready.append("ready"))
    for server in ("127.0.0.1:9876", *(part.address for part in parts)):
        for part in parts:
            assert ready == []
            event = {"event": "registered_with_name_server", "level": "info", "name_server": server}
            brokers._write(part, json.dumps(event).encode())
    assert ready == ["ready"]
