"""The sink under faults: the driver killed, tasks that fail, the broker killed. Every row is published once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker_process import BrokerProcess
from pipeline_faults.outcomes import Outcome
from reput_client.blocking import Admin
from reput_client.blocking.batch_writer import BatchWriter
from sink_broker import STEPS
from sink_client import published

TOPIC = "lines"
QUEUES = 4
ROWS = 3000
POINTS = ("before-staging", "after-staging", "before-commit", "after-commit", "after-checkpoint")
_HERE = Path(__file__).resolve().parent
_PATIENCE_S = 600.0


class Setting:
    """A broker on a directory, lines to stream, and drivers that do it."""

    def __init__(self, directory: Path, files: int) -> None:
        self.broker = BrokerProcess(
            directory / "store",
            environment={"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "4MiB", "REPUT_STORE__FLUSH": "sync"},
        )
        self.lines, self.checkpoint, self.marks = (
            directory / name for name in ("lines", "checkpoint", "marks")
        )
        self.lines.mkdir()
        self.marks.mkdir()
        self.log = directory / "driver.log"
        self.rows = [f"{number:09d}" for number in range(files * ROWS)]
        for number in range(files):
            text = "\n".join(self.rows[number * ROWS : (number + 1) * ROWS])
            (self.lines / f"{number:04d}.txt").write_text(text + "\n")

    def start_broker(self) -> None:
        self.broker.start()
        self.broker.wait_ready(_PATIENCE_S)

    def drive(self, point: str = "none:0", *, patience_s: float = _PATIENCE_S) -> int:
        """Run a driver to its end, and return how it ended."""
        arguments = {
            "broker": self.broker.address,
            "topic": TOPIC,
            "lines": str(self.lines),
            "checkpoint": str(self.checkpoint),
            "marks": str(self.marks),
            "point": point,
        }
        command = [sys.executable, str(_HERE / "sink_driver.py")]
        command += [part for name, value in arguments.items() for part in (f"--{name}", value)]
        with self.log.open("ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                return driver.wait(patience_s)
            finally:
                if driver.poll() is None:
                    os.killpg(driver.pid, 9)
                    driver.wait()

    def check(self, outcome: Outcome, what: str) -> None:
        found = published(self.broker.address, TOPIC)
        outcome.compare(what, self.rows, (body.decode() for bodies in found.values() for body in bodies))
        with BatchWriter(self.broker.address) as writer:
            left = writer.staged().stagings
        outcome.expect(left == 0, f"{what}: {left} stagings are left")

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


@contextmanager
def setting(files: int) -> Iterator[Setting]:
    with tempfile.TemporaryDirectory(prefix="reput-sink-") as directory:
        found = Setting(Path(directory), files)
        found.start_broker()
        with Admin(found.broker.address) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        try:
            yield found
        finally:
            found.broker.kill()


def driver_killed() -> Outcome:
    """The driver is killed once at each point, each time in another batch, and started again."""
    outcome = Outcome()
    with setting(len(POINTS) + 1) as found:
        for batch_id, point in enumerate(POINTS):
            ended = found.drive(f"{point}:{batch_id}")
            outcome.rounds += 1
            outcome.expect(
                ended == -9, f"{point}: the driver ended with {ended}, not killed:\n{found.log_tail()}"
            )
        ended = found.drive()
        outcome.expect(ended == 0, f"the last driver ended with {ended}:\n{found.log_tail()}")
        found.check(outcome, "driver killed")
    return outcome


def task_fails() -> Outcome:
    """In every batch a task fails once after it has staged; then all tasks of a batch always fail."""
    outcome = Outcome(rounds=2)
    with setting(3) as found:
        ended = found.drive("always-failing-task:0")
        outcome.expect(
            ended == 1, f"with tasks that always fail the driver ended with {ended}:\n{found.log_tail()}"
        )
        bodies = published(found.broker.address, TOPIC)
        outcome.expect(
            not any(bodies.values()), "something was published of a batch that never was committed"
        )
        ended = found.drive("failing-task:0")
        outcome.expect(
            ended == 0, f"with a task that fails once the driver ended with {ended}:\n{found.log_tail()}"
        )
        found.check(outcome, "tasks fail")
    return outcome


def broker_killed() -> Outcome:
    """The broker is killed at every step of staging and committing, a batch for each, while one driver goes on."""
    outcome = Outcome()
    steps = [*(step for step in STEPS if step != "piece"), "piece:1", "piece:2"]
    with setting(len(steps) + 1) as found:
        ended = threading.Event()
        breaker = threading.Thread(target=_kill_at_each, args=(found, steps, ended, outcome))
        breaker.start()
        try:
            code = found.drive()
        finally:
            ended.set()
            breaker.join()
        outcome.expect(code == 0, f"the driver ended with {code}:\n{found.log_tail()}")
        found.check(outcome, "broker killed")
    return outcome


def _kill_at_each(found: Setting, steps: list[str], ended: threading.Event, outcome: Outcome) -> None:
    """Have a broker run until it dies at the next step, and start the one after it."""
    plain = found.broker
    plain.kill()
    stand_in = str(_HERE.parent / "sink_broker.py")
    for step in steps:
        found.broker = broker = BrokerProcess(
            plain.data_dir,
            port=plain.port,
            http_port=plain.http_port,
            environment=plain._environment,
            command=[sys.executable, stand_in, step],
        )
        broker.start()
        while not ended.wait(0.02) and broker._process is not None and broker._process.poll() is None:
            pass
        if ended.is_set():
            outcome.violations.append(f"the driver ended before the broker was killed at {step}")
            broker.kill()
            break
        code = broker.wait(1.0)
        outcome.rounds += 1
        outcome.expect(code == -9, f"{step}: the broker ended with {code}:\n{broker.log_tail()}")
    found.broker = plain
    found.start_broker()


def both_killed() -> Outcome:
    """The broker is killed while it publishes, and the driver at once after it; both come back."""
    outcome = Outcome(rounds=1)
    with setting(2) as found:
        plain = found.broker
        plain.kill()
        stand_in = str(_HERE.parent / "sink_broker.py")
        found.broker = dying = BrokerProcess(
            plain.data_dir,
            port=plain.port,
            http_port=plain.http_port,
            environment=plain._environment,
            command=[sys.executable, stand_in, "piece:1"],
        )
        dying.start()
        dying.wait_ready(_PATIENCE_S)

        def revive() -> None:
            dying.wait(_PATIENCE_S)
            time.sleep(1.0)  # the driver asks again meanwhile
            found.broker = plain
            found.start_broker()

        reviver = threading.Thread(target=revive)
        reviver.start()
        ended = found.drive("after-commit:0")
        reviver.join()
        outcome.expect(ended == -9, f"the driver ended with {ended}:\n{found.log_tail()}")
        ended = found.drive()
        outcome.expect(ended == 0, f"the second driver ended with {ended}:\n{found.log_tail()}")
        found.check(outcome, "both killed")
        outcome.notes.append(
            json.dumps({"batches": len(list((found.checkpoint / "commits").glob("[0-9]*")))})
        )
    return outcome
