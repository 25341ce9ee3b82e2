"""The store of a slave: the master's log byte for byte, its own queues, and a log that is truncated."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from reput_broker.store.base.errors import StoreClosed
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.layout import BLANK_BYTES
from reput_protocol.record.record import Record
from reput_protocol.record.scan import ScanStatus, scan_record
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options, tree

FILE = 4096


def filled(root: Path, count: int = 30, size: int = 400) -> MessageStore:
    """A master's store of several files and two queues."""
    store = opened(small_options(root))
    for number in range(count):
        put(store, b"%03d" % number + bytes(size), queue_id=number % 2, tag="a", keys=[f"k{number}"])
    dispatch_all(store)
    return store


def expected(numbers: range, size: int = 400) -> list[list[bytes]]:
    return [[b"%03d" % number + bytes(size) for number in numbers if number % 2 == queue] for queue in (0, 1)]


def replica_options(root: Path, **changes: object) -> StoreOptions:
    return small_options(root, is_replica=True, **changes)


def items(master: MessageStore, start: int) -> list[tuple[int, bytes]]:
    """The master's records, and blank records with what follows them, from an offset on."""
    found = []
    while start < master.max_physical_offset:
        rest = FILE - start % FILE
        data = (master.options.commit_log_dir / f"{start - start % FILE:020d}").read_bytes()
        scan = scan_record(data, start % FILE, FILE, check_crc=True)
        size = rest if scan.status is ScanStatus.BLANK else scan.size
        found.append((start, data[start % FILE : start % FILE + size]))
        start += size
    return found


def replicate(master: MessageStore, replica: MessageStore, start: int = 0) -> None:
    for offset, data in items(master, start):
        replica.append_replicated(offset, data)
    dispatch_all(replica)


def log_files(store: MessageStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in store.options.commit_log_dir.iterdir()}


def test_a_replica_has_the_same_files_and_derives_the_same_queues(tmp_path: Path) -> None:
    master, replica = filled(tmp_path / "m"), opened(replica_options(tmp_path / "s"))
    replicate(master, replica)
    assert [bodies(replica, "T", queue) for queue in (0, 1)] == expected(range(30))
    assert master.close()
    assert replica.close()
    assert tree(tmp_path / "m" / "commitlog") == tree(tmp_path / "s" / "commitlog")
    assert tree(tmp_path / "m" / "consumequeue") == tree(tmp_path / "s" / "consumequeue")


def test_a_replica_that_becomes_the_master_continues_queues_and_log(tmp_path: Path) -> None:
    master, replica = filled(tmp_path / "m"), opened(replica_options(tmp_path / "s"))
    replicate(master, replica)
    assert replica.close()
    promoted = opened(small_options(tmp_path / "s"))
    result = put(promoted, b"next", queue_id=1)
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 15)
    assert result.physical_offset == master.max_physical_offset


def test_a_replica_refuses_puts(tmp_path: Path) -> None:
    replica = opened(replica_options(tmp_path))
    assert put(replica, b"x").status is PutStatus.SERVICE_NOT_AVAILABLE
    assert replica.put_record(Record(topic="T", body=b"x")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert replica.max_physical_offset == 0


@pytest.mark.parametrize("where", ["gap", "overlap"])
def test_bytes_that_do_not_continue_the_log_are_refused(tmp_path: Path, where: str) -> None:
    master, replica = filled(tmp_path / "m"), opened(replica_options(tmp_path / "s"))
    (first, data), (second, more), *_ = items(master, 0)
    if where == "gap":
        with pytest.raises(ValueError, match=f"log offset {second} is not the end of this log, 0"):
            replica.append_replicated(second, more)
    replica.append_replicated(first, data)
    with pytest.raises(ValueError, match="is not the end of this log"):
        replica.append_replicated(first, data)
    with pytest.raises(ValueError, match="do not fit into their file"):
        replica.append_replicated(second, bytes(FILE))
    assert replica.max_physical_offset == second


def test_a_closed_replica_refuses_bytes(tmp_path: Path) -> None:
    replica = opened(replica_options(tmp_path))
    replica.close()
    with pytest.raises(StoreClosed):
        replica.append_replicated(0, b"x")


def test_a_replica_may_begin_at_a_later_file(tmp_path: Path) -> None:
    """Its queues then begin in the middle, before and after a restart."""
    master, replica = filled(tmp_path / "m"), opened(replica_options(tmp_path / "s"))
    last = master.max_physical_offset // FILE * FILE
    replica.begin_replica_at(last)
    assert replica.dispatch_is_idle()
    replicate(master, replica, last)
    assert replica.min_physical_offset == last
    first = replica.min_offset_in_queue("T", 0)
    assert first > 0
    assert bodies(replica, "T", 0) == expected(range(30))[0][first:]
    replica = MessageStore(killed(replica, tmp_path / "k"), clock_ms=FakeClock())
    replica.open()
    assert replica.min_offset_in_queue("T", 0) == first
    assert bodies(replica, "T", 0) == expected(range(30))[0][first:]
    with pytest.raises(ValueError, match="not empty, or no file starts there"):
        replica.begin_replica_at(FILE)


@pytest.mark.parametrize("at_once", [False, True], ids=["one after the other", "dispatched at once"])
def test_a_topic_that_the_master_deletes_and_creates_again_starts_again(tmp_path: Path, at_once: bool) -> None:
    master, replica = opened(small_options(tmp_path / "m")), opened(replica_options(tmp_path / "s"))
    put(master, *(b"old %d" % number for number in range(5)))
    if not at_once:
        replicate(master, replica)
    end = replica.max_physical_offset
    dispatch_all(master)
    master.delete_topic("T")
    new = [b"new %d" % number for number in range(3)]
    put(master, *new)
    replicate(master, replica, end)
    assert bodies(replica) == new
    # Its queues are rebuilt from the log, which has no mark of the deletion.
    options = replace(killed(replica, tmp_path / "k"), is_replica=False)
    shutil.rmtree(options.consume_queue_dir)
    assert bodies(opened(options)) == new


def test_a_killed_replica_ends_with_a_whole_record_or_before_a_blank_one(tmp_path: Path) -> None:
    master = filled(tmp_path / "m")
    everything = items(master, 0)
    blank = next(number for number, (start, data) in enumerate(everything) if (start + len(data)) % FILE == 0)
    for number in (0, blank - 1, blank, blank + 1):
        offset, data = everything[number]
        replica = opened(replica_options(tmp_path / f"s{number}"))
        for earlier in everything[:number]:
            replica.append_replicated(*earlier)
        replica.append_replicated(offset, data)
        again = MessageStore(killed(replica, tmp_path / f"k{number}"), clock_ms=FakeClock())
        is_blank = (offset + len(data)) % FILE == 0
        assert again.open().end_offset == (offset if is_blank else offset + len(data))
        replicate(master, again, again.max_physical_offset)
        assert [bodies(again, "T", queue) for queue in (0, 1)] == expected(range(30))
        assert log_files(again) == log_files(master)


def test_needs_a_file_only_if_the_bytes_do_not_fit(tmp_path: Path) -> None:
    master, replica = filled(tmp_path / "m"), opened(replica_options(tmp_path / "s"))
    for offset, data in items(master, 0):
        wanted = replica.needs_new_file(len(data) - BLANK_BYTES)
        assert wanted == (offset % FILE == 0)
        replica.append_replicated(offset, data)


@pytest.mark.parametrize("records", [0, 1, 8, 29, 30])
def test_what_is_truncated_is_kept_in_a_file(tmp_path: Path, records: int) -> None:
    """What was derived from it goes too; the next put takes its place in log and queue."""
    events: list[tuple[str, object]] = []
    store = filled(tmp_path)
    starts = [start for start, data in items(store, 0) if (start + len(data)) % FILE]
    end = store.max_physical_offset
    offset = starts[records] if records < 30 else end
    whole = b"".join(data for _, data in items(store, 0))
    assert store.close()
    options = small_options(tmp_path, on_event=lambda name, facts: events.append((name, facts)))
    store = MessageStore(options, clock_ms=FakeClock())
    report = store.open(truncate_to=offset)
    cut = sorted((tmp_path / "cut").iterdir()) if (tmp_path / "cut").exists() else []
    if offset == end:
        assert not cut
    else:
        (path,) = cut
        start = int(path.name.partition("-")[0])
        assert path.name == f"{start}-{end}.log"
        assert path.read_bytes() == whole[start:end]
        assert ("log_tail_truncated", {"path": str(path), "from_offset": start, "to_offset": end}) in events
        assert report.end_offset == start <= offset
    dispatch_all(store)
    store.complete_index()
    assert [bodies(store, "T", queue) for queue in (0, 1)] == expected(range(records))
    assert bool(store.query_message("T", "k29", 32, 0, 1 << 62).records) == (records == 30)
    result = put(store, b"next", queue_id=0)
    assert result.queue_offset == (records + 1) // 2
    dispatch_all(store)
    assert bodies(store, "T", 0)[-1] == b"next"
    assert store.close()
    assert opened(options).close()


def test_a_truncation_below_the_start_of_a_record_saves_all_of_it(tmp_path: Path) -> None:
    store = filled(tmp_path)
    starts = [start for start, _ in items(store, 0)]
    end = store.max_physical_offset
    assert store.close()
    store = MessageStore(store.options, clock_ms=FakeClock())
    assert store.open(truncate_to=starts[12] - 5).end_offset == starts[11]
    assert [path.name for path in (tmp_path / "cut").iterdir()] == [f"{starts[11]}-{end}.log"]


def test_consumers_see_nothing_beyond_the_confirm_offset(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, flush_sync=False))
    first = put(store, b"a")
    store.confirm_offset = first.end_offset
    put(store, b"b")
    dispatch_all(store)
    assert bodies(store, "T", 0) == [b"a"]
    assert store.is_confirmed
    assert store.close(), "everything is dispatched at the end"
    store = opened(store.options)
    store.confirm_offset = first.end_offset
    assert not store.is_confirmed
    assert store.message_at(first.end_offset) is None
    assert store.record_at(first.end_offset) is not None
    store.confirm_offset = store.max_physical_offset
    assert store.is_confirmed
    assert bodies(store, "T", 0) == [b"a", b"b"]
