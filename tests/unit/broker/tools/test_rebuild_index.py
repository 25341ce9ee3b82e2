"""`rebuild` of the key index: RocketMQ's bytes, and a start that keeps them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden.test_mini_store import INDEX, index_digests, mini_store, open_mini
from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.base.results import RecoveryReport
from reput_broker.store.message_store import MessageStore
from reput_broker.tools.index_raw import IndexSizes, index_sizes
from reput_broker.tools.rebuild import IndexRebuild, IndexSizesUnknown, QueuesRebuild, rebuild
from reput_protocol.record.record import decode_record
from reput_protocol.store.layout import Geometry, StoreLayout
from support.store_samples import examine, fill
from support.stores import FakeClock, dispatch_all, killed, opened, put, small_options


def made_anew(root: Path, *kinds: type[QueuesRebuild] | type[IndexRebuild], **geometry: int) -> list[str]:
    found = examine(root, geometry=Geometry(**geometry))
    assert not found.log.damages
    return rebuild(found.layout, found.log.kept_end, kinds or [IndexRebuild])


def index_bytes(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def index_places(root: Path) -> list[tuple[str, int]]:
    """Name and inode of the index files: a rebuilt file has another inode."""
    return [(path.name, path.stat().st_ino) for path in sorted((root / "index").iterdir())]


def started(root: Path) -> tuple[MessageStore, RecoveryReport, list[str]]:
    """Open a store, and return the events that it logged on the way."""
    events: list[str] = []
    options = small_options(root, on_event=lambda event, _: events.append(event))
    store = MessageStore(options, clock_ms=FakeClock())
    return store, store.open(), events


def numbers_of(store: MessageStore, key: str) -> list[int]:
    """Queue offsets of the messages that have a key, newest first."""
    store.complete_index()
    result = store.query_message("T", key, 64)
    assert result.is_complete
    return [decode_record(record).queue_offset for record in result.records]


def test_the_index_comes_out_byte_for_byte(tmp_path: Path) -> None:
    fill(tmp_path)
    wanted = index_bytes(tmp_path)
    assert len(wanted) == 4
    assert made_anew(tmp_path) == ["120 keys in 4 files"]
    assert index_bytes(tmp_path) == wanted
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)
    made_anew(tmp_path, index_slots=16)
    assert index_bytes(tmp_path) == wanted
    shutil.rmtree(tmp_path / "index")
    made_anew(tmp_path, index_slots=16, index_entries=40)
    assert index_bytes(tmp_path) == wanted
    assert not list(tmp_path.glob("rebuild-*"))
    assert not list(tmp_path.glob("*.replaced"))
    assert examine(tmp_path).report.is_clean


def test_the_index_of_a_genuine_log_is_that_of_rocketmq(tmp_path: Path) -> None:
    mini_store(tmp_path)
    assert made_anew(tmp_path, index_slots=8, index_entries=4) == ["4 keys in 2 files"]
    assert index_digests(tmp_path) == INDEX
    store = open_mini(tmp_path)
    assert numbers_of(store, "k1") == [2, 0]
    assert store.close()


@pytest.mark.parametrize("kinds", [(IndexRebuild,), (QueuesRebuild,), (QueuesRebuild, IndexRebuild)])
def test_the_next_start_keeps_what_was_made_and_has_nothing_to_do(
    tmp_path: Path, kinds: tuple[type[IndexRebuild], ...]
) -> None:
    fill(tmp_path)
    for path in (tmp_path / ("index" if IndexRebuild in kinds else "consumequeue")).rglob("0*2*"):
        path.unlink()
    made_anew(tmp_path, *kinds)
    places = index_places(tmp_path)
    store, report, events = started(tmp_path)
    assert (report.kind, report.dispatched, events) == ("clean", 0, [])
    assert report.checked_from > 0, "only the last file is read"
    assert store.index_behind_bytes == 0
    assert index_places(tmp_path) == places
    assert numbers_of(store, "k3") == [21, 11, 1]
    put(store, b"more")
    dispatch_all(store)
    assert store.close()
    assert index_places(tmp_path) == places
    assert examine(tmp_path).report.is_clean


def test_after_an_orderly_stop_of_rocketmq_the_index_is_kept_too(tmp_path: Path) -> None:
    fill(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:40].ljust(4096, b"\0"))  # RocketMQ leaves no mark
    made_anew(tmp_path)
    places = index_places(tmp_path)
    store, report, events = started(tmp_path)
    assert (report.kind, events) == ("clean", ["index_complete"]), "from its last record on"
    assert numbers_of(store, "k3") == [21, 11, 1]
    assert store.close()
    assert index_places(tmp_path) == places


def test_after_a_kill_the_start_keeps_the_full_files(tmp_path: Path) -> None:
    fill(tmp_path / "filled")
    running = opened(small_options(tmp_path / "filled"))
    root = killed(running, tmp_path / "killed").data_dir
    assert running.close()
    made_anew(root, QueuesRebuild, IndexRebuild)
    places = index_places(root)
    store, report, _ = started(root)
    assert report.kind == "abnormal"
    assert numbers_of(store, "k3") == [21, 11, 1]
    assert index_places(root)[:3] == places[:3]
    assert store.close()
    assert examine(root).report.is_clean


def test_a_log_that_has_lost_its_first_files(tmp_path: Path) -> None:
    fill(tmp_path)
    min((tmp_path / "commitlog").iterdir()).unlink()
    made_anew(tmp_path, QueuesRebuild, IndexRebuild)
    assert examine(tmp_path).report.is_clean
    store, report, events = started(tmp_path)
    assert (report.kind, events) == ("clean", [])
    assert numbers_of(store, "k3") == [21]
    assert store.close()


def test_files_are_named_by_the_times_of_their_records(tmp_path: Path) -> None:
    fill(tmp_path)
    made_anew(tmp_path)
    names = [name for name, _ in index_places(tmp_path)]
    assert names == sorted(names)
    assert all(name.startswith("2023111") for name in names)


def test_sizes_come_from_the_files_or_from_the_caller(tmp_path: Path) -> None:
    fill(tmp_path)

    def sizes(**geometry: int) -> IndexSizes | None:
        return index_sizes(StoreLayout(tmp_path, geometry=Geometry(**geometry)))

    assert sizes() == (16, 40)
    assert sizes(index_slots=16) == (16, 40)
    assert sizes(index_entries=40) == (16, 40)
    assert sizes(index_slots=3) is None, "the rest is no whole number of entries"
    assert sizes(index_slots=8, index_entries=99) == (8, 99)
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    assert sizes() is None
    assert sizes(index_slots=16) == (16, 40)
    shutil.rmtree(tmp_path / "index")
    assert sizes(index_slots=16) is None
    with pytest.raises(IndexSizesUnknown):
        made_anew(tmp_path)
    assert not list(tmp_path.glob("rebuild-*"))


def test_a_directory_elsewhere_is_not_replaced(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "index").rename(tmp_path / "elsewhere")
    (tmp_path / "index").symlink_to("elsewhere")
    with pytest.raises(ForeignFile, match="symbolic link"):
        made_anew(tmp_path)
    assert (tmp_path / "index").is_symlink()
    assert examine(tmp_path).report.is_clean
    assert not list(tmp_path.glob("rebuild-*"))


def test_other_files_than_index_files_are_not_removed(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "index" / "notes.txt").write_text("mine")
    wanted = index_bytes(tmp_path)
    with pytest.raises(ForeignFile, match=r"notes\.txt"):
        made_anew(tmp_path)
    assert index_bytes(tmp_path) == wanted
    assert not list(tmp_path.glob("rebuild-*"))
