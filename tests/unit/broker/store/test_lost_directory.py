"""A store whose directory is moved, deleted or covered while it is open."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from reput_broker.store.base.errors import DirectoryLost, FileMissing, StoreReadOnly
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.table_saver import save_now
from support.mounts import try_to_mount, unmount
from support.stores import T0, bodies, dispatch_all, opened, put, small_options, tree

Events = list[tuple[str, dict[str, object]]]


@pytest.fixture
def events() -> Events:
    return []


@pytest.fixture
def store(tmp_path: Path, events: Events) -> MessageStore:
    options = small_options(
        tmp_path / "data",
        commit_log_dirs=(tmp_path / "data" / "commitlog", tmp_path / "elsewhere"),
        on_event=lambda event, facts: events.append((event, dict(facts))),
    )
    store = opened(options)
    put(store, b"first")
    store.flush_commit_log()
    dispatch_all(store)
    store.flush_consume_queues()
    return store


def moved(root: Path) -> None:
    (root / "data").rename(root / "away")


def deleted(root: Path) -> None:
    shutil.rmtree(root / "data")


def replaced(root: Path) -> None:
    moved(root)
    (root / "data").mkdir()


def lock_replaced(root: Path) -> None:
    (root / "data" / "lock").unlink()
    (root / "data" / "lock").write_bytes(b"lock")


def log_directory_moved(root: Path) -> None:
    (root / "elsewhere").rename(root / "away")


def log_file_deleted(root: Path) -> None:
    for path in [*(root / "data/commitlog").iterdir(), *(root / "elsewhere").iterdir()]:
        path.unlink()


LOSSES = [moved, deleted, replaced, lock_replaced, log_directory_moved, log_file_deleted]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_no_message_is_flushed_into_a_directory_that_is_gone(
    tmp_path: Path, store: MessageStore, events: Events, lose: Callable[[Path], None]
) -> None:
    lose(tmp_path)
    assert put(store, b"second").status is PutStatus.PUT_OK, "the store has not looked yet"
    with pytest.raises(StoreReadOnly, match=str(tmp_path)):
        store.flush_commit_log()
    assert put(store, b"third").status is PutStatus.READ_ONLY
    assert [name for name, _ in events] == ["store_directory_lost", "store_read_only"]
    assert store.read_only_reason == events[0][1]["reason"]
    assert not store.close()


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_a_store_at_rest_notices_when_it_looks(
    tmp_path: Path, store: MessageStore, lose: Callable[[Path], None]
) -> None:
    store.check_directories()
    lose(tmp_path)
    with pytest.raises((DirectoryLost, FileMissing), match=str(tmp_path)):
        store.check_directories()
    assert put(store, b"second").status is PutStatus.READ_ONLY
    store.close()


def test_nothing_is_created_at_a_lost_path(tmp_path: Path, store: MessageStore) -> None:
    moved(tmp_path)
    for _ in range(40):
        put(store, bytes(300))
    assert put(store, b"x").status is PutStatus.READ_ONLY
    with pytest.raises(DirectoryLost, match="nothing is there"):
        (store.options.data_dir / "config").mkdir()
    with pytest.raises(StoreReadOnly):
        store.delete_topic("T")
    assert not store.close()
    assert not (tmp_path / "data").exists()
    assert (tmp_path / "away" / "abort").exists()


def test_a_second_store_at_the_path_is_left_alone(tmp_path: Path, store: MessageStore) -> None:
    """Queues are dispatched, topics deleted and everything is closed, and none of it reaches the other one's files."""
    replaced(tmp_path)
    second = opened(small_options(tmp_path / "data"))
    put(second, b"other", topic="T")
    dispatch_all(second)
    assert second.close()
    before = tree(tmp_path / "data")
    for queue_id in range(3):
        put(store, bytes(300), topic="T", queue_id=queue_id)
    store.reput_step()
    with pytest.raises((DirectoryLost, StoreReadOnly)):
        store.delete_topic("T")
    for write in (store.flush_commit_log, store.flush_consume_queues, store.write_checkpoint):
        with suppress(DirectoryLost, StoreReadOnly):
            write()
    assert not store.close()
    assert tree(tmp_path / "data") == before


def test_acknowledged_messages_are_in_the_moved_directory(tmp_path: Path, store: MessageStore) -> None:
    replaced(tmp_path)
    with pytest.raises(DirectoryLost):
        store.check_directories()
    assert not store.close()
    (tmp_path / "data").rmdir()
    (tmp_path / "away").rename(tmp_path / "data")
    store.open()
    assert bodies(store) == [b"first"]
    assert put(store, b"second").status is PutStatus.PUT_OK
    dispatch_all(store)
    assert store.close()


def test_a_directory_that_returns_is_used_only_after_a_restart(tmp_path: Path, store: MessageStore) -> None:
    """What was at the path meanwhile, and who has read or written there, is unknown."""
    moved(tmp_path)
    with pytest.raises(DirectoryLost):
        store.check_directories()
    (tmp_path / "away").rename(tmp_path / "data")
    with pytest.raises(DirectoryLost):
        store.check_directories()
    assert put(store, b"second").status is PutStatus.READ_ONLY
    store.close()


def test_an_offset_is_not_committed_to_a_journal_that_is_gone(tmp_path: Path, store: MessageStore) -> None:
    path = store.options.data_dir / "config" / "consumerOffset.json"
    offsets = ConsumerOffsetManager(path, clock_ms=lambda: T0)
    offsets.load()
    offsets.commit("g", "T", 0, 1)
    replaced(tmp_path)
    (tmp_path / "data" / "config").mkdir()
    (tmp_path / "data" / "config" / "consumerOffset.json").write_bytes(b"another broker's")
    with pytest.raises(JournalWriteFailed, match="is not what this broker opened"):
        offsets.commit("g", "T", 0, 2)
    assert offsets.query("g", "T", 0) == 1
    with pytest.raises(DirectoryLost):
        save_now(offsets)
    offsets.close()
    store.close()
    assert tree(tmp_path / "data") == {"config/consumerOffset.json": b"another broker's"}


@pytest.mark.parametrize("covered", ["data", "elsewhere"])
def test_a_disk_that_is_mounted_over_a_directory_is_noticed(tmp_path: Path, store: MessageStore, covered: str) -> None:
    if not try_to_mount(tmp_path / covered, 1 << 20):
        pytest.skip("no right to mount a file system")
    try:
        with pytest.raises(DirectoryLost, match="another one is there"):
            store.check_directories()
        assert not store.close()
        assert os.listdir(tmp_path / covered) == []
    finally:
        unmount(tmp_path / covered)
