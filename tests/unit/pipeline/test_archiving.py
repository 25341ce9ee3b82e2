"""The job `archive` over a cluster, without Spark and without a broker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reput_client.arrow.queues import Bounds, QueueKey
from reput_client.errors import BrokerNotFound, ConnectFailed, ConnectionLost
from reput_pipeline.archives.batches import ArchiveTask
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveFile
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.lake.copying import Stopping
from reput_pipeline.source.live import LiveCluster
from reput_pipeline.source.options import SourceOptions
from reput_protocol.exit_codes import ExitCode
from support.pipeline_jobs import Run, runner

QUEUE = QueueKey("orders", "b", 0)


class FakeCluster(LiveCluster):
    """One queue; what happens when the job connects is in `script`, one entry for each time, the last one for ever.

    An entry is an error, the queue's end, or its bounds.
    """

    script: list[Exception | int | Bounds]
    brokers: dict[str, str]

    def __init__(self, options: SourceOptions) -> None:
        pass

    def __enter__(self) -> FakeCluster:
        what = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(what, Exception):
            raise what
        self._addresses = self.brokers
        self._bounds = {QUEUE: what if isinstance(what, Bounds) else Bounds(0, what)}
        self._generations = {}
        return self

    def close(self) -> None:
        pass

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        return {"orders": [QUEUE]}


class Broken(Exception):
    """An error of a worker as Spark returns it."""

    __module__ = "py4j.protocol"


class Scene:
    """What the cluster says, how tasks end, and how long the job has slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, run: Run, root: Any) -> None:
        self.root = root / "a"
        self.slept: list[float] = []
        self.task_errors: list[Exception] = []
        self.before_task: Callable[[], Exception | None] = lambda: None
        self.cluster(10)
        self._run = run
        monkeypatch.setattr("reput_pipeline.archives.batches.LiveCluster", FakeCluster)
        monkeypatch.setattr("reput_pipeline.jobs.archive.write_task", self._write)
        monkeypatch.setattr(Stopping, "wait", lambda _, seconds: self.slept.append(seconds))
        monkeypatch.setattr(JobRun, "parallelism", 2)
        monkeypatch.setattr(JobRun, "each", _each)

    def cluster(self, *script: Exception | int | Bounds, **brokers: str) -> None:
        FakeCluster.script = [*script]
        FakeCluster.brokers = brokers or {"b": "127.0.0.1:1"}

    def archive(self, *more: object) -> Any:
        return self._run("archive", "--server", "127.0.0.1:1", "--topic", "orders", "--to", self.root, *more)

    def _write(self, task: ArchiveTask) -> Iterator[ArchiveFile]:
        error = self.before_task()
        if error is not None:
            raise error
        if self.task_errors:
            raise self.task_errors.pop(0)
        for part in task.ranges:
            yield ArchiveFile(f"topic=orders/{part.start}.parquet", "orders", part.size, 1, 1, 1)


def _each(run: JobRun, what: str, items: Sequence[Any], work: Callable[[Any], Iterable[Any]]) -> list[Any]:
    return [result for item in items for result in work(item)]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Any) -> Scene:
    return Scene(monkeypatch, runner(capfd), tmp_path)


def test_an_archive_is_not_continued_from_other_brokers(scene: Scene) -> None:
    assert scene.archive().result["rows"] == 10
    scene.cluster(30, b="10.0.0.9:1")
    refused = scene.archive()
    assert (refused.code, refused.result["argument"]) == (ExitCode.USAGE, "--to")
    assert "is of b at 127.0.0.1:1, not of b at 10.0.0.9:1" in refused.err
    assert scene.archive("--same-source").result["rows"] == 20
    assert ArchiveDirectory(scene.root).existing().source == "b at 10.0.0.9:1"
    assert scene.archive().code == 0


def test_an_archive_is_continued_after_a_failover(scene: Scene) -> None:
    scene.cluster(10, b="10.0.0.1:1 10.0.0.2:1", c="10.0.0.8:1")
    assert scene.archive().result["rows"] == 10
    scene.cluster(20, b="10.0.0.2:1 10.0.0.3:1", c="10.0.0.8:1")  # one is away, one has returned
    assert scene.archive().result["rows"] == 10
    scene.cluster(30, b="10.0.0.3:1", c="10.0.0.8:1")
    assert scene.archive().result["rows"] == 10
    for brokers in ({"b": "10.0.0.3:1"}, {"b": "10.0.0.3:1", "c": "10.0.0.9:1"}):
        scene.cluster(40, **brokers)
        assert scene.archive().code == ExitCode.USAGE


def test_another_filter_is_noted_once(scene: Scene) -> None:
    """Progress is that of queues: what the first filter left out is never archived."""
    for end, tags, words in (
        (10, "a || b", None),
        (20, "b||a", None),
        (30, "*", "with --tag 'a || b' so far, and gets those with all tags from here on"),
        (40, "*", None),
        (50, "c", "with all tags so far, and gets those with --tag 'c' from here on"),
    ):
        scene.cluster(end)
        ran = scene.archive("--tag", tags)
        assert (ran.code, ran.result["rows"]) == (0, 10), ran.err
        assert ("what runs have left out is not archived later" in ran.err) == (words is not None)
        assert words is None or words in ran.err


def test_messages_that_expired_are_left_out_on_request_and_counted(scene: Scene) -> None:
    """They were left out without a note or a figure."""
    without_them = ("--option", "failOnDataLoss=false")
    assert scene.archive().result["lost"] == 0
    scene.cluster(Bounds(15, 20))
    refused = scene.archive()
    assert "messages 10 to 14 are gone and not in the archive" in refused.err
    scene.task_errors = [Broken("the disk is full")]
    assert scene.archive(*without_them).code == ExitCode.FAILED
    again = scene.archive(*without_them)
    assert (again.code, again.result["rows"], again.result["lost"]) == (0, 5, 5), again.err
    assert again.err.count("queue orders/b/0: messages 10 to 14 are gone and not in the archive") == 1
    scene.cluster(Bounds(30, 30))
    empty = scene.archive(*without_them)
    assert (empty.result["batches"], empty.result["rows"], empty.result["lost"]) == (1, 0, 10)
    assert "messages 20 to 29 are gone" in empty.err
    assert [manifest.get("lost") for manifest in ArchiveDirectory(scene.root).manifests()] == [None, 5, 10]
    done = scene.archive(*without_them)
    assert (done.result["batches"], done.result["lost"]) == (0, 0)


def test_following_outlives_a_broker_that_is_away(scene: Scene) -> None:
    lost = Broken("Traceback\nreput_client.errors.ConnectionLost: the broker closed the connection")
    refused = ConnectFailed("127.0.0.1:1", "refused")
    scene.task_errors = [lost]
    scene.cluster(10, 10, refused, BrokerNotFound("", ""), ConnectionLost("127.0.0.1:1", "closed"), 10)
    ran = scene.archive("--follow", "--every", 0, "--batches", 1)
    assert (ran.code, ran.result["rows"], ran.result["batches"]) == (0, 10, 1), ran.err
    assert ran.err.count("waits for the broker") == 1
    assert "batch 0 was interrupted: it is written again" in ran.err
    assert "the broker is back" in ran.err
    assert scene.slept == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_without_following_a_broker_that_is_away_ends_the_job(scene: Scene) -> None:
    scene.cluster(10, ConnectFailed("127.0.0.1:1", "refused"))
    assert scene.archive().code == ExitCode.CANNOT_CONNECT


def test_following_waits_for_a_broker_that_is_away_at_the_start(scene: Scene) -> None:
    scene.cluster(ConnectFailed("127.0.0.1:1", "refused"), BrokerNotFound("", ""), 10)
    ran = scene.archive("--follow", "--every", 0, "--batches", 1)
    assert (ran.code, ran.result["rows"]) == (0, 10), ran.err
    assert ran.err.count("waits for the broker") == 1
    assert scene.slept == [1.0, 1.0, 0.0]


def test_a_signal_ends_a_job_that_follows_with_its_last_line(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ended it with 143 and without one."""
    monkeypatch.setattr(Stopping, "wait", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    scene.cluster(ConnectFailed("127.0.0.1:1", "refused"))
    early = scene.archive("--follow")
    assert (early.code, early.result["batches"], early.result["rows_in_archive"]) == (0, 0, 0), early.err
    assert not scene.root.exists()
    scene.cluster(10)
    ended = scene.archive("--follow")
    assert (ended.code, ended.result["status"], ended.result["rows"]) == (0, "done", 10), ended.err
    assert "the archive is consistent" in ended.err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_program_may_archive_in_a_thread(scene: Scene) -> None:
    with ThreadPoolExecutor() as threads:
        assert threads.submit(scene.archive).result().code == 0


def test_a_signal_that_ends_the_tasks_too_leaves_their_batch_to_the_next_run(scene: Scene) -> None:
    def signalled() -> Exception:
        os.kill(os.getpid(), signal.SIGINT)
        return Broken("a worker was interrupted")

    scene.before_task = signalled
    ended = scene.archive("--follow")
    assert (ended.code, ended.result["batches"]) == (0, 0), ended.err
    assert "the batch was interrupted: a worker was interrupted" in ended.err

    def full() -> Exception:
        os.kill(os.getpid(), signal.SIGTERM)
        return OSError("no space left on the device")

    scene.before_task = full
    assert scene.archive("--follow").code == ExitCode.FAILED, "an error of its own is told all the same"
    scene.before_task = lambda: os.kill(os.getpid(), signal.SIGTERM)
    scene.cluster(10, 30)
    cut_short = scene.archive()
    assert (cut_short.code, cut_short.result["rows"]) == (ExitCode.INTERRUPTED, 10), cut_short.err


def test_other_errors_end_a_job_that_follows(scene: Scene) -> None:
    scene.task_errors = [Broken("reput_pipeline.spark.errors.DataLost: queue orders/0: messages are gone")]
    assert scene.archive("--follow").code == ExitCode.FAILED


def test_a_plan_with_a_broker_that_is_gone_says_so(scene: Scene) -> None:
    scene.task_errors = [Broken("the disk is full")]
    assert scene.archive().code == ExitCode.FAILED
    scene.cluster(10, c="127.0.0.1:2")
    ran = scene.archive("--same-source")
    assert ran.code == ExitCode.FAILED
    assert "of broker b, but the cluster now lists only c; start that broker" in ran.err
