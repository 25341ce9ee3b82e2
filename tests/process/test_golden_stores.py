"""Store directories of earlier versions, and RocketMQ's, stay readable; make_store.py made them."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_broker.tenure.core import Surroundings
from reput_broker.tools.snapshot import take_snapshot
from reput_client import Message, ReceivedMessage, TransactionState
from reput_client.blocking import Admin, Producer, PullConsumer, TransactionProducer
from support.sink_client import SinkClient, Staged
from support.store_samples import examine
from support.waiting import wait_until

pytestmark = pytest.mark.process

STORES = sorted((Path(__file__).parents[1] / "golden" / "stores").glob("*.tar.xz"))


def config_of(root: Path, options: dict[str, str]) -> BrokerConfig:
    """The configuration of the broker that made it, with files that never expire and quick checks."""
    sections: dict[str, dict[str, object]] = {
        "store": {"file_reserved_time": "30000d"},
        "transactions": {"timeout": "100ms", "check_interval": "100ms", "check_max": 1_000_000},
    }
    for name, value in options.items():
        section, _, key = name.removeprefix("REPUT_").lower().partition("__")
        sections.setdefault(section, {})[key] = int(value) if value.isdecimal() else value
    return BrokerConfig(data_dir=root, port=0, http_port=None, **sections)


def read(address: str, topic: str, queue_id: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    with PullConsumer(address, group="judge") as consumer:
        while True:
            result = consumer.pull(topic, queue_id, len(found), max_messages=1000, wait_s=0.0)
            if not result.messages:
                return found
            found += result.messages


def bodies(address: str, topic: str, queue_id: int = 0) -> list[str]:
    return [message.body.decode() for message in read(address, topic, queue_id)]


def check(address: str, expected: dict[str, Any]) -> None:
    """Find everything, and let everything continue."""
    for queue, sent in expected["topics"].items():
        topic, _, queue_id = queue.partition("/")
        assert bodies(address, topic, int(queue_id)) == sent
    orders = read(address, "orders", 1)
    assert [(message.tag, message.keys) for message in orders] == [
        (f"tag{number % 3}", (f"k{number}",)) for number in range(1, 90, 2)
    ]
    wait_until(lambda: len(bodies(address, "later")) >= len(expected["delayed"]))
    assert Counter(bodies(address, "later")) == Counter(expected["delayed"])
    for name, offset in expected["offsets"].items():
        group, topic, queue_id = name.split("/")
        with PullConsumer(address, group=group) as consumer:
            assert consumer.committed(topic, int(queue_id)) == offset
    with Admin(address) as admin:
        wait_until(lambda: admin.find_messages("orders", key="k89").complete)
        found = admin.find_messages("orders", key="k89")
        assert [message.queue_offset for message in found.messages] == [44]
        assert "gone" not in admin.list_topics()
    with TransactionProducer(address, group="shop", check=lambda _: TransactionState.COMMIT):
        committed = expected["topics"].get("paid/0", [])
        if expected["half"]:
            wait_until(lambda: bodies(address, "paid") == [*committed, *expected["half"]])
    if "batches/0" in expected["topics"]:
        with SinkClient(address) as sink:
            staged = Staged("query", 2)
            assert sink.stage(staged, "batches", 0, [b"next"]).code == 0
            assert sink.end(staged).code == 0
            assert sink.commit("query", 2, [staged]).code == 0
        assert bodies(address, "batches") == [*expected["topics"]["batches/0"], "next"]
    with Producer(address) as producer:
        assert producer.send(Message("orders", b"next"), queue_id=1).queue_offset == len(orders)


@pytest.fixture(params=STORES, ids=lambda path: path.name.partition(".tar")[0])
def extracted(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    subprocess.run(["tar", "--extract", "--file", request.param, "--directory", tmp_path], check=True)


@pytest.mark.usefixtures("extracted")
@pytest.mark.trio
async def test_a_golden_store_is_read_whole_and_continued(tmp_path: Path) -> None:
    root = tmp_path / "store"
    expected: dict[str, Any] = json.loads((tmp_path / "expected.json").read_text())
    assert examine(root).report.faults == []
    # Also of RocketMQ's directories a snapshot has everything.
    take_snapshot(root, tmp_path / "copy")
    root = tmp_path / "copy"

    later = Surroundings(clock_ms=lambda: time.time_ns() // 1_000_000 + 2 * 3_600_000)
    async with Broker(config_of(root, expected["options"]), surroundings=later) as broker:
        await trio.to_thread.run_sync(partial(check, broker.address, expected))
    assert not (root / "abort").exists()
    assert examine(root).report.faults == []
