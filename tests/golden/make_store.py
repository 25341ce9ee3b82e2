"""Make golden store directories: PYTHONPATH=tests python tests/golden/make_store.py NAME [rocketmq]

Writes stores/NAME-stopped.tar.xz and stores/NAME-killed.tar.xz: a store directory of the broker on PYTHONPATH, or of
Apache RocketMQ, and what it must hold. tests/process/test_golden_stores.py opens all of them with every later version.
Run it for a version whose formats are to stay readable; for an earlier one, with its packages and its tests on
PYTHONPATH.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from reput_client import Message, ReceivedMessage, TransactionState
from reput_client.blocking import Admin, Producer, PullConsumer, TransactionProducer
from support.broker_process import BrokerProcess
from support.sink_client import SinkClient, Staged

STORES = Path(__file__).parent / "stores"
OPTIONS = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16KiB",
    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "20",
    "REPUT_STORE__INDEX_SLOTS": "50",
    "REPUT_STORE__INDEX_ENTRIES": "100",
    "REPUT_DELAY__TIMER_LOG_FILE_SIZE": "4KiB",
}


def fill(address: str) -> dict[str, Any]:
    """Store messages of every kind; return what must be found."""
    expected: dict[str, Any] = {"topics": {}, "offsets": {}}
    with Admin(address) as admin, Producer(address) as producer:
        for topic in ("orders", "gone", "again", "later", "paid", "batches"):
            admin.create_topic(topic, queues=2 if topic == "orders" else 1)

        for number in range(90):
            body = b"order %d " % number + b"." * 150
            message = Message("orders", body, tag=f"tag{number % 3}", keys=[f"k{number}"], properties={"a": "b"})
            producer.send(message, queue_id=number % 2)
            expected["topics"].setdefault(f"orders/{number % 2}", []).append(body.decode())
        producer.send(Message("gone", b"deleted"))
        producer.send(Message("again", b"deleted"))
        admin.delete_topic("gone")
        admin.delete_topic("again")
        admin.create_topic("again", queues=1)
        producer.send(Message("again", b"of the new topic"))
        expected["topics"]["again/0"] = ["of the new topic"]

        expected["delayed"] = [f"delayed {number}" for number in range(6)]
        later = datetime.now(UTC) + timedelta(hours=1)
        for number, body in enumerate(expected["delayed"]):
            how = {"delay_level": 17} if number % 2 else {"deliver_at": later + timedelta(seconds=number)}
            producer.send(Message("later", body.encode(), **how))

    def end(state: TransactionState) -> Callable[[Message], TransactionState]:
        return lambda _: state

    def check(_: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    with TransactionProducer(address, group="shop", check=check) as transactions:
        for number in range(6):
            state = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)[number % 3]
            transactions.send_in_transaction(Message("paid", b"paid %d" % number), end(state))
            if state is TransactionState.COMMIT:
                expected["topics"].setdefault("paid/0", []).append(f"paid {number}")
    expected["half"] = ["paid 2", "paid 5"]

    with SinkClient(address) as sink:
        for batch in range(2):
            staged = Staged("query", batch)
            bodies = [b"batch %d row %d" % (batch, row) for row in range(3)]
            assert sink.stage(staged, "batches", 0, bodies).code == 0
            assert sink.end(staged).code == 0
            assert sink.commit("query", batch, [staged]).code == 0
            expected["topics"].setdefault("batches/0", []).extend(body.decode() for body in bodies)

    with PullConsumer(address, group="billing") as consumer:
        for queue_id, offset in ((0, 11), (1, 17)):
            consumer.commit("orders", queue_id, offset)
            expected["offsets"][f"billing/orders/{queue_id}"] = offset
        time.sleep(6)  # the tables are saved, and what follows is in the journal
        consumer.commit("orders", 0, 12)
        expected["offsets"]["billing/orders/0"] = 12
    return expected


def fill_rocketmq(apache: Any) -> dict[str, Any]:
    """The same through RocketMQ's own client, as far as the program of the conformance tests goes."""
    from conformance.workload import Sent

    expected: dict[str, Any] = {"topics": {}, "offsets": {}, "half": []}
    for number in range(90):
        body = f"order {number} " + "." * 150
        apache.put([Sent("orders", number % 2, body.encode(), {"TAGS": f"tag{number % 3}", "KEYS": f"k{number}"})])
        expected["topics"].setdefault(f"orders/{number % 2}", []).append(body)
    expected["delayed"] = [f"delayed {number}" for number in range(6)]
    later_ms = time.time_ns() // 1_000_000 + 3_600_000
    for number, body in enumerate(expected["delayed"]):
        how = {"DELAY": "17"} if number % 2 else {"TIMER_DELIVER_MS": str(later_ms + 1000 * number)}
        apache.put([Sent("later", 0, body.encode(), how)])
    for queue_id, offset in ((0, 12), (1, 17)):
        apache.ask("read", topic="orders", queueId=queue_id)  # which creates the group
        apache.ask("commit", topic="orders", queueId=queue_id, offset=offset)
        expected["offsets"][f"conformance/orders/{queue_id}"] = offset
    time.sleep(8)  # RocketMQ saves offsets every five seconds, and its checkpoint every second
    return expected


def pack(root: Path, name: str, expected: dict[str, Any]) -> None:
    """Write the archive, with holes."""
    STORES.mkdir(exist_ok=True)
    (root.parent / "expected.json").write_text(json.dumps(expected))
    archive = STORES / f"{name}.tar.xz"
    options = ["--sparse", "--owner=0", "--group=0", "--numeric-owner", "--sort=name", "--exclude=lock"]
    command = ["tar", *options, "-cJf", str(archive), "-C", str(root.parent), "expected.json", root.name]
    subprocess.run(command, check=True)
    print(f"{archive}: {archive.stat().st_size} bytes")


def main(name: str, kind: str = "reput") -> None:
    """Make both archives."""
    for end in ("stopped", "killed"):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory, "store")
            if kind == "rocketmq":
                from conformance.apache import SMALL, TIMER_LOG_BYTES, Apache, free_broker_port

                options = {
                    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": f"{SMALL.commit_log_file_size}B",
                    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": str(SMALL.consume_queue_entries),
                    "REPUT_STORE__INDEX_SLOTS": str(SMALL.index_slots),
                    "REPUT_STORE__INDEX_ENTRIES": str(SMALL.index_entries),
                    "REPUT_DELAY__TIMER_LOG_FILE_SIZE": f"{TIMER_LOG_BYTES}B",
                }
                with Apache("broker", root, port=free_broker_port(), timer_wheel=True) as apache:
                    expected = fill_rocketmq(apache)
                    if end == "stopped":
                        apache.stop()
            else:
                options = OPTIONS
                with BrokerProcess(root, environment=options) as broker:
                    expected = fill(broker.address)
                    if end == "killed":
                        broker.kill()
            pack(root, f"{name}-{end}", {"options": options, **expected})


if __name__ == "__main__":
    main(*sys.argv[1:])
