"""The key index: bytes as RocketMQ writes them, nothing missed, nothing of another key."""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_broker.store.base.errors import DiskFull, ForeignFile
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block
from reput_broker.store.index import file as index_file
from reput_broker.store.index.file import IndexFile, IndexHeader
from reput_broker.store.message_store import MessageStore
from reput_protocol.commands.query import TIME_MAX_MS
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import decode_record
from support.stores import BORN_HOST, T0, FakeClock, dispatch_all, killed, opened, small_options

Key = tuple[int, int, int]


def put_keys(store: MessageStore, body: bytes, *keys: str, unique_id: str | None = None, topic: str = "T") -> None:
    block = bytearray(encode_put_block([Message(topic, body, keys=keys, unique_id=unique_id)], topic, 0, T0))
    result = store.put_one(Block(block, topic, 0, 1, BORN_HOST))
    assert result.status.name == "PUT_OK"


def found(
    store: MessageStore, key: str, topic: str = "T", count: int = 64, begin_ms: int = 0, end_ms: int = TIME_MAX_MS
) -> list[bytes]:
    store.complete_index()
    result = store.query_message(topic, key, count, begin_ms, end_ms)
    assert result.is_complete
    return [decode_record(record).body for record in result.records]


def index_bytes(options: StoreOptions) -> list[bytes]:
    return [path.read_bytes() for path in sorted(options.index_dir.iterdir())]


# -- one file ----------------------------------------------------------------------------------------------------

keys = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10**12), st.integers(-5000, 500_000)), min_size=1, max_size=60
)


class KeyByKey:
    """An index file as RocketMQ fills it, a key at a time (IndexFile.putKey, store format 5.3)."""

    def __init__(self, slots: int, entries: int) -> None:
        self.slots = [0] * slots
        self.entries = [(0, 0, 0, 0)] * entries
        self.header = [0, 0, 0, 0, 0, 1]

    def put_key(self, key_hash: int, physical_offset: int, stored_ms: int) -> None:
        begin_ms, _, begin_offset, _, used, number = self.header
        slot = key_hash % len(self.slots)
        previous = self.slots[slot]
        if not 0 < previous <= number:
            previous = 0
            used += 1
        seconds = 0 if begin_ms <= 0 else min(max((stored_ms - begin_ms) // 1000, 0), 2**31 - 1)
        self.entries[number] = (key_hash, physical_offset, seconds, previous)
        self.slots[slot] = number
        if number <= 1:
            begin_ms, begin_offset = stored_ms, physical_offset
        self.header = [begin_ms, stored_ms, begin_offset, physical_offset, used, number + 1]

    def content(self) -> bytes:
        parts = [struct.pack(">qqqqii", *self.header), struct.pack(f">{len(self.slots)}i", *self.slots)]
        return b"".join(parts + [struct.pack(">iqii", *entry) for entry in self.entries])


@given(data=st.data(), some=keys, slots=st.integers(1, 9))
def test_keys_inserted_together_are_stored_as_keys_inserted_one_by_one(
    data: st.DataObject, some: list[Key], slots: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("index")
    file = IndexFile(directory / "many", slots, len(some) + 1, create=True)
    model = KeyByKey(slots, len(some) + 1)
    begins_after = data.draw(st.sampled_from([0, T0]))
    if begins_after:
        file.continue_from(IndexHeader(1, begins_after, 1, 2, 1, 3))
        model.header = [begins_after, begins_after, 2, 2, 0, 1]
    some = [(key_hash, offset, T0 + time) for key_hash, offset, time in some]
    start = 0
    while start < len(some):
        count = data.draw(st.integers(1, len(some) - start))
        part = some[start : start + count]
        for key in part:
            model.put_key(*key)
        file.insert(flat(part), 0, count)
        start += count
    file.flush()
    file.close()
    assert (directory / "many").read_bytes() == model.content()


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    IndexFile(tmp_path / "1", 4, 8, create=True).close()
    with pytest.raises(ForeignFile, match="move index/ away"):
        IndexFile(tmp_path / "1", 4, 9, create=False)


# -- through the store -------------------------------------------------------------------------------------------


def test_messages_are_found_by_unique_id_and_by_each_key(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put_keys(store, b"1", "a", "b", unique_id="U1")
    put_keys(store, b"2", "b", unique_id="U2")
    put_keys(store, b"3")
    put_keys(store, b"4", "b", topic="other")
    dispatch_all(store)
    assert found(store, "a") == [b"1"]
    assert found(store, "b") == [b"2", b"1"], "newest first"
    assert found(store, "b", count=1) == [b"2"]
    assert found(store, "U2") == [b"2"]
    assert found(store, "b", topic="other") == [b"4"]
    assert found(store, "c") == []
    assert found(store, "") == [b"2", b"1"], "by time alone; the third has no key"
    store.close()


def test_keys_that_share_a_hash_are_told_apart(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put_keys(store, b"1", "Aa")
    put_keys(store, b"2", "BB")
    put_keys(store, b"3", "Aa", "BB")
    dispatch_all(store)
    assert found(store, "Aa") == [b"3", b"1"]
    assert found(store, "BB") == [b"3", b"2"]
    store.close()


def test_time_bounds_are_exact_although_entries_hold_seconds(tmp_path: Path) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)
    times = [T0, T0 + 1, T0 + 999, T0 + 1000, T0 + 1001, T0 + 60_000, T0 + 3_600_000]
    for number, time in enumerate(times):
        clock.now_ms = time
        put_keys(store, b"%d" % number, "k", *[f"x{number}.{n}" for n in range(9)])
    dispatch_all(store)
    assert len(index_bytes(store.options)) > 1
    for begin in (0, *times, T0 + 500, T0 + 3_700_000):
        for end in (*times, T0 + 30_000, 1 << 62):
            wanted = [b"%d" % n for n, time in reversed(list(enumerate(times))) if begin <= time <= end]
            assert found(store, "k", begin_ms=begin, end_ms=end) == wanted, (begin, end)
    store.close()


@pytest.mark.parametrize("per_put", [1, 30, 200])
def test_thousands_of_keys_over_many_files_are_all_found_and_again_after_a_stop(tmp_path: Path, per_put: int) -> None:
    options = small_options(tmp_path, commit_log_file_size=65_536)
    store = opened(options)
    bodies = [b"%04d" % n for n in range(600)]
    for start in range(0, len(bodies), per_put):
        part = bodies[start : start + per_put]
        messages = [Message("T", body, keys=[f"k{body.decode()}", f"m{int(body) % 7}"]) for body in part]
        ids = [f"{int(body):032X}" for body in part]
        block = bytearray(encode_put_block(messages, "T", 0, T0, ids))
        store.put_one(Block(block, "T", 0, len(part), BORN_HOST))
        dispatch_all(store)
    for _ in range(2):
        for body in bodies:
            assert found(store, f"k{body.decode()}") == [body]
            assert found(store, f"{int(body):032X}") == [body]
        assert found(store, "m3", count=5) == [b"0598", b"0591", b"0584", b"0577", b"0570"]
        assert store.close()
        store = opened(options)
    store.close()


def test_a_lost_or_changed_index_is_rebuilt(tmp_path: Path) -> None:
    options = small_options(tmp_path, commit_log_file_size=65_536)
    store = opened(options)
    for n in range(100):
        put_keys(store, b"%d" % n, f"k{n}", unique_id=f"U{n}")
    dispatch_all(store)
    store.close()
    before = index_bytes(options)
    assert len(before) > 2
    for change in ("all", "first", "last", "garbled"):
        files = sorted(options.index_dir.iterdir())
        for path in {"all": files, "first": files[:1], "last": files[-1:], "garbled": []}[change]:
            path.unlink()
        if change == "garbled":
            files[1].write_bytes(b"\xff" * 40 + files[1].read_bytes()[40:])
        store = opened(options)
        for n in range(100):
            assert found(store, f"k{n}") == found(store, f"U{n}") == [b"%d" % n]
        assert store.close()
        assert index_bytes(options) == before, "made of the same log, the same bytes"


def test_after_a_kill_nothing_is_missed(tmp_path: Path) -> None:
    options = small_options(tmp_path / "a", commit_log_file_size=65_536)
    store = opened(options)
    for n in range(100):
        put_keys(store, b"%d" % n, f"k{n}", unique_id=f"U{n}")
        if n % 10 == 0:
            dispatch_all(store)
        if n == 55:
            store.flush_index()  # the full files up to now are known to be whole
    dispatch_all(store)
    image = killed(store, tmp_path / "b")
    newest = max(image.index_dir.iterdir())
    newest.write_bytes(newest.read_bytes()[:40] + b"\xff" * (newest.stat().st_size - 40))
    again = opened(image)
    for n in range(100):
        assert found(again, f"k{n}") == found(again, f"U{n}") == [b"%d" % n]
    again.close()
    store.close()


@pytest.mark.parametrize("size", [0, 100])
def test_a_kill_while_a_file_is_created_is_not_a_fault(tmp_path: Path, size: int) -> None:
    store = opened(small_options(tmp_path / "a"))
    put_keys(store, b"1", "k")
    dispatch_all(store)
    image = killed(store, tmp_path / "b")
    unfinished = image.index_dir / "99991231235959999"
    unfinished.write_bytes(bytes(size))
    again = opened(image)
    assert found(again, "k") == [b"1"]
    assert not unfinished.exists()
    assert again.close()
    unfinished.write_bytes(bytes(size))
    with pytest.raises(ForeignFile):
        opened(image)  # an orderly stop leaves no such file
    store.close()


def test_a_long_index_is_completed_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    options = small_options(tmp_path, on_event=lambda event, _: events.append(event))
    store = opened(options)
    for n in range(30):
        put_keys(store, b"%d" % n, f"k{n}")
    dispatch_all(store)
    store.close()
    for path in options.index_dir.iterdir():
        path.unlink()
    monkeypatch.setattr("reput_broker.store.index.service.INDEX_AT_ONCE_BYTES", 0)
    store = opened(options)
    assert events == ["index_behind"]
    assert store.index_behind_bytes > 0
    put_keys(store, b"new", "k3", "new")
    dispatch_all(store)
    result = store.query_message("T", "k3", 64)
    assert (result.records, result.is_complete) == ((), False)
    while store.index_step(500):
        pass
    assert events == ["index_behind", "index_complete"]
    assert found(store, "k3") == [b"new", b"3"]
    put_keys(store, b"newer", "k3")
    dispatch_all(store)
    assert found(store, "k3") == [b"newer", b"new", b"3"]
    store.close()


def test_completing_continues_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = small_options(tmp_path)
    store = opened(options)
    for n in range(30):
        put_keys(store, b"%d" % n, f"k{n}")
    dispatch_all(store)
    store.close()
    complete = index_bytes(options)
    for path in options.index_dir.iterdir():
        path.unlink()
    monkeypatch.setattr("reput_broker.store.index.service.INDEX_AT_ONCE_BYTES", 0)
    rounds = 0
    store = opened(options)
    while store.index_behind_bytes:
        store.index_step(300)
        store.close()
        store = opened(options)
        rounds += 1
    assert rounds > 3
    store.close()
    assert index_bytes(options) == complete


def test_a_full_disk_loses_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path, commit_log_file_size=65_536), clock)
    real = IndexFile.__init__
    full = False

    def limited(self: IndexFile, path: Path, slots: int, entries: int, *, create: bool) -> None:
        if create and full:
            raise DiskFull(path, 1)
        real(self, path, slots, entries, create=create)

    monkeypatch.setattr(IndexFile, "__init__", limited)
    put_keys(store, b"x", "k")
    dispatch_all(store)
    full = True
    for start in range(0, 1200, 60):
        messages = [Message("T", b"%d" % n, keys=[f"k{n}", "all"]) for n in range(start, start + 60)]
        block = bytearray(encode_put_block(messages, "T", 0, T0))
        store.put_one(Block(block, "T", 0, 60, BORN_HOST))
    store.flush_commit_log()
    while store.reput_step(max_bytes=20_000):
        pass
    assert store.disk_full_reason is not None
    assert store.dispatch_behind_bytes > 0
    with pytest.raises(DiskFull):
        store.complete_index()
    full = False
    clock.now_ms += 1000
    dispatch_all(store)
    assert store.disk_full_reason is None
    for n in range(1200):
        assert found(store, f"k{n}") == [b"%d" % n]
    assert len(found(store, "all")) == 64
    store.close()
    once = index_bytes(store.options)
    for path in store.options.index_dir.iterdir():
        path.unlink()
    opened(store.options).close()
    assert index_bytes(store.options) == once, "no key was indexed twice"


@pytest.mark.parametrize("name", ["20240101000000000", "notes.txt"])
def test_a_foreign_index_file_refuses_the_start_and_stays(tmp_path: Path, name: str) -> None:
    options = small_options(tmp_path)
    store = opened(options)
    put_keys(store, b"1", "k")
    store.close()
    foreign = options.index_dir / name
    foreign.write_bytes(b"i")
    with pytest.raises(ForeignFile, match="index"):
        opened(options)
    assert foreign.read_bytes() == b"i"
    assert not (tmp_path / "abort").exists()
    foreign.unlink()
    store = opened(options)
    assert found(store, "k") == [b"1"]
    store.close()


def test_deleted_messages_are_not_found(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put_keys(store, b"1", "k")
    dispatch_all(store)
    store.delete_topic("T")
    assert found(store, "k") == []
    store.close()


def test_a_store_without_an_index_reports_that_and_leaves_files_alone(tmp_path: Path) -> None:
    options = small_options(tmp_path, index_enabled=False)
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "something").write_bytes(b"of somebody")
    store = opened(options)
    put_keys(store, b"1", "k")
    dispatch_all(store)
    assert store.query_message("T", "k", 1) == ((), 0, 0, False)
    assert store.close()
    assert (tmp_path / "index" / "something").read_bytes() == b"of somebody"
    (tmp_path / "index" / "something").unlink()
    store = opened(replace(options, index_enabled=True))
    assert found(store, "k") == [b"1"]
    store.close()


def test_the_next_file_is_made_ahead_and_goes_with_an_orderly_stop(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    for n in range(30):
        put_keys(store, b"%d" % n, f"k{n}")
    dispatch_all(store)
    while store.should_prepare_next_file():
        store.prepare_next_file()
    assert len(index_bytes(store.options)) == 2
    store.close()
    assert len(index_bytes(store.options)) == 1
    store = opened(store.options)
    store.prepare_next_file()
    for n in range(30, 60):
        put_keys(store, b"%d" % n, f"k{n}")
    dispatch_all(store)
    assert [found(store, f"k{n}") for n in range(60)] == [[b"%d" % n] for n in range(60)]
    store.close()


def test_expired_files_go_and_the_last_one_stays(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    for n in range(100):
        put_keys(store, b"%d" % n, f"k{n}")
    dispatch_all(store)
    index = store._index
    assert index is not None
    files = index.files
    assert len(files) == 3
    assert index.delete_expired(1 << 40) == 0, "what is still to be synced stays"
    store.flush_index()
    assert index.delete_expired(files[0].header.end_physical_offset) == 0
    assert index.delete_expired(files[0].header.end_physical_offset + 1) == 1
    assert index.delete_expired(1 << 40) == 1
    assert [file.path for file in index.files] == sorted(store.options.index_dir.iterdir())
    assert list(files[0].find(1, 0, 1 << 60)) == [], "who was looking through it finds nothing more"
    store.close()


# -- times that are not in order -----------------------------------------------------------------------------------

HOUR_MS = 3_600_000
jumps = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0, 1, 900, 5000, HOUR_MS, -900, -HOUR_MS, -3 * HOUR_MS])),
    min_size=1,
    max_size=70,
)


@given(jumps, st.lists(st.tuples(st.integers(0, 69), st.integers(-1500, 1500)), min_size=2, max_size=6), st.data())
def test_a_query_misses_nothing_after_any_change_of_the_clock(
    tmp_path_factory: pytest.TempPathFactory,
    puts: list[tuple[str, int]],
    bounds: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    """RocketMQ leaves out a file whose first and last time say so, and stops at the first entry that is too old."""
    clock = FakeClock(T0 + 100 * HOUR_MS)
    store = opened(small_options(tmp_path_factory.mktemp("store")), clock)
    stored: list[tuple[str, bytes, int]] = []
    for number, (key, jump) in enumerate(puts):
        clock.now_ms += jump
        put_keys(store, b"%d" % number, key)
        stored.append((key, b"%d" % number, clock.now_ms))
        if data.draw(st.integers(0, 15)) == 0:
            dispatch_all(store)
            assert store.close()
            store = opened(store.options, clock)
    dispatch_all(store)
    times = [stored[number % len(stored)][2] + more for number, more in bounds]
    for begin_ms, end_ms in zip(times[::2], times[1::2], strict=False):
        for key in "abc":
            expected = [body for name, body, at in reversed(stored) if name == key and begin_ms <= at <= end_ms]
            assert found(store, key, begin_ms=begin_ms, end_ms=end_ms)[:64] == expected[:64]
    store.close()


def flat(keys: Iterable[Key]) -> array[int]:
    return array("q", chain.from_iterable(keys))


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("back_at", [None, 3000])
def test_a_long_chain_is_left_early_only_where_times_are_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool, back_at: int | None
) -> None:
    count = 5000
    file = IndexFile(tmp_path / "0", 10, count + 10, create=True)
    for start in range(0, count, 500):
        keys = flat((3, 100 * number, T0 + 1000 * number) for number in range(start, start + 500))
        if back_at == start:
            keys[3 * 7 + 2] = T0 + 1000 * count  # the clock ran ahead for one message
        file.insert(keys, 0, 500)
    if loaded:
        file.close()
        file = IndexFile(file.path, 10, count + 10, create=False)
    wanted = T0 + 1000 * (count - 3)
    expected = [100 * number for number in (count - 1, count - 2, count - 3)]
    if back_at is not None:
        expected.append(100 * (back_at + 7))
    looked = 0
    real = index_file.time_bounds

    def counting(*arguments: int) -> tuple[int, int]:
        nonlocal looked
        looked += 1
        return real(*arguments)

    monkeypatch.setattr(index_file, "time_bounds", counting)
    assert list(file.find(3, wanted, 1 << 60)) == expected
    assert looked < 1100 if back_at is None else looked == count
    file.close()


def test_a_time_tells_only_what_is_certain(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "0", 10, 100, create=True)
    file.continue_from(IndexHeader(1, T0 + HOUR_MS, 0, 50, 1, 2))
    assert not file.holds_times(0, 1 << 60), "it is empty"
    file.insert(flat([(1, 100, T0), (2, 200, T0 - HOUR_MS), (3, 300, T0 + 5000)]), 0, 3)
    assert list(file.find(1, T0, T0)) == [100], "its seconds count from another file's end"
    assert list(file.find(2, T0 - HOUR_MS, T0 - HOUR_MS)) == [200], "0 seconds may be any earlier time"
    assert list(file.find(3, T0 + 5000, T0 + 5000)) == [300]
    assert list(file.find(3, T0 + 4000, T0 + 4999)) == []
    assert list(file.find(1, 0, T0 - 1)) == []
    assert file.holds_times(0, T0 - HOUR_MS)
    assert not file.holds_times(0, T0 - HOUR_MS - 1)
    assert not file.holds_times(T0 + 5001, 1 << 60)
    file.close()
    file = IndexFile(file.path, 10, 100, create=False)
    assert file.holds_times(0, 0), "nobody knows what times a file has that was found on the disk"
    file.close()


def test_a_file_that_a_worker_is_just_making_is_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dispatch that made one itself meanwhile would use the worker's later, under an older name."""
    store = opened(small_options(tmp_path, commit_log_file_size=65_536))
    index = store._index
    assert index is not None
    while not index.should_prepare_next_file():
        put_keys(store, b"x", "k", *[f"{len(index.files)}.{n}" for n in range(5)])
        dispatch_all(store)
        store.complete_index()
    making, go_on = threading.Event(), threading.Event()
    real = IndexFile.__init__

    def slow(self: IndexFile, *arguments: Any, create: bool) -> None:
        making.set()
        assert go_on.wait(20)
        real(self, *arguments, create=create)

    monkeypatch.setattr(IndexFile, "__init__", slow)
    worker = threading.Thread(target=index.prepare_next_file)
    worker.start()
    assert making.wait(20)
    for n in range(40):
        put_keys(store, b"%d" % n, f"late{n}", *[f"m{n}.{m}" for m in range(9)])
    threading.Timer(0.05, go_on.set).start()  # dispatch has to wait for the worker until then
    dispatch_all(store)
    store.complete_index()
    worker.join()
    offsets = [file.header.begin_physical_offset for file in index.files]
    assert offsets == sorted(offsets)
    assert [file.path.name for file in index.files] == sorted(path.name for path in index.directory.iterdir())
    for n in range(40):
        assert found(store, f"late{n}") == [b"%d" % n]
    store.close()


@given(st.lists(st.integers(-1500, 4000), min_size=1, max_size=40), st.data())
def test_a_query_by_time_alone_finds_what_was_stored_then(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], data: st.DataObject
) -> None:
    """Over several files, with other topics in between, and also if the clock was set back."""
    clock = FakeClock()
    store = opened(small_options(tmp_path_factory.mktemp("store"), index_entries=9), clock)
    stored: list[tuple[int, bytes]] = []
    for number, step in enumerate(steps):
        clock.now_ms += step
        put_keys(store, b"%d" % number, "a", "b", unique_id=f"U{number}")
        put_keys(store, b"other", "a", topic="Other")
        stored.append((clock.now_ms, b"%d" % number))
    dispatch_all(store)
    times = sorted(at for at, _ in stored)
    for _ in range(5):
        begin, end = sorted(data.draw(st.integers(times[0] - 2000, times[-1] + 2000)) for _ in range(2))
        expected = [body for at, body in reversed(stored) if begin <= at <= end]
        assert sorted(found(store, "", begin_ms=begin, end_ms=end)) == sorted(expected)
        if times == [at for at, _ in stored]:
            assert found(store, "", begin_ms=begin, end_ms=end) == expected, "newest first"
    store.close()


def test_a_query_by_time_that_would_examine_too_many_records_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reput_broker.store.index.query.CANDIDATES_MAX", 3)
    store = opened(small_options(tmp_path))
    put_keys(store, b"first", "k")
    for _ in range(3):
        put_keys(store, b"other", "k", topic="Other")
    dispatch_all(store)
    store.complete_index()
    assert store.query_message("T", "", 9)[0] == ()
    assert not store.query_message("T", "", 9).is_complete
    assert len(store.query_message("Other", "", 3).records) == 3
    store.close()
