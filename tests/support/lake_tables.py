"""Tables of a lakehouse as their libraries read them, and the job that writes them as a process that is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa
from typing_extensions import override

from reput_client.blocking import Message, Producer, PullConsumer
from support.broker_process import BrokerProcess
from support.waiting import wait_until

TOPIC = "orders"
QUEUES = 4
BATCH = 250
_COMMIT_S = 0.2


def read(table_format: str, place: Path, name: str = "reput.messages") -> pa.Table:
    """Return a table's rows."""
    if table_format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(place).to_pyarrow_table()
    return iceberg(place, name).scan().to_arrow()


def bodies(table_format: str, place: Path) -> list[str]:
    """Return the bodies of a table's rows, as text."""
    return [body.decode() for body in read(table_format, place)["body"].to_pylist()]


def iceberg(place: Path, name: str = "reput.messages") -> Any:
    """Load an Iceberg table from the catalog in its warehouse."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "reput", type="sql", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=place.absolute().as_uri()
    )
    return catalog.load_table(name)


def data_files(place: Path) -> int:
    """Return how many Parquet files are there, committed or not."""
    return sum(1 for _ in place.rglob("*.parquet"))


def sums(rows: pa.Table) -> tuple[int, int, int, int]:
    """Return the numbers of rows and of distinct messages, and the sums of offsets and of body sizes."""
    with duckdb.connect() as connection:
        connection.register("messages", rows)
        found = connection.execute(
            "SELECT count(*), count(DISTINCT (topic, brokerName, queueId, queueOffset)), "
            "coalesce(sum(queueOffset), 0), coalesce(sum(octet_length(body)), 0) FROM messages"
        ).fetchone()
    assert found is not None
    return tuple(map(int, found))  # type: ignore[return-value]


@contextmanager
def load(broker: BrokerProcess) -> Iterator[None]:
    """Send blocks of messages, at some thousand per second, while the block runs."""
    ended = threading.Event()

    def send() -> None:
        number = 0
        with Producer(broker.address, group="p") as producer:
            while not ended.wait(0.03):
                block = [Message(TOPIC, b"%d" % n * (n % 7), tag="ab"[n % 2]) for n in range(number, number + 40)]
                producer.send_batch(block, queue_id=number // 40 % QUEUES)
                number += 40

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


class _Process(subprocess.Popen[str]):
    """Is killed where a test fails in its context, which would otherwise wait for its end."""

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.kill()
        super().__exit__(kind, error, trace)


class Job:
    """The job as a process.

    Args:
        server: the broker with the topic, or several of a group.
        table_format: of the table.
        place: of the table.
        topic: what it copies.
        command: what stands before the arguments of `archive`.
        environment: of the process; None: this one's.
    """

    def __init__(
        self,
        server: str,
        table_format: str,
        place: Path,
        command: Sequence[str] = (sys.executable, "-m", "reput_cli", "pipeline", "archive"),
        environment: Mapping[str, str] | None = None,
        topic: str = TOPIC,
    ) -> None:
        self.place = place
        self._log = place.parent / "job.log"
        self._command = [*command, "--server", server]
        self._command += ["--topic", topic, "--to", str(place), "--format", table_format]
        self._environment = environment

    def start(self, *more: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return _Process(
                [*self._command, *more], stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )

    def follow(self, *more: str) -> subprocess.Popen[str]:
        return self.start("--follow", "--every", "0.05", "--batch-messages", str(BATCH), *more)

    def tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-20:])


def read_by_consumer(address: str) -> tuple[int, int, int, int]:
    """Return what `sums` does: rows, distinct messages, sums of offsets and of body sizes."""
    rows, places, offsets, size = 0, set(), 0, 0
    with PullConsumer(address, group="judge", timeout_s=30.0) as consumer:
        for queue_id in range(QUEUES):
            at, end = consumer.min_offset(TOPIC, queue_id), consumer.max_offset(TOPIC, queue_id)
            while at < end:
                pulled = consumer.pull(TOPIC, queue_id, at)
                for message in pulled.messages:
                    rows += 1
                    places.add((queue_id, message.queue_offset))
                    offsets += message.queue_offset
                    size += len(message.body)
                at = pulled.next_begin_offset
    return rows, len(places), offsets, size


def kill_and_restart(broker: BrokerProcess, job: Job, kills: int, rng: random.Random) -> None:
    """Kill a job that follows the topic `kills` times, end it by SIGTERM, and let it read the rest.

    It is killed when some files were written since its start, within the time of a commit, so that the kill is before,
    within or after it.
    """
    with load(broker):
        for _ in range(kills):
            with job.follow() as process:
                _wait_for_files(job, process, data_files(job.place) + rng.randrange(1, 6))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(rng.uniform(0.0, _COMMIT_S))
                process.kill()
                assert process.wait() == -signal.SIGKILL
        with job.follow() as process:
            _wait_for_files(job, process, data_files(job.place) + 2)
            process.terminate()
            ended = json.loads(process.communicate()[0].splitlines()[-1])
            assert (process.returncode, ended["status"]) == (0, "done"), job.tail()
    with job.start() as process:
        process.communicate()
        assert process.returncode == 0, job.tail()


def _wait_for_files(job: Job, process: subprocess.Popen[str], files: int) -> None:
    wait_until(lambda: data_files(job.place) >= files or process.poll() is not None, what=job.tail, step_s=0.005)
    assert process.poll() is None, job.tail()
