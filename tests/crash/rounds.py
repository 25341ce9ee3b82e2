"""Rounds of load and a kill against one store directory, each followed by a check.

A round starts the broker, lets the load run, ends the broker, and checks the directory with the log's own codec and
the next start with the client. Most rounds end with SIGKILL; one in five is killed again while it recovers; one in four
continues on what a power cut would have left instead of what the page cache still holds.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from crash import checker
from crash.checker import Violation
from crash.ledger import Acknowledged, Ledger, QueueKey
from crash.load import GROUP, QUEUES, TOPIC, Load
from crash.power_cut import cut_power
from crash.store_reader import read_store
from crash.sync_shadow import DurableInFiles, take_as_durable
from reput_client.blocking import Admin, PullConsumer
from reput_protocol.errors import ReputError
from support.broker_process import BrokerProcess

INSTRUMENTED_BROKER = Path(__file__).with_name("instrumented_broker.py")

# Small files, so that kills hit the roll of every kind of file, and short timers, so that they hit the services.
ENVIRONMENT = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB",
    "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "400",
    "REPUT_STORE__INDEX_SLOTS": "500",
    "REPUT_STORE__INDEX_ENTRIES": "2000",
    "REPUT_STORE__MESSAGE_SIZE_MAX": "64KiB",
    "REPUT_STORE__CONSUME_QUEUE_FLUSH_INTERVAL": "50ms",
    # Whatever is dispatched is certain at once: what recovery does not read again, it cannot heal either.
    "REPUT_STORE__CONSUME_QUEUE_FLUSH_LEAST_PAGES": "0",
    "REPUT_STORE__CHECKPOINT_INTERVAL": "50ms",
    "REPUT_OFFSETS__FLUSH_INTERVAL": "100ms",
    "REPUT_LOG__LEVEL": "warning",
}


@dataclass(slots=True)
class Options:
    """How a run goes."""

    rounds: int
    seed: int
    directory: Path
    bug: str | None = None
    load_s: float = 0.5
    power_cuts: bool = True
    full_check_every: int = 10
    pool: bool = False


@dataclass(slots=True)
class Report:
    """What a run did and found."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)


class CrashRun:
    """One run: a ledger, a directory, a stream of rounds."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._rng = random.Random(options.seed)
        self._ledger = Ledger()
        self._sequences: dict[str, int] = Counter()
        self._data_dir = options.directory / "store"
        self._shadow_dir = options.directory / "shadow"
        self.report = Report()
        command = [sys.executable, str(INSTRUMENTED_BROKER), "--shadow", str(self._shadow_dir)]
        if options.bug:
            command += ["--bug", options.bug]
        environment = ENVIRONMENT | {"REPUT_STORE__TRANSIENT_STORE_POOL": str(options.pool).lower()}
        self._broker = BrokerProcess(self._data_dir, environment=environment, command=command)

    def run(self) -> Report:
        """Run all rounds, or stop after the first that breaks a promise."""
        for number in range(1, self._options.rounds + 1):
            self._round(number)
            if self.report.violations:
                self.report.counts["failed_round"] = number
                return self.report
        self._final_check()
        return self.report

    def close(self) -> None:
        """Leave no process behind."""
        self._broker.kill()

    def _round(self, number: int) -> None:
        counts = self.report.counts
        rng = self._rng
        if number > 1 and rng.random() < 0.2:
            self._broker.start()
            time.sleep(rng.uniform(0.0, 0.9))
            self._broker.kill()
            counts["killed_while_starting"] += 1
        self._start()
        if self.report.violations:
            return
        if number == 1:
            with Admin(self._broker.address) as admin:
                admin.create_topic(TOPIC, queues=QUEUES)
        full = number % self._options.full_check_every == 0
        self._check_served(complete=full)
        load = Load(self._broker.address, self._ledger, self._options.seed * 1_000 + number, self._sequences)
        load.start()
        time.sleep(rng.uniform(0.3, 1.0) * self._options.load_s)
        trouble = self._broker.trouble()  # a store that takes no more messages hides what is wrong with it
        if trouble is not None:
            self._add([Violation("serves", f"not running under load: {trouble}")])
        self._broker.kill()
        load.join()
        self._add([Violation("load", fault) for fault in load.faults])
        counts["rounds"] += 1
        self._add(checker.check_directory(read_store(self._data_dir)))
        if self._options.power_cuts and rng.random() < 0.25:
            self._cut_power()

    def _start(self) -> None:
        self._broker.start()
        try:
            took_s = self._broker.wait_ready()
        except AssertionError as error:
            self._add([Violation("starts", str(error))])
            return
        self.report.counts["recovery_ms_max"] = max(self.report.counts["recovery_ms_max"], int(took_s * 1000))

    def _cut_power(self) -> None:
        """Continue on a power cut's image, and settle with the ledger what it was allowed to take."""
        image = self._options.directory / "image"
        self.report.counts["pages_lost"] += cut_power(
            self._data_dir, DurableInFiles(self._shadow_dir), image, self._rng
        )
        self.report.counts["power_cuts"] += 1
        shutil.rmtree(self._data_dir)
        image.rename(self._data_dir)
        shutil.rmtree(self._shadow_dir)
        take_as_durable(self._data_dir, DurableInFiles(self._shadow_dir))
        self._start()
        if self.report.violations:
            return
        lost: list[Acknowledged] = []
        for queue_id in range(QUEUES):
            queue = (TOPIC, queue_id)
            end = self._ends()[queue]
            lost += self._ledger.forget_unflushed(queue, end)
        self.report.counts["lost_in_power_cuts"] += len(lost)
        self._add(checker.check_power_loss(lost))
        self._check_served(complete=True, offsets=False)
        for queue, offset in self._committed().items():
            if offset is None:
                self._ledger.committed.pop(queue, None)
            else:
                self._ledger.committed[queue] = offset
        self._broker.kill()

    def _ends(self) -> dict[QueueKey, int]:
        with Admin(self._broker.address) as admin:
            return {(TOPIC, q): admin.max_offset(TOPIC, q) for q in range(QUEUES)}

    def _committed(self) -> dict[QueueKey, int | None]:
        with PullConsumer(self._broker.address, group=GROUP) as consumer:
            return {(TOPIC, q): consumer.committed(TOPIC, q) for q in range(QUEUES)}

    def _check_served(self, *, complete: bool, offsets: bool = True) -> None:
        """Read the queues through the client, whole or their last thousand, and check them."""
        queues: dict[QueueKey, dict[int, bytes]] = {}
        ends = self._ends()
        with PullConsumer(self._broker.address, group="crash-checker") as consumer:
            for queue, end in ends.items():
                start = 0 if complete else max(0, end - 1_000)
                bodies: dict[int, bytes] = {}
                queues[queue] = bodies
                try:
                    _read(consumer, queue[1], start, end, bodies)
                except ReputError as error:  # records that do not add up, bodies that fail their checksum
                    self._add([Violation("serves", f"{queue}: {error}")])
                self._add(checker.check_queue(self._ledger, queue, bodies, start, end))
        if complete:
            self.report.counts["messages_read_back"] = sum(len(bodies) for bodies in queues.values())
            self._add(checker.check_once(queues))
        if offsets:
            self._add(checker.check_offsets(self._ledger, self._committed()))

    def _final_check(self) -> None:
        """Start once more, read everything, stop cleanly, and check the directory for completeness."""
        self._start()
        if self.report.violations:
            return
        self._check_served(complete=True)
        status = self._broker.terminate()
        if status != 0:
            self._add([Violation("stops", f"exit code {status}")])
        reading = read_store(self._data_dir)
        self._add(checker.check_directory(reading))
        self._add(checker.check_complete(reading))
        counts = self.report.counts
        counts["records_in_log"] = len(reading.records)
        counts["acknowledged"] = self._ledger.acknowledged_count
        counts["acknowledged_flushed"] = self._ledger.flushed_count
        counts["sent"] = len(self._ledger.sent)
        counts["commit_log_files"] = sum(1 for _ in (self._data_dir / "commitlog").iterdir())
        counts["consume_queue_files"] = sum(1 for _ in (self._data_dir / "consumequeue").rglob("0*") if _.is_file())

    def _add(self, violations: list[Violation]) -> None:
        self.report.violations += violations
        self.report.violations += [Violation("once", text) for text in self._ledger.collisions]
        self._ledger.collisions.clear()


def _read(consumer: PullConsumer, queue_id: int, start: int, end: int, bodies: dict[int, bytes]) -> None:
    """Add the bodies of a queue's messages in [start, end) to `bodies`, as far as they can be read."""
    offset = start
    while offset < end:
        result = consumer.pull(TOPIC, queue_id=queue_id, offset=offset, max_messages=512, wait_s=0.0)
        bodies.update((message.queue_offset, bytes(message.body)) for message in result.messages)
        if result.next_begin_offset <= offset:
            return
        offset = result.next_begin_offset
