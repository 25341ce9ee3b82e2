"""Broker, client, command line and store tools work without NumPy, a library of 60 MiB that only columns need."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reput_client import PullStatus
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_protocol.exit_codes import ExitCode
from support.broker_process import BrokerProcess
from support.sink_client import SinkClient, Staged
from support.store_samples import MESSAGES, QUEUES, fill, records_of
from support.stores import flip_bit
from support.waiting import wait_until

pytestmark = pytest.mark.process

NUMPYLESS = Path(__file__).parents[1] / "support" / "numpyless.py"
SMALL = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB",
    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "64",
    "REPUT_STORE__FILE_RESERVED_TIME": "1s",
    "REPUT_STORE__DELETE_WHEN": ";".join(map(str, range(24))),
    "REPUT_STORE__DELETE_FILES_BATCH": "1000",
    "REPUT_STORE__DELETE_FILES_INTERVAL": "0s",
    "REPUT_STORE__CLEAN_INTERVAL": "100ms",
    "REPUT_STORE__CLEAN_DELAY": "0s",
    "REPUT_STORE__CONSUME_QUEUE_FLUSH_INTERVAL": "20ms",
    "REPUT_FILTERS__SQL": "true",
}


def read(consumer: PullConsumer, topic: str, *, tags: str = "*", sql: str | None = None) -> list[bytes]:
    """Everything that queue 0 hands out."""
    found: list[bytes] = []
    offset = consumer.min_offset(topic, 0)
    while offset < consumer.max_offset(topic, 0):
        result = consumer.pull(topic, 0, offset, wait_s=0.0, tags=tags, sql=sql)
        found += [bytes(message.body) for message in result.messages]
        offset = result.next_begin_offset
    return found


def use(address: str, keyed: str) -> None:
    """Put, read, filter, look up, delay and stage."""
    bodies = [b"%d" % number for number in range(100)]
    messages = [
        Message("T", body, tag="ab"[at % 2], keys=[f"{keyed}-{at}"], properties={"n": str(at)})
        for at, body in enumerate(bodies)
    ]
    with Producer(address) as producer, Admin(address) as admin, PullConsumer(address, group="g") as consumer:
        first = consumer.max_offset("T", 0) if "T" in admin.list_topics() else 0
        producer.send_batch(messages, queue_id=0)
        producer.send(Message("T", b"alone", unique_id=f"{keyed}-U"), queue_id=0)
        producer.send(Message("later", b"delayed", delay_s=0.3), queue_id=0)
        producer.send(Message("later", b"of a level", delay_level=1), queue_id=0)
        assert consumer.max_offset("T", 0) == first + 101
        assert read(consumer, "T")[-101:] == [*bodies, b"alone"]
        assert read(consumer, "T", tags="b")[-50:] == bodies[1::2]
        assert read(consumer, "T", sql="n BETWEEN 40 AND 44")[-5:] == bodies[40:45]
        for key, body in ((f"{keyed}-7", b"7"), (f"{keyed}-U", b"alone")):
            assert [bytes(message.body) for message in admin.find_messages("T", key).messages] == [body]
        assert consumer.offset_by_time("T", 0, int(time.time() * 1000) + 60_000) == first + 101
        with SinkClient(address) as sink:
            staged = Staged(keyed, 0)
            assert sink.stage(staged, "T", 0, bodies).code == 0
            assert sink.end(staged).code == 0
            assert sink.commit(keyed, 0, [staged]).code == 0
        assert read(consumer, "T")[-100:] == bodies
        wait_until(lambda: b"of a level" in read(consumer, "later"), what="a delayed message did not come")


def test_a_broker_works_without_numpy(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "store", environment=SMALL, command=(sys.executable, str(NUMPYLESS)))
    process.start()
    try:
        process.wait_ready()
        use(process.address, "one")
        process.kill()
        process.start()  # recovers log, queues, index and timers
        process.wait_ready()
        use(process.address, "two")
        with Producer(process.address) as producer, PullConsumer(process.address, group="g") as consumer:
            for _ in range(3):
                producer.send_batch([Message("T", bytes(4000))] * 50, queue_id=0)
            wait_until(lambda: consumer.min_offset("T", 0) > 0, what="nothing expired")
            first = consumer.pull("T", 0, 0, wait_s=0.0)
            assert first.status is PullStatus.OFFSET_ILLEGAL
        assert process.terminate() == 0
    finally:
        if process.running:
            process.kill()


CLIENT = """
import sys
import trio
from reput_client import Consumer, Message, PullConsumer
from reput_client.blocking import Producer

address = sys.argv[1]
bodies = [b"%d" % number for number in range(300)]
with Producer(address) as producer:
    producer.send(Message("C", b"alone", tag="t"), queue_id=0)
    producer.send_many("C", bodies, tags=["t"] * 300, queue_id=0)
    producer.send_batch([Message("C", body) for body in bodies], queue_id=0)
    producer.post(Message("C", b"posted"), queue_id=0)
    producer.flush()

async def main():
    async with PullConsumer(address, group="g") as puller:
        found = []
        while len(found) < 602:
            result = await puller.pull("C", 0, len(found))
            found += [bytes(message.body) for message in result.messages]
        assert found == [b"alone", *bodies, *bodies, b"posted"], found
        for _ in range(2):
            try:
                await puller.pull_columns("C", 0, 0)
            except ModuleNotFoundError as error:
                assert "pip install numpy" in str(error), error
            else:
                raise AssertionError("columns without NumPy")
    async with Consumer(address, group="h", topic="C") as consumer:
        with trio.fail_after(30):
            seen = 0
            async for _ in consumer:
                seen += 1
                if seen == 602:
                    break

trio.run(main)
assert "numpy" not in sys.modules
print("done")
"""


def run_without_numpy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(NUMPYLESS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_client_and_command_line_work_without_numpy(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "store") as process:
        process.wait_ready()
        script = tmp_path / "client.py"
        script.write_text(CLIENT)
        done = run_without_numpy(str(script), process.address)
        assert done.stdout == "done\n", done.stderr
        done = run_without_numpy("produce", "L", "text", "--server", process.address)
        assert done.returncode == 0, done.stderr
        done = run_without_numpy("consume", "L", "-e", "--server", process.address)
        assert "text" in done.stdout, done.stderr


def test_store_tools_work_without_numpy(tmp_path: Path) -> None:
    root = tmp_path / "store"
    options = fill(root)
    directory = str(root)
    assert run_without_numpy("store", "verify", directory).returncode == 0
    done = run_without_numpy("store", "dump", directory, "--queue", "T/0", "-O", "jsonl")
    assert done.stdout.count('"unit"') == MESSAGES // QUEUES, done.stderr
    done = run_without_numpy("store", "export", directory, "--topic", "T", "-q")
    assert done.stdout.count("\n") == MESSAGES, done.stderr
    shutil.rmtree(root / "index")
    flip_bit(min((root / "consumequeue" / "T" / "0").iterdir()), 20)
    done = run_without_numpy("store", "verify", directory)
    assert done.returncode == ExitCode.DAMAGE, done.stderr
    sizes = ("--index-slots", str(options.index_slots), "--index-entries", str(options.index_entries))
    done = run_without_numpy("store", "rebuild", directory, *sizes)
    assert done.returncode == 0, done.stderr
    done = run_without_numpy("store", "verify", directory)
    assert done.returncode == 0, done.stdout
    place = records_of(root)[-2]
    flip_bit(place.path, place.body)
    done = run_without_numpy("store", "repair", directory, "--yes")
    assert done.returncode == 0, done.stderr
    assert (root / "repair-1" / "repair.json").exists()
