"""The job `archive` under faults: every message is in the archive once, after any kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from pipeline_faults.outcomes import Outcome
from pipeline_faults.points import ALWAYS_FAILING, FAILING
from pipeline_faults.scene import Scene, Trial, kill_driver, scene
from pipeline_faults.steps import ARCHIVE_POINTS, SOURCE_STEPS
from reput_client.blocking import Message, Producer
from reput_pipeline.archives.directory import ArchiveDirectory
from support.sink_client import published

TOPIC = "lines"
QUEUES = 4
BATCH = 900
_CANNOT_CONNECT = 3
_CALLS_MAX = 8


class Archived:
    """A topic that is archived while it grows."""

    def __init__(self, found: Scene, trial: Trial, batches: int) -> None:
        self._scene = found
        self._trial = trial
        self._bodies = iter(trial.bodies((batches + 2) * BATCH * 2))
        self.root = found.directory / "archive"
        self.send(batches * BATCH)

    def send(self, count: int) -> None:
        """Let the topic grow, its queues unevenly."""
        with Producer(self._scene.broker.address, group="p") as producer:
            while count > 0:
                size = min(count, self._trial.random.randrange(1, 200))
                messages = [Message(TOPIC, next(self._bodies).encode(), tag=f"t{size % 3}") for _ in range(size)]
                producer.send_batch(messages, queue_id=self._trial.random.randrange(QUEUES))
                count -= size

    def drive(self, point: str = "none:0", *more: str) -> int:
        """Archive it, batch by batch, until nothing is left; several files in each batch."""
        arguments = ["--server", self._scene.broker.address, "--topic", TOPIC, "--to", str(self.root)]
        arguments += ["--partition-by", "tags", "--batch-messages", str(BATCH), "--file-messages", "100"]
        arguments += ["--master", "local[2,3]", "--conf", "spark.driver.memory=512m"]
        return self._scene.drive("job_driver.py", "archive", *arguments, *more, point=point)

    def check(self, outcome: Outcome, what: str) -> None:
        """What the manifests name, and what is in the directory: both are the topic, message by message."""
        queues = published(self._scene.broker.address, TOPIC)
        wanted = [
            _row(queue_id, offset, body) for queue_id, bodies in queues.items() for offset, body in enumerate(bodies)
        ]
        archive = ArchiveDirectory(self.root)
        named = [self.root / file.path for file in archive.files()]
        missing = [path for path in named if not path.is_file()]
        outcome.expect(not missing, "files missing", f"{what}: {len(missing)} that manifests name are not there")
        outcome.compare(f"{what}, by manifests", wanted, rows_of(path for path in named if path.is_file()))
        outcome.compare(f"{what}, by directory", wanted, rows_of(self.root.glob("topic=*/**/[!.]*.parquet")))
        left = [path.name for path in self.root.glob("topic=*/**/.*")]
        outcome.expect(not left, "files left", f"{what}: temporary ones, such as {left[:3]}")


class Followed(Archived):
    """A topic whose job follows it until it is killed; then the topic grows."""

    def drive(self, point: str = "none:0", *more: str) -> int:
        """Archive it; only a job that is not killed ends by itself."""
        if point == "none:0":
            return super().drive(point, *more)
        ended = super().drive(point, "--follow", "--every", "0", *more)
        self.send(self._trial.random.randrange(1, BATCH // 2))
        return ended


def _row(queue_id: int, offset: int, body: bytes) -> str:
    return f"{queue_id}/{offset} {body.decode()}"


def rows_of(files: Iterator[Path]) -> Iterator[str]:
    """Yield the messages of Parquet files, each read as itself: no directory adds or hides anything."""
    for path in files:
        table = pq.ParquetFile(path).read(columns=["queueId", "queueOffset", "body"])
        for row in table.to_pylist():
            yield _row(row["queueId"], row["queueOffset"], row["body"])


def driver_killed(trial: Trial) -> Outcome:
    """A job that follows a topic is killed once at each point, in another batch each; the last one runs to the end."""
    return kill_driver(trial, ARCHIVE_POINTS, Followed, TOPIC, QUEUES)


def task_fails(trial: Trial) -> Outcome:
    """All tasks of a batch always fail; then in every batch a task fails once after it has written its files."""
    outcome = Outcome(rounds=2)
    with scene(trial, TOPIC, QUEUES) as found:
        archived = Archived(found, trial, 2)
        found.expect_end(outcome, "tasks that always fail", 1, archived.drive(point=ALWAYS_FAILING))
        outcome.expect(not ArchiveDirectory(archived.root).files(), "failed batch", "it has a manifest")
        found.expect_end(outcome, "a task that fails once", 0, archived.drive(point=FAILING))
        archived.check(outcome, "tasks fail")
    return outcome


def broker_killed(trial: Trial) -> Outcome:
    """The broker is killed while it is read, at each step twice; the job continues, or ends and is started again."""
    outcome = Outcome()
    steps = [f"{step}:{trial.random.randint(1, _CALLS_MAX)}" for step in trial.chosen((*SOURCE_STEPS, *SOURCE_STEPS))]
    with scene(trial, TOPIC, QUEUES) as found:
        archived = Archived(found, trial, 2 * _CALLS_MAX + 4)  # a batch asks for the bounds once
        ended, starts = _CANNOT_CONNECT, 0
        with found.breaking(steps, outcome):
            while ended == _CANNOT_CONNECT and starts <= len(steps):
                starts += 1
                found.wait_broker()
                ended = archived.drive()
        outcome.notes.append(f"{starts} starts of the job")
        found.expect_end(outcome, "the broker killed", 0, ended)
        archived.check(outcome, "broker killed")
    return outcome
