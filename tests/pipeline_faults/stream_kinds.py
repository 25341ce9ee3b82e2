"""Streams that run on while the masters of a group are killed: every row arrives once, and no one restarts anything."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow.parquet as pq

from pipeline_faults.outcomes import Outcome
from pipeline_faults.scene import PATIENCE_S, GroupScene, Trial, group_scene
from reput_client.blocking import Admin, Message, Producer
from reput_client.errors import ReputError
from support import lake_tables
from support.sink_client import published

TOPIC: Final = "lines"
COPIES: Final = "copies"
QUEUES: Final = 4
FAILOVERS: Final = 10
_BLOCK: Final = 20
_PAUSE_S: Final = 0.1


def masters_killed(trial: Trial) -> Outcome:
    """The masters of an elected group are killed, ten in the given time, under a load and three streams.

    One query writes to the broker, exactly once; one writes Parquet files; the job `archive` follows to a Delta table.
    The driver starts the first one again by itself (`keep_running`); the others must not end.
    """
    outcome = Outcome()
    with group_scene(trial, TOPIC, QUEUES) as found:
        with Admin(found.addresses) as admin:
            admin.create_topic(COPIES, queues=QUEUES)
        ended = found.directory / "ended"
        arguments = {
            "--broker": found.addresses,
            "--topic": TOPIC,
            "--copies": COPIES,
            "--directory": str(found.directory / "stream"),
            "--ended": str(ended),
        }
        job = lake_tables.Job(found.addresses, "delta", found.directory / "table", topic=TOPIC)
        with (
            found.driving("stream_driver.py", *itertools.chain(*arguments.items())) as driver,
            job.start("--follow", "--every", "1") as archiver,
        ):
            with _load(found, outcome) as sent:
                for _ in range(FAILOVERS):
                    time.sleep(trial.minutes * 60 / FAILOVERS * trial.random.uniform(0.8, 1.0))
                    found.lose_master(outcome)
                    outcome.rounds += 1
            ended.touch()
            with suppress(subprocess.TimeoutExpired):
                driver.wait(PATIENCE_S)
            found.expect_end(outcome, "the queries", 0, driver.poll())
            outcome.expect(archiver.poll() is None, f"the job has ended: {job.tail()}")
            archiver.terminate()
            archiver.communicate()
        with job.start() as archiver:  # what it had not committed by then
            archiver.communicate()
            outcome.expect(archiver.returncode == 0, job.tail())
        _compare(found, outcome, sent, lake_tables.bodies("delta", job.place))
        restarts = found.log.read_text(errors="replace").count("the query starts again")
        outcome.notes.append(f"the query to the broker was started again {restarts} times by its program")
    return outcome


def _compare(found: GroupScene, outcome: Outcome, sent: list[str], in_table: list[str]) -> None:
    address = found.master_address
    stored = [body.decode() for queue in published(address, TOPIC).values() for body in queue]
    outcome.compare("sent and stored", sent, stored)
    copies = [body.decode() for queue in published(address, COPIES).values() for body in queue]
    outcome.compare("copies in the broker", stored, copies)
    files = pq.ParquetDataset(found.directory / "stream" / "parquet").read(columns=["body"])
    outcome.compare("Parquet files", stored, (body.decode() for body in files["body"].to_pylist()))
    outcome.compare("Delta table", stored, in_table)


@contextmanager
def _load(found: GroupScene, outcome: Outcome) -> Iterator[list[str]]:
    """Send while the block runs, with the default settings; yields what has a receipt, complete at the end."""
    ended, sent = threading.Event(), list[str]()

    def send() -> None:
        try:
            with Producer(found.addresses, group="p", ack="replicated", timeout_s=60.0) as producer:
                for number in itertools.count():
                    if ended.wait(_PAUSE_S):
                        return
                    bodies = [f"{number:07d}-{index}" for index in range(_BLOCK)]
                    producer.send_batch([Message(TOPIC, body.encode()) for body in bodies])
                    sent.extend(bodies)
        except ReputError as error:
            outcome.violations.append(f"after {len(sent)} messages a block has no receipt: {error}")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        ended.set()
        sender.join()
