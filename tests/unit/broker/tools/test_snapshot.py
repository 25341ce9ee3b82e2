"""A snapshot of a directory that changes while it is copied, file by file."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reput_broker.store.base.checkpoint import FlushMark
from reput_broker.store.message_store import MessageStore
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.topics import TopicConfigManager
from reput_broker.tools import snapshot as module
from reput_broker.tools.snapshot import INCOMPLETE, SnapshotFailed, SourceState, take_snapshot
from reput_cli.failures import CommandFailed
from reput_cli.store import command
from reput_protocol.commands.topic import TopicConfig
from support.retention import Cleaning, FakeMachine
from support.store_samples import examine, fill, fill_tables, hashes
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PASS_INTERVAL_S", 0.0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[MessageStore]:
    """A store in use, with 30 messages in each of two queues of T."""
    store = opened(small_options(tmp_path / "store"))
    for number in range(30):
        put(store, b"%d" % number, keys=[f"k{number}"])
        put(store, b"%d" % number, queue_id=1)
    dispatch_all(store)
    store.write_checkpoint()
    fill_tables(store.options.data_dir)
    yield store
    store.close()


@pytest.fixture
def before_copy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Have a function called with the path of each file, below the copy, before it is copied."""

    def install(call: Callable[[str], None]) -> None:
        real = module._Copying._copy_opened

        def copy(self: module._Copying, fd: int, target: Path, stop: int | None = None) -> None:
            call(str(target.relative_to(self._copy)))
            real(self, fd, target, stop)

        monkeypatch.setattr(module._Copying, "_copy_opened", copy)

    return install


def once(call: Callable[[], object], name: str) -> Callable[[str], None]:
    """Call at the first file whose path begins with `name`."""
    left = [call]

    def see(path: str) -> None:
        if path.startswith(name) and left:
            left.pop()()

    return see


def read(store: MessageStore, copy: Path, queue_id: int = 0, topic: str = "T") -> list[bytes]:
    """The messages of a queue in a copy, which a verification found clean and a start completes."""
    report = examine(copy).report
    assert report.is_clean, report.faults
    again = opened(replace(store.options, data_dir=copy))
    try:
        return bodies(again, topic, queue_id)
    finally:
        again.close()


def test_a_stopped_store_is_copied_as_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    before = hashes(tmp_path / "store")
    reports: list[tuple[int, int]] = []
    made = take_snapshot(tmp_path / "store", tmp_path / "copy", (), lambda *report: reports.append(report))
    assert made.state is SourceState.STOPPED
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1][0] == made.bytes <= reports[-1][1]
    assert hashes(tmp_path / "store") == before
    del before["lock"]
    assert hashes(tmp_path / "copy") == before
    assert made.files == len(before)
    assert not (tmp_path / "copy.partial").exists()


def test_a_killed_store_is_copied_as_it_is(running: MessageStore, tmp_path: Path) -> None:
    put(running, b"not dispatched")
    image = killed(running, tmp_path / "image").data_dir
    before = {name: found for name, found in hashes(image).items() if name != "lock"}
    assert take_snapshot(image, tmp_path / "copy").state is SourceState.KILLED
    assert hashes(tmp_path / "copy") == before
    assert read(running, tmp_path / "copy")[-1] == b"not dispatched"


def test_messages_are_stored_before_each_file_is_copied(
    running: MessageStore, tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    stored = [b"%d" % number for number in range(30)]
    copied: list[str] = []

    def put_more(path: str) -> None:
        copied.append(path)
        body = b"during %d" % len(copied)
        put(running, body, keys=["k"])
        stored.append(body)
        dispatch_all(running)
        running.flush_consume_queues()
        running.write_checkpoint()

    before_copy(put_more)
    made = take_snapshot(running.options.data_dir, tmp_path / "copy")
    assert made.state is SourceState.RUNNING
    assert copied[0] == "abort" or copied[0] == "checkpoint"
    assert copied.index("checkpoint") < min(i for i, path in enumerate(copied) if "/" in path)
    first_of_log = next(i for i, path in enumerate(copied) if path.startswith("commitlog"))
    assert all(path.startswith("commitlog") for path in copied[first_of_log:])
    found = read(running, tmp_path / "copy")
    # Each file is copied after a message was stored; the end of the log was determined before the log was copied.
    assert found == stored[: len(found)]
    assert len(found) >= 30 + first_of_log - 1


@pytest.mark.parametrize("at", ["checkpoint", "consumequeue/T/1", "consumequeue/T/0", "config", "commitlog"])
def test_a_topic_deleted_and_created_again_is_copied_as_one_of_both(
    running: MessageStore,
    tmp_path: Path,
    before_copy: Callable[[Callable[[str], None]], None],
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    running.delete_topic("an earlier one")

    def replace_topic() -> None:
        running.delete_topic("T")
        put(running, b"of the new one")
        dispatch_all(running)

    before_copy(once(replace_topic, at))
    monkeypatch.setattr(module, "PASSES", 1)
    take_snapshot(running.options.data_dir, tmp_path / "copy")
    old = [b"%d" % number for number in range(30)]
    assert read(running, tmp_path / "copy") == (old if at == "commitlog" else [b"of the new one"])


def test_a_topic_created_before_the_end_of_the_log_is_known_is_in_the_tables(
    running: MessageStore, tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    root = running.options.data_dir
    topics = TopicConfigManager(root / "config" / "topics.json", clock_ms=FakeClock())
    topics.load()

    def create() -> None:
        topics.put(TopicConfig(topic_name="late", read_queue_nums=1, write_queue_nums=1))
        save_now(topics)
        put(running, b"x", topic="late")

    (root / "timerlog").mkdir()
    (root / "timerlog" / "file").write_bytes(b"")  # copied after the tables
    before_copy(once(create, "timerlog"))
    take_snapshot(root, tmp_path / "copy")
    assert '"late"' in (tmp_path / "copy" / "config" / "topics.json").read_text()
    assert read(running, tmp_path / "copy", topic="late") == [b"x"]


def test_offsets_and_their_journal_are_of_one_moment(
    running: MessageStore, tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    root = running.options.data_dir
    offsets = ConsumerOffsetManager(root / "config" / "consumerOffset.json", clock_ms=FakeClock())
    offsets.load()

    def commit_and_save() -> None:
        offsets.commit("billing", "T", 0, 11)
        save_now(offsets)
        offsets.commit("billing", "T", 0, 12)

    before_copy(once(commit_and_save, "config/consumerOffset.journal"))
    take_snapshot(root, tmp_path / "copy")
    offsets.close()
    found = ConsumerOffsetManager(tmp_path / "copy" / "config" / "consumerOffset.json", clock_ms=FakeClock())
    found.load()
    assert found.query("billing", "T", 0) == 12
    found.close()


def test_stagings_that_appear_with_the_end_of_the_log_are_copied(
    running: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = running.options.data_dir / "staging"
    staging.mkdir()
    (staging / "first.stage").write_bytes(b"before")
    real = module._Copying._find_end
    calls: list[int] = []

    def find_end(self: module._Copying, mark: FlushMark) -> int:
        calls.append(1)
        if len(calls) == 1:
            (staging / "second.stage").write_bytes(b"decided before the end")
        end = real(self, mark)
        if len(calls) == 2:
            (staging / "first.stage").write_bytes(b"before, and more")
        return end

    monkeypatch.setattr(module._Copying, "_find_end", find_end)
    take_snapshot(running.options.data_dir, tmp_path / "copy")
    found = {path.name: path.read_bytes() for path in (tmp_path / "copy" / "staging").iterdir()}
    assert found == {"first.stage": b"before, and more", "second.stage": b"decided before the end"}


def test_files_that_expire_meanwhile_are_the_oldest(
    tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    machine = FakeMachine()
    options = small_options(tmp_path / "store")
    store = MessageStore(options, clock_ms=machine.surroundings().clock_ms)
    store.open()
    cleaning = Cleaning(store, machine)
    for number in range(120):
        put(store, b"%d" % number)
    dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    logs = sorted(path.name for path in options.commit_log_dir.iterdir())

    def expire() -> None:
        machine.used = 0.99
        cleaning.clean()

    before_copy(once(expire, f"commitlog/{logs[2]}"))
    made = take_snapshot(options.data_dir, tmp_path / "copy")
    assert not (options.commit_log_dir / logs[0]).exists()
    assert made.log_start == int(logs[2])
    found = read(store, tmp_path / "copy")
    assert found == [b"%d" % number for number in range(120 - len(found), 120)]
    store.close()


def test_a_stop_and_a_start_meanwhile_are_noticed(
    running: MessageStore, tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    root = running.options.data_dir
    before_copy(once(running.close, "consumequeue"))
    assert take_snapshot(root, tmp_path / "stopped").state is SourceState.STOPPED
    assert read(running, tmp_path / "stopped") == [b"%d" % number for number in range(30)]

    def start() -> None:
        running.open()
        put(running, b"after the start")

    before_copy(once(start, "commitlog"))
    assert take_snapshot(root, tmp_path / "started").state is SourceState.RUNNING
    assert read(running, tmp_path / "started")[-1] == b"after the start"


def test_a_directory_that_changes_in_each_pass_is_given_up(
    running: MessageStore, tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    def set_aside(path: str) -> None:
        if path == "checkpoint":
            (running.options.data_dir / "reopen.json").touch()
            (running.options.data_dir / "reopen.json").replace(running.options.data_dir / "cut")

    before_copy(set_aside)
    with pytest.raises(SnapshotFailed) as failed:
        take_snapshot(running.options.data_dir, tmp_path / "copy")
    assert failed.value.what.endswith(f"changed during each of {module.PASSES} attempts to copy it")
    assert failed.value.reason == "last: cut was created, replaced or removed"
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_log_that_a_slave_truncates_is_copied_again(
    running: MessageStore, tmp_path: Path, before_copy: Callable[[Callable[[str], None]], None]
) -> None:
    root = running.options.data_dir

    def begin_epoch() -> None:
        (root / "epochFileCheckpoint").write_text("1\n")

    before_copy(once(begin_epoch, "commitlog"))
    take_snapshot(root, tmp_path / "copy")
    assert (tmp_path / "copy" / "epochFileCheckpoint").exists()


def test_only_a_broker_of_reput_may_be_running(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    AbortMarker(tmp_path / "store" / "abort").create()
    (tmp_path / "store" / "checkpoint").write_bytes(bytes(4096))
    lock = DirectoryLock(tmp_path / "store" / "lock", AbortMarker(tmp_path / "store" / "abort"))
    lock.acquire()
    with pytest.raises(SnapshotFailed, match="not by a broker of Reput"):
        take_snapshot(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store" / "abort").unlink()
    with pytest.raises(SnapshotFailed) as failed:
        take_snapshot(tmp_path / "store", tmp_path / "copy")
    assert failed.value.reason is not None
    assert "has no file `abort`" in failed.value.reason
    lock.release()


def test_several_log_directories_become_one(tmp_path: Path) -> None:
    dirs = (tmp_path / "a", tmp_path / "b")
    options = small_options(tmp_path / "store", commit_log_dirs=dirs)
    store = opened(options)
    for number in range(120):
        put(store, b"%d" % number)
    dispatch_all(store)
    store.write_checkpoint()
    name = min(path.name for path in dirs[0].iterdir())
    (dirs[1] / name).write_bytes(bytes(100))  # it could not be created there
    with pytest.raises(SnapshotFailed) as failed:
        take_snapshot(options.data_dir, tmp_path / "copy")
    assert "--commit-log-dir" in failed.value.remedy
    take_snapshot(options.data_dir, tmp_path / "copy", dirs)
    copy = replace(options, data_dir=tmp_path / "copy", commit_log_dirs=())
    assert bodies(opened(copy)) == [b"%d" % number for number in range(120)]
    shutil.copy2(dirs[0] / name, dirs[1] / name)
    with pytest.raises(SnapshotFailed, match="the same part of the log"):
        take_snapshot(options.data_dir, tmp_path / "again", dirs)
    store.close()


def test_an_unfinished_snapshot_is_not_taken_for_a_store(
    running: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_here(_directory: Path) -> None:
        shutil.copytree(tmp_path / "copy.partial", tmp_path / "left")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_sync_tree", end_here)
    with pytest.raises(KeyboardInterrupt):
        take_snapshot(running.options.data_dir, tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["left", "store"]
    left = examine(tmp_path / "left").report
    assert [fault.file.name for fault in left.faults] == [INCOMPLETE]
    with pytest.raises(Exception, match=INCOMPLETE):
        opened(replace(running.options, data_dir=tmp_path / "left"))


def test_holes_stay_holes_however_bytes_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "store")
    sparse = tmp_path / "store" / "kvStore"
    with sparse.open("wb") as file:
        file.truncate(64 << 20)
        file.seek(32 << 20)
        file.write(b"x")

    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    for name in ("by-reference", "by-reading"):
        made = take_snapshot(tmp_path / "store", tmp_path / name)
        assert made.bytes < 1 << 20
        assert (tmp_path / name / "kvStore").read_bytes() == sparse.read_bytes()
        assert (tmp_path / name / "kvStore").stat().st_blocks * 512 < 1 << 20
        monkeypatch.setattr(os, "copy_file_range", refuse)


def test_no_room_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "store")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr(module, "write_all", full)
    with pytest.raises(SnapshotFailed) as failed:
        take_snapshot(tmp_path / "store", tmp_path / "copy")
    assert failed.value.what == f"there is no room for a snapshot at {tmp_path / 'copy'}"
    assert failed.value.reason is not None
    assert "bytes were free" in failed.value.reason
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def reput_store(*arguments: object) -> tuple[object, BaseException | None, str]:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    return done.return_value, done.exception, done.stdout


def test_targets_that_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root)
    before = hashes(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "begun.partial").mkdir()
    (tmp_path / "link").symlink_to(root)
    for target, what, remedy in (
        (tmp_path / "there", "exists", "another name"),
        (root, "exists", "another name"),
        (root / "copy", "is inside the store", "somewhere else"),
        (tmp_path / "link" / "copy", "is inside the store", "somewhere else"),
        (tmp_path / "begun", "begun.partial exists", f"rm -r {tmp_path / 'begun.partial'}"),
        (tmp_path / "missing" / "copy", f"there is no directory {tmp_path / 'missing'}", "mkdir -p"),
    ):
        _, failed, _ = reput_store("snapshot", root, "--to", target)
        assert isinstance(failed, CommandFailed), target
        assert what in failed.what
        assert failed.remedy is not None
        assert remedy in failed.remedy
    _, failed, _ = reput_store("snapshot", tmp_path / "there", "--to", tmp_path / "copy")
    assert isinstance(failed, CommandFailed)
    assert failed.what == f"{tmp_path / 'there'} is not a store directory"
    assert hashes(tmp_path) == before


def test_the_command(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    _, failed, text = reput_store("snapshot", tmp_path / "store", "--to", tmp_path / "copy", "-O", "json")
    assert failed is None
    facts = json.loads(text)
    assert (facts["broker"], facts["log_start"]) == ("stopped", 0)
    assert facts["files"] == len([path for path in (tmp_path / "copy").rglob("*") if path.is_file()])
    assert reput_store("verify", tmp_path / "copy")[0] == 0


def test_modes_of_directories_and_the_users_are_kept(running: MessageStore, tmp_path: Path) -> None:
    source = running.options.data_dir
    (source / "access").mkdir(mode=0o700)
    (source / "access" / "users.json").write_text("{}")
    modes = {".": 0o750, "access": 0o700, "config": 0o750, "commitlog": 0o710, "consumequeue/T": 0o700}
    for name, mode in modes.items():
        (source / name).chmod(mode)
    (source / "access" / "users.json").chmod(0o600)
    take_snapshot(source, tmp_path / "copy")
    found = {name: stat.S_IMODE((tmp_path / "copy" / name).stat().st_mode) for name in modes}
    assert found == modes
    assert stat.S_IMODE((tmp_path / "copy" / "access" / "users.json").stat().st_mode) == 0o600
