"""Jobs with `--master none`: in this process, without Spark and Java."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from reput_broker.background import BackgroundBroker
from reput_client.arrow import read_arrow
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.security import Credentials
from reput_pipeline.archives.batches import write_task
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveKind
from reput_protocol.exit_codes import ExitCode
from support.pipeline_jobs import Run
from support.store_samples import MESSAGES, copied
from support.stores import flip_bit, tree


def test_a_directory_is_archived_batch_by_batch(run: Run, root: Path, tmp_path: Path) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "a", "--batch-messages", 25, "--master", "none")
    first = run(*arguments, "--batches", 1)
    assert (first.code, first.result["batches"]) == (0, 1), first.err
    rest = run(*arguments)
    assert (rest.result["rows"], rest.result["rows_in_archive"]) == (MESSAGES - first.result["rows"], MESSAGES)
    assert archived(tmp_path / "a") == stored(root)
    assert run(*arguments).result["rows"] == 0


def test_a_batch_that_failed_is_written_again(
    run: Run, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "a", "--file-messages", 7, "--master", "none")

    def failing(task: Any) -> Any:
        yield next(iter(write_task(task)))
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("reput_pipeline.jobs.archive.write_task", failing)
        failed = run(*arguments)
    assert failed.code == ExitCode.FAILED
    assert "No space left on device" in failed.err
    assert ArchiveDirectory(tmp_path / "a").unfinished() is not None
    again = run(*arguments)
    assert again.code == 0
    assert "batch 0 was interrupted: it is written again" in again.err
    assert archived(tmp_path / "a") == stored(root)


def test_messages_are_found_and_a_directory_audited(run: Run, root: Path) -> None:
    audited = run("audit", "--path", root, "--master", "none")
    assert (audited.code, audited.result["status"]) == (0, "done"), audited.err
    found = run("find", "--path", root, "--text", "body-0007", "--master", "none")
    assert found.code == 0, found.err
    assert "body-0007" in "".join(found.lines)


def test_the_lag_of_a_directorys_groups(run: Run, root: Path, tmp_path: Path) -> None:
    now = max(row["storeTimestamp"] for row in read_arrow(root, "T").read_all().to_pylist())
    ran = run("lag", "--path", root, "--now", round(now.timestamp() * 1000), "--master", "none")
    assert ran.code == 0, ran.err
    (group,) = [row for row in ran.result["groups"] if row["topic"] == "T"]
    assert (group["group"], group["lag"], group["unread_gone"]) == ("billing", 23, 0)
    assert 0 < group["lag_ms"] < MESSAGES * 700
    history = run("lag", "--path", root, "--history", tmp_path / "h", "--master", "none")
    assert (history.code, history.result["argument"]) == (ExitCode.USAGE, "--history")
    assert not (tmp_path / "h").exists()


def test_the_lag_of_a_brokers_groups(run: Run, new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(store={"flush": "sync"})
    with Producer(broker.address, group="p") as producer, Admin(broker.address) as admin:
        admin.create_topic("orders", queues=2)
        for queue_id in range(2):
            sent = producer.send_batch([Message("orders", b"x")] * 10, queue_id=queue_id)
        with PullConsumer(broker.address, group="billing") as consumer:
            consumer.commit("orders", 0, 4)
            consumer.commit("orders", 1, 10)
    now = sent[0].store_timestamp_ms + 60_000
    ran = run("lag", "--server", broker.address, "--now", now, "--master", "none")
    assert ran.code == 0, ran.err
    (group,) = ran.result["groups"]
    assert (group["group"], group["topic"], group["queues"], group["lag"]) == ("billing", "orders", 2, 6)
    assert 60_000 <= group["lag_ms"] < 70_000
    behind, done = ran.result["queues"]
    assert (behind["committed"], behind["end"], behind["broker"]) == (4, 10, "broker-a")
    assert (done["lag"], done["oldest_ms"]) == (0, None)
    unknown = run("lag", "--server", broker.address, "--group", "nobody", "--master", "none")
    assert unknown.code == ExitCode.NOT_FOUND
    assert "nobody" in unknown.err


def test_jobs_manage_a_broker_as_the_user_of_their_options(
    run: Run, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They asked as no user, and were rejected."""
    broker = new_reput_broker(access={"enabled": True, "admin_secret": "secret-of-the-administrator"})
    (tmp_path / "secret").write_text("secret-of-the-administrator")
    user = ("-o", "user=admin", "-o", f"secretFile={tmp_path / 'secret'}")
    with ArchiveDirectory(tmp_path / "a") as archive:
        archive.begin(ArchiveKind("archive", "s"))
    monkeypatch.setattr("reput_pipeline.jobs.replay._queues_of", lambda *_: {"orders": 3})
    replayed = run("replay", "--archive", tmp_path / "a", "--server", broker.address, *user)
    assert replayed.code == 0, replayed.err
    with Admin(broker.address, credentials=Credentials("admin", "secret-of-the-administrator")) as admin:
        assert admin.topic_config("orders").write_queue_nums == 3
    lag = run("lag", "--server", broker.address, *user, "--master", "none")
    assert (lag.code, lag.result["groups"]) == (0, []), lag.err


def test_a_damaged_log_is_not_rebuilt(run: Run, root: Path, tmp_path: Path) -> None:
    damaged = copied(root, tmp_path / "store")
    flip_bit(min((damaged / "commitlog").iterdir()), 4)  # the magic of the first record
    before = tree(damaged)
    ran = run("rebuild", "--path", damaged, "--master", "none")
    assert ran.code == ExitCode.DAMAGE
    assert "nothing was changed" in ran.result["error"]
    assert tree(damaged) == before


def test_queues_and_index_come_out_byte_for_byte(run: Run, root: Path, tmp_path: Path) -> None:
    damaged = copied(root, tmp_path / "store")
    wanted = tree(damaged)
    for path in (damaged / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    flip_bit(min((damaged / "index").iterdir()), 200)
    assert tree(damaged) != wanted
    ran = run("rebuild", "--path", damaged, "--master", "none")
    assert ran.code == 0, ran.err
    rebuilt = tree(damaged)
    assert {name for name in wanted if rebuilt.get(name) != wanted[name]} <= {"checkpoint", "abort"}
    assert run("audit", "--path", damaged, "--master", "none").result["fault_count"] == 0


def test_a_job_that_needs_spark_says_so(run: Run, root: Path) -> None:
    refused = run("report", "--path", root, "--master", "none")
    assert (refused.code, refused.result["argument"]) == (ExitCode.USAGE, "--master")
    assert "the job report needs Spark" in refused.err


_WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])

sys.meta_path.insert(0, NoSpark())
from reput_pipeline.jobs.run import run_job

root, target = sys.argv[1:]
jobs = (["archive", "--to", target], ["audit"], ["find", "--text", "body-0007"], ["lag"], ["rebuild"])
for name, *more in jobs:
    assert run_job(name, ["--path", root, "--master", "none", *more]) == 0, name
"""


def test_spark_need_not_be_installed(root: Path, tmp_path: Path) -> None:
    arguments = [str(copied(root, tmp_path / "store")), str(tmp_path / "a")]
    ended = subprocess.run([sys.executable, "-c", _WITHOUT_SPARK, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert archived(tmp_path / "a") == stored(root)


def archived(root: Path) -> list[tuple[int, int, bytes]]:
    return places(pq.read_table(root).to_pylist())


def stored(root: Path) -> list[tuple[int, int, bytes]]:
    return places(read_arrow(root, "T").read_all().to_pylist())


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int, bytes]]:
    return sorted((row["queueId"], row["queueOffset"], row["body"]) for row in rows)
