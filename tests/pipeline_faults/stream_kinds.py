"""Streams that run on while the masters of a group are killed: every row arrives once, and no one restarts anything."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow.parquet as pq

from cluster_faults.network import lose_at
from pipeline_faults.outcomes import Outcome
from pipeline_faults.scene import PATIENCE_S, GroupScene, Ports, Trial, group_scene
from pipeline_faults.steps import FAILOVER_STEPS
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
    """The masters of an elected group die, ten in the given time, under a load and three streams.

    Every other one dies at a step of a batch that is being written, the others at any moment. One query writes to the
    broker, exactly once; one writes Parquet files; the job `archive` follows to a Delta table. The driver starts the
    first one again by itself (`keep_running`); the others must not end. With points, a master dies at each of them.
    """
    with group_scene(trial, TOPIC, QUEUES) as found:
        return _streamed(trial, found, lambda outcome, step, driver: found.lose_master(outcome, step, driver))


def packets_lost(trial: Trial) -> Outcome:
    """As `masters_killed`, with TLS and a user, on a network that loses packets meanwhile.

    Either some of the packets of all brokers, or all of the master's for a time, which is within its lease or longer.
    """

    @contextmanager
    def amid(master: Ports, all_ports: list[Ports]) -> Iterator[None]:
        if trial.random.random() < 0.5:
            share, lossy = trial.random.uniform(0.05, 0.25), all_ports
        else:
            share, lossy = 1.0, [master]
        undos = [lose_at(port, share) for ports in lossy for port in ports]
        try:
            time.sleep(trial.random.uniform(0.5, 10.0))
            if share < 1.0:
                yield
        finally:
            for undo in undos:
                undo()
        if share == 1.0:
            yield

    with group_scene(trial, TOPIC, QUEUES, secured=True) as found:
        return _streamed(trial, found, lambda outcome, step, driver: found.lose_master(outcome, step, driver, amid))


def _streamed(
    trial: Trial, found: GroupScene, lose: Callable[[Outcome, str, subprocess.Popen[bytes]], None]
) -> Outcome:
    outcome = Outcome()
    steps = itertools.cycle(trial.random.sample(FAILOVER_STEPS, len(FAILOVER_STEPS)))
    deaths = (
        trial.chosen(FAILOVER_STEPS)
        if trial.points
        else [next(steps) if number % 2 else "" for number in range(FAILOVERS)]
    )
    with Admin(found.addresses, tls=found.tls) as admin:
        admin.create_topic(COPIES, queues=QUEUES)
    ended = found.directory / "ended"
    arguments = {
        "--broker": found.addresses,
        "--topic": TOPIC,
        "--copies": COPIES,
        "--directory": str(found.directory / "stream"),
        "--ended": str(ended),
    }
    more: list[str] = []
    if found.tls is not None:
        arguments["--tls-ca"] = str(found.tls.ca)
        more = ["--option", f"tlsCa={found.tls.ca}"]
    job = lake_tables.Job(found.addresses, "delta", found.directory / "table", topic=TOPIC)
    with (
        found.driving("stream_driver.py", *itertools.chain(*arguments.items())) as driver,
        job.start("--follow", "--every", "1", *more) as archiver,
    ):
        with _load(found, outcome) as sent:
            for step in deaths:
                time.sleep(trial.minutes * 60 / FAILOVERS * trial.random.uniform(0.8, 1.0))
                if driver.poll() is not None:
                    break
                lose(outcome, step, driver)
                outcome.rounds += 1
        ended.touch()
        with suppress(subprocess.TimeoutExpired):
            driver.wait(PATIENCE_S)
        found.expect_end(outcome, "the queries", 0, driver.poll())
        outcome.expect(archiver.poll() is None, "job end", f"too early: {job.tail()}")
        archiver.terminate()
        archiver.communicate()
    with job.start(*more) as archiver:  # what it had not committed by then
        archiver.communicate()
        outcome.expect(archiver.returncode == 0, "job end", job.tail())
    if driver.returncode == 0:  # otherwise rows are missing for that reason
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
            with Producer(found.addresses, group="p", ack="replicated", timeout_s=60.0, tls=found.tls) as producer:
                for number in itertools.count():
                    if ended.wait(_PAUSE_S):
                        return
                    bodies = [f"{number:07d}-{index}" for index in range(_BLOCK)]
                    producer.send_batch([Message(TOPIC, body.encode()) for body in bodies])
                    sent.extend(bodies)
        except ReputError as error:
            outcome.expect(False, "receipts", f"after {len(sent)} messages a block has none: {error}")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield sent
    finally:
        ended.set()
        sender.join()
