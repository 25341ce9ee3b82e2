"""The sink under faults: the driver killed, tasks that fail, the broker killed. Every row is published once."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pipeline_faults.outcomes import Outcome
from pipeline_faults.points import ALWAYS_FAILING, FAILING, MARKS, POINT, SLOW
from pipeline_faults.scene import HERE, KILLED, PATIENCE_S, Scene, Trial, group_scene, kill_broker, kill_driver, scene
from pipeline_faults.steps import FAILOVER_STEPS, SINK_STEPS, STREAM_POINTS
from reput_client.blocking.bulk import StagingProducer
from support.sink_client import published
from support.spark_cluster import SparkCluster

TOPIC = "lines"
QUEUES = 4


class Lines:
    """Files of lines to stream, one micro-batch each; `release` lets a driver see one more if they are held."""

    def __init__(self, found: Scene, trial: Trial, files: int, *, held: bool = False) -> None:
        self._scene = found
        self.checkpoint = found.directory / "checkpoint"
        self.directory = found.directory / "lines"
        self.directory.mkdir()
        self._held = found.directory / "held"
        self._held.mkdir()
        self.rows: list[str] = []
        bodies = iter(trial.bodies(files * 4000))
        for number in range(files):
            lines = [next(bodies) for _ in range(trial.random.randrange(500, 4000))]
            directory = self._held if held else self.directory
            (directory / f"{number:04d}.txt").write_text("\n".join(lines) + "\n")
            self.rows += lines

    def release(self) -> None:
        """Add the next held file to those that a driver streams."""
        path = min(self._held.iterdir())
        path.rename(self.directory / path.name)

    def drive(self, point: str = "none:0", *more: str) -> int:
        """Stream them."""
        arguments = {
            "--broker": self._scene.addresses,
            "--topic": TOPIC,
            "--lines": str(self.directory),
            "--checkpoint": str(self.checkpoint),
        }
        pairs = [part for pair in arguments.items() for part in pair]
        return self._scene.drive("sink_driver.py", *pairs, *more, point=point)

    def check(self, outcome: Outcome, what: str) -> None:
        """Rows in = rows out = distinct, and nothing is left staged."""
        address = self._scene.master_address
        found = published(address, TOPIC)
        outcome.compare(what, self.rows, (body.decode() for bodies in found.values() for body in bodies))
        with StagingProducer(address) as writer:
            left = writer.query_staged().stagings
        outcome.expect(left == 0, "stagings left", f"{what}: {left}")


def driver_killed(trial: Trial) -> Outcome:
    """The driver is killed once at each point, each time in another batch, and started again."""
    return kill_driver(trial, STREAM_POINTS, Lines, TOPIC, QUEUES)


def task_fails(trial: Trial) -> Outcome:
    """All tasks of a batch always fail; then in every batch a task fails once after it has staged."""
    outcome = Outcome(rounds=2)
    with scene(trial, TOPIC, QUEUES) as found:
        lines = Lines(found, trial, 3)
        found.expect_end(outcome, "tasks that always fail", 1, lines.drive(ALWAYS_FAILING))
        bodies = published(found.broker.address, TOPIC)
        outcome.expect(not any(bodies.values()), "failed batch", "something was published, and it never was committed")
        found.expect_end(outcome, "a task that fails once", 0, lines.drive(FAILING))
        lines.check(outcome, "tasks fail")
    return outcome


def broker_killed(trial: Trial) -> Outcome:
    """The broker is killed at every step of staging and committing, a batch for each, while one driver continues."""
    return kill_broker(trial, SINK_STEPS, Lines, TOPIC, QUEUES)


def master_killed(trial: Trial) -> Outcome:
    """The master of an elected group is killed at the steps of staging and committing, a batch for each.

    Where the next master has nothing of the batch, the query ends with an error, and is started again.
    """
    outcome = Outcome()
    steps = trial.chosen(FAILOVER_STEPS)
    with group_scene(trial, TOPIC, QUEUES) as found:
        lines = Lines(found, trial, len(steps), held=True)
        for step in steps:
            lines.release()
            with found.losing_its_master(step, outcome):
                ended = lines.drive()
            if ended == 1:
                outcome.notes.append(f"{step}: the query was started again")
                ended = lines.drive()
            found.expect_end(outcome, step, 0, ended)
        lines.check(outcome, "master killed")
    return outcome


def speculation(trial: Trial) -> Outcome:
    """A task of every batch stages everything and then hangs: Spark runs a second attempt, and takes that one.

    Only a cluster does this, and only on another host.
    """
    outcome = Outcome()
    batches = 2
    with scene(trial, TOPIC, QUEUES) as found, SparkCluster(found.directory / "cluster") as cluster:
        lines = Lines(found, trial, batches)
        environment = {POINT: SLOW, MARKS: str(found.marks), "PYTHONPATH": str(HERE.parent)}
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.2",
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
        }
        more = [part for pair in conf.items() for part in ("--conf", "=".join(pair))]
        found.expect_end(outcome, "speculation", 0, lines.drive("none:0", "--master", cluster.master, *more))
        for batch_id in range(batches):
            attempts = len(list(found.marks.glob(f"attempt-{batch_id}-*")))
            outcome.rounds += 1
            outcome.expect(attempts >= 2, "speculation", f"batch {batch_id} had {attempts} attempts")
        lines.check(outcome, "speculation")
    return outcome


def both_killed(trial: Trial) -> Outcome:
    """The broker is killed while it publishes, and the driver right after it; both are restarted."""
    outcome = Outcome(rounds=1)
    with scene(trial, TOPIC, QUEUES) as found:
        lines = Lines(found, trial, 2)
        dying = found.change_broker("piece:1")
        dying.wait_ready(PATIENCE_S)

        def revive() -> None:
            dying.wait(PATIENCE_S)
            time.sleep(1.0)  # the driver asks again meanwhile
            found.change_broker("none")

        reviver = threading.Thread(target=revive)
        reviver.start()
        ended = lines.drive("after-commit:0")
        reviver.join()
        found.expect_end(outcome, "the first", KILLED, ended)
        found.expect_end(outcome, "the second", 0, lines.drive())
        lines.check(outcome, "both killed")
        outcome.notes.append(f"{_batches(lines.checkpoint)} batches")
    return outcome


def _batches(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))
