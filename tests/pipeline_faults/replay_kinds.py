"""The job `replay` under faults: every message of the archive is published once, and each queue in its order."""

from __future__ import annotations

from pathlib import Path

from pipeline_faults.outcomes import Outcome
from pipeline_faults.points import FAILING
from pipeline_faults.scene import Scene, Trial, kill_broker, kill_driver
from pipeline_faults.steps import REPLAY_POINTS, SINK_STEPS
from reput_client.blocking.bulk import StagingProducer
from reput_pipeline.archives.batches import ArchiveTask, catalog_of, next_tasks, open_ranges, write_task
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveKind
from reput_pipeline.source.options import parse_source_options
from support.sink_client import published
from support.stores import FakeClock, dispatch_all, opened, put, small_options

TOPIC = "lines"
QUEUES = 3


class Replayed:
    """An archive of a store directory, so many batches of it, and what each of its queues holds."""

    def __init__(self, found: Scene, trial: Trial, batches: int) -> None:
        self._scene = found
        self.root = found.directory / "archive"
        self.queues: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
        store = found.directory / "source"
        size = trial.random.randrange(300, 600)
        self._fill(store, trial, batches * size)
        write_archive(store, self.root, size)
        made = len(list(ArchiveDirectory(self.root).manifests()))
        assert made >= batches, f"{made} batches instead of {batches}"

    def _fill(self, root: Path, trial: Trial, count: int) -> None:
        files = {"commit_log_file_size": 1 << 20, "consume_queue_entries": 5000, "index_entries": 10_000}
        store = opened(small_options(root, **files), FakeClock())
        for body in trial.bodies(count):
            queue_id = trial.random.randrange(QUEUES)
            put(store, body.encode(), topic=TOPIC, queue_id=queue_id)
            self.queues[queue_id].append(body.encode())
        dispatch_all(store)
        assert store.close()

    def drive(self, point: str = "none:0") -> int:
        """Replay it."""
        arguments = ["--archive", str(self.root), "--server", self._scene.broker.address]
        arguments += ["--master", "local[2,3]", "--conf", "spark.driver.memory=512m"]
        return self._scene.drive("job_driver.py", "replay", *arguments, point=point)

    def check(self, outcome: Outcome, what: str) -> None:
        """Rows in = rows out = distinct, in the order of the queues, and nothing is left staged."""
        address = self._scene.broker.address
        found = published(address, TOPIC)
        outcome.compare(what, *(_rows(queues) for queues in (self.queues, found)))
        for queue_id, bodies in self.queues.items():
            outcome.expect(
                sorted(found[queue_id]) != sorted(bodies) or found[queue_id] == bodies,
                "order",
                f"{what}: of queue {queue_id}",
            )
        with StagingProducer(address) as writer:
            left = writer.query_staged().stagings
        outcome.expect(left == 0, "stagings left", f"{what}: {left}")


def _rows(queues: dict[int, list[bytes]]) -> list[str]:
    return [f"{queue_id} {body.decode()}" for queue_id, bodies in queues.items() for body in bodies]


def write_archive(store: Path, root: Path, batch_messages: int) -> None:
    """Archive a store directory with the parts of the job, but without Spark."""
    options = parse_source_options({"path": str(store), "subscribePattern": ".*"}, streaming=False)
    archive = ArchiveDirectory(root)
    with archive, catalog_of(options) as catalog:
        archive.begin(ArchiveKind("archive", str(store)))
        while True:
            start, end = open_ranges(catalog, options, archive.ends(), archive.generations())
            tasks = next_tasks(start, end, most=batch_messages, file_messages=100_000, parts=1)
            if not tasks:
                return
            batch = archive.plan(tasks, catalog.generations)
            files = [
                file
                for task in batch.tasks
                for file in write_task(ArchiveTask(str(root), task, options, catalog.generations, (), "zstd"))
            ]
            archive.complete(batch, files)


def driver_killed(trial: Trial) -> Outcome:
    """The job is killed once at each point, in another batch each; in the last run a task of every batch fails once."""
    return kill_driver(trial, REPLAY_POINTS, Replayed, TOPIC, QUEUES, last=FAILING)


def broker_killed(trial: Trial) -> Outcome:
    """The broker is killed at every step of staging and committing, a batch for each, while the job continues."""
    return kill_broker(trial, SINK_STEPS, Replayed, TOPIC, QUEUES)
