"""Extended queue entries: their bytes, their addresses, and a store that keeps them through everything."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import GetStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.store.queue.extension import ConsumeQueueExt
from reput_broker.store.queue.files import QueueFileCache
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.layout import tags_code
from reput_protocol.record.record import decode_record
from reput_protocol.store.unit import MAX_ADDRESS, ConsumeQueueExtUnit, address_of, is_address, position_of
from support.inside import queue_of
from support.stores import (
    PLENTY,
    T0,
    FakeClock,
    bodies,
    check_ext_entries,
    dispatch_all,
    killed,
    opened,
    put,
    small_options,
    tree,
)

FILE_SIZE = 100
UNITS_IN_FILE = 4  # 4 x 20 bytes, then 20 that a fifth and the 4 bytes behind it do not fit into
BIT_MAP = bytes(range(14))


@pytest.fixture
def cache() -> Iterator[QueueFileCache]:
    files = QueueFileCache(4)
    yield files
    files.close()


def make(root: Path, cache: QueueFileCache, file_size: int = FILE_SIZE, bit_map_bytes: int = 14) -> ConsumeQueueExt:
    return ConsumeQueueExt(root / "T" / "0", file_size, bit_map_bytes, cache)


def stream(root: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# -- the format --------------------------------------------------------------------------------------------


def test_a_unit_is_what_rocketmq_writes() -> None:
    plain = ConsumeQueueExtUnit(tags_code("TagA"), T0).encode()
    assert plain.hex() == "0014000000000027a8070000018bcfe568000000"
    with_map = ConsumeQueueExtUnit(-2, T0, BIT_MAP).encode()
    assert with_map.hex() == "0022fffffffffffffffe0000018bcfe56800000e" + BIT_MAP.hex()


def test_addresses_are_never_tags_codes() -> None:
    assert address_of(0) == -(2**63)
    assert position_of(address_of(12_345)) == 12_345
    assert MAX_ADDRESS == -2_147_483_649
    assert is_address(address_of(1 << 40))
    assert not any(map(is_address, (0, -(2**31), 2**31 - 1, T0)))


def test_a_file_ends_where_a_unit_and_four_bytes_do_not_fit(tmp_path: Path, cache: QueueFileCache) -> None:
    ext = make(tmp_path, cache)
    addresses = [ext.put([number], [T0 + number])[0] for number in range(5)]
    assert [position_of(address) for address in addresses] == [0, 20, 40, 60, 100]
    files = stream(tmp_path)
    assert list(files) == [0, 100]
    assert files[0][80:] == b"\xff\xff" + bytes(18)
    assert files[100] == ConsumeQueueExtUnit(4, T0 + 4).encode() + bytes(80)


@given(st.lists(st.lists(st.booleans(), max_size=50), max_size=6), st.integers(40, 200))
@settings(deadline=None)
def test_any_run_of_puts_is_stored_as_rocketmq_stores_it(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[bool]], file_size: int
) -> None:
    """Against a model that appends unit by unit (RocketMQ: ConsumeQueueExt.put)."""
    root = tmp_path_factory.mktemp("ext")
    cache = QueueFileCache(4)
    ext = make(root, cache, file_size, 14)
    model: dict[int, bytearray] = {}
    wrote, number = 0, 0
    for with_map in runs:
        expected = []
        for has_map in with_map:
            unit = ConsumeQueueExtUnit(number, T0, BIT_MAP if has_map else b"").encode()
            number += 1
            if len(unit) > file_size - wrote % file_size - 4:
                start, inside = wrote - wrote % file_size, wrote % file_size
                model[start][inside : inside + 2] = b"\xff\xff"
                wrote = start + file_size
            data = model.setdefault(wrote - wrote % file_size, bytearray(file_size))
            data[wrote % file_size : wrote % file_size + len(unit)] = unit
            expected.append(address_of(wrote))
            wrote += len(unit)
        codes = list(range(number - len(with_map), number))
        times = [T0] * len(codes)
        if not with_map:
            continue
        if any(with_map):
            found = ext.put(codes, times, [BIT_MAP if has_map else None for has_map in with_map])
        else:
            found = ext.put(codes, times)
        assert found == expected
        assert ext.tags_codes_at([*expected, 7, -1, 2**31]) == [*codes, 7, -1, 2**31]
    assert stream(root) == {start: bytes(data) for start, data in model.items()}
    assert ext.end == wrote
    cache.close()


def test_an_unreadable_entry_keeps_its_address(tmp_path: Path, cache: QueueFileCache) -> None:
    ext = make(tmp_path, cache, 1 << 16)
    addresses = ext.put(range(1500), [T0] * 1500)
    path = tmp_path / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20:40] = bytes(20)  # a page that was lost
    data[40:42] = struct.pack(">h", 21)  # sizes that contradict each other
    data[60:62] = struct.pack(">h", 0x7FFF)
    data[78:80] = struct.pack(">h", 0x7FFF - 20)  # agreeing, but beyond the end
    path.write_bytes(data)
    wrong = {1, 2, 3}
    for codes in (addresses, addresses[:5]):
        found = ext.tags_codes_at(codes)
        assert found == [codes[row] if row in wrong else row for row in range(len(codes))]
    assert [ext.get(address) is None for address in addresses[:5]] == [False, True, True, True, False]
    beyond = [address_of(ext.end), address_of(1 << 40), MAX_ADDRESS]
    assert ext.tags_codes_at(beyond) == beyond
    ext.destroy()
    assert ext.get(addresses[0]) is None
    assert ext.tags_codes_at(addresses) == addresses


# -- in a store --------------------------------------------------------------------------------------------


def ext_options(root: Path, **changes: object) -> StoreOptions:
    return small_options(
        root, consume_queue_ext=True, consume_queue_ext_file_size=FILE_SIZE, commit_log_file_size=4096, **changes
    )


TAGS = [None, "red", "green", "blue"]


def filled(root: Path, count: int = 120, **changes: object) -> MessageStore:
    """Messages of two queues with alternating tags, all dispatched."""
    clock = FakeClock()
    store = opened(ext_options(root, **changes), clock)
    add(store, clock, 0, count)
    return store


def add(store: MessageStore, clock: FakeClock, first: int, count: int) -> None:
    rng = random.Random(first)
    for number in range(first, first + count):
        clock.now_ms += 10
        put(store, b"%d" % number, queue_id=number % 2, tag=TAGS[number % 4])
        if rng.random() < 0.2:
            dispatch_all(store)
    dispatch_all(store)


def filtered(store: MessageStore, tag: str, queue_id: int) -> list[bytes]:
    """The bodies that a pull with a tag brings, in as many calls as it takes."""
    found, offset = [], store.min_offset_in_queue("T", queue_id)
    while offset < store.max_offset_in_queue("T", queue_id):
        result = store.get_message("T", queue_id, offset, 1000, 1 << 20, TagFilter.parse(tag), limits=PLENTY)
        assert result.status in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
        data = store.read_extents(result.extents) if result.extents else b""
        position = 0
        while position < len(data):
            found.append(decode_record(data, position).body)
            (size,) = struct.unpack_from(">i", data, position)
            position += size
        offset = result.next_begin_offset
    return found


def expected(tag: str, queue_id: int, count: int = 120, first: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(first, count) if n % 2 == queue_id and TAGS[n % 4] == tag]


def check_filters(store: MessageStore, count: int = 120) -> None:
    for queue_id, tag in ((0, "green"), (1, "red"), (1, "blue")):
        assert filtered(store, tag, queue_id) == expected(tag, queue_id, count)


@pytest.mark.parametrize("entries", [10, 1_000], ids=["few", "many"])
def test_units_hold_addresses_and_filters_see_through_them(tmp_path: Path, entries: int) -> None:
    store = filled(tmp_path, consume_queue_entries=entries)
    queue = queue_of(store, "T", 0)
    assert queue is not None
    assert [position_of(queue.get_unit(k).tags_code) for k in range(6)] == [0, 20, 40, 60, 100, 120]  # type: ignore[union-attr]
    check_ext_entries(store)
    check_filters(store)
    assert filtered(store, "nothing", 0) == []
    assert len(bodies(store)) == 60


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("missing", ["consumequeue", "consumequeue_ext", "both"])
def test_rebuilt_files_are_the_same_byte_for_byte(tmp_path: Path, missing: str, orderly: bool) -> None:
    live = filled(tmp_path / "live")
    options = live.options
    if orderly:
        assert live.close()
        options = replace(options, data_dir=tmp_path / "image")
        shutil.copytree(tmp_path / "live", tmp_path / "image")
    else:
        live.flush_consume_queues()
        live.write_checkpoint()
        options = killed(live, tmp_path / "image")
    before = tree(options.data_dir)
    for name in ("consumequeue", "consumequeue_ext"):
        if missing in (name, "both"):
            shutil.rmtree(options.data_dir / name)
    store = opened(options)
    check_ext_entries(store)
    check_filters(store)
    after = tree(options.data_dir)
    assert {**after, "checkpoint": b""} == {**before, "checkpoint": b""}


def test_a_clean_start_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.close()
    before = tree(tmp_path)
    again = MessageStore(store.options, clock_ms=FakeClock())
    report = again.open()
    assert (report.kind, report.dispatched) == ("clean", 0)
    assert report.checked_from > 0
    assert {**tree(tmp_path), "checkpoint": b""} == {**before, "checkpoint": b""}
    check_filters(again)


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", ["first file gone", "last file gone", "last file zero", "one queue gone"])
def test_no_address_comes_to_mean_another_message(tmp_path: Path, damage: str, orderly: bool) -> None:
    live = filled(tmp_path / "live")
    live.flush_consume_queues()
    live.write_checkpoint()
    if orderly:
        assert live.close()
        options = replace(live.options, data_dir=tmp_path / "image")
        shutil.copytree(tmp_path / "live", tmp_path / "image")
    else:
        options = killed(live, tmp_path / "image")
    directory = options.consume_queue_ext_dir / "T" / "0"
    last = max(directory.iterdir())
    if damage == "first file gone":
        min(directory.iterdir()).unlink()
    elif damage == "last file gone":
        last.unlink()
    elif damage == "last file zero":
        last.write_bytes(bytes(FILE_SIZE))
    else:
        shutil.rmtree(directory)
    events: list[str] = []
    clock = FakeClock(T0 + 1_000_000)
    store = opened(replace(options, on_event=lambda event, _: events.append(event)), clock)
    # After a kill the end of the queue is rebuilt anyway, and its entries with it.
    is_tail_rebuilt = not orderly and damage.startswith("last")
    assert is_tail_rebuilt or "queues_completed_from_beginning" in events
    check_ext_entries(store)
    add(store, clock, 120, 40)
    check_ext_entries(store)
    check_filters(store, 160)
    assert store.close()
    again = opened(store.options)
    check_ext_entries(again)


def test_a_file_that_a_power_cut_took_from_the_middle_does_not_stop_the_start(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    options = killed(live, tmp_path / "image")
    files = sorted((options.consume_queue_ext_dir / "T" / "0").iterdir())
    assert len(files) > 3
    files[1].unlink()
    store = opened(options)
    check_ext_entries(store)
    check_filters(store)
    assert tree(options.consume_queue_ext_dir) == tree(live.options.consume_queue_ext_dir)


def test_a_unit_that_is_lost_in_the_middle_filters_nothing_out(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.close()
    path = store.options.consume_queue_ext_dir / "T" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20:40] = bytes(20)
    path.write_bytes(data)
    again = opened(store.options)
    both = [b"1", b"3", *expected("red", 1)[1:]]
    assert filtered(again, "red", 1) == both, "its consumer compares the tag"
    assert filtered(again, "blue", 1) == expected("blue", 1)


def test_a_tail_without_its_queue_is_cut(tmp_path: Path) -> None:
    """A kill between the two writes leaves an entry that no unit holds the address of."""
    live = filled(tmp_path / "live")
    options = killed(live, tmp_path / "image")
    queue = queue_of(live, "T", 0)
    assert queue is not None
    ext = queue._ext._ext
    assert ext is not None
    path = options.consume_queue_ext_dir / "T" / "0" / f"{ext.end // FILE_SIZE * FILE_SIZE:020d}"
    data = bytearray(path.read_bytes())
    at = ext.end % FILE_SIZE
    data[at : at + 20] = ConsumeQueueExtUnit(99, 99).encode()
    path.write_bytes(data)
    clock = FakeClock(T0 + 1_000_000)
    store = opened(options, clock)
    assert path.read_bytes()[at:] == bytes(FILE_SIZE - at)
    add(store, clock, 120, 8)
    check_ext_entries(store)


def test_turning_it_on_later_leaves_older_units_as_they_are_and_turning_it_off_is_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    plain = small_options(tmp_path, consume_queue_entries=1_000)
    store = opened(plain, clock)
    add(store, clock, 0, 60)
    store.close()
    before = (tmp_path / "consumequeue/T/0" / f"{0:020d}").read_bytes()
    options = replace(plain, consume_queue_ext=True, consume_queue_ext_file_size=FILE_SIZE)
    store = opened(options, clock)
    add(store, clock, 60, 60)
    check_filters(store)
    after = (tmp_path / "consumequeue/T/0" / f"{0:020d}").read_bytes()
    assert after[: 30 * 20] == before[: 30 * 20]
    assert store.close()
    image = tree(tmp_path)
    with pytest.raises(ForeignFile) as caught:
        opened(plain)
    assert "store.consume_queue_ext = true" in str(caught.value)
    assert tree(tmp_path) == image
    check_filters(opened(options))


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.close()
    with pytest.raises(ForeignFile) as caught:
        opened(replace(store.options, consume_queue_ext_file_size=2 * FILE_SIZE))
    assert "consumequeue_ext" in str(caught.value.path)


def test_entries_leave_with_their_messages(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue = queue_of(store, "T", 0)
    assert queue is not None
    files = sorted((store.options.consume_queue_ext_dir / "T" / "0").iterdir())
    assert len(files) == 60 / UNITS_IN_FILE
    unit = queue.get_unit(33)
    assert unit is not None
    queue.delete_expired(unit.physical_offset, 1 << 62)
    assert queue.min_queue_offset == 33
    # Message 33 is in file 8; the file before it ends where it begins and stays as in RocketMQ only at equality.
    left = sorted((store.options.consume_queue_ext_dir / "T" / "0").iterdir())
    assert left == files[8:]
    check_ext_entries(store)


def test_a_deleted_topic_takes_its_entries_along_and_orphans_go_at_the_next_start(tmp_path: Path) -> None:
    store = filled(tmp_path)
    put(store, b"u", topic="U", tag="red")
    dispatch_all(store)
    assert store.delete_topic("T") == 2
    assert not (store.options.consume_queue_ext_dir / "T").exists()
    assert store.close()
    orphan = store.options.consume_queue_ext_dir / "Gone" / "3"
    orphan.mkdir(parents=True)
    (orphan / f"{0:020d}").write_bytes(ConsumeQueueExtUnit(1, 1).encode().ljust(FILE_SIZE, b"\0"))
    again = opened(store.options)
    assert not orphan.exists()
    assert again.queues() == [("U", 0)]
    put(again, b"x", topic="Gone", queue_id=3, tag="red")
    dispatch_all(again)
    check_ext_entries(again)


def test_a_power_cut_may_leave_a_gap_in_entries_that_no_queue_has(tmp_path: Path) -> None:
    """The topic's queues were deleted, its extended entries only in part."""
    store = filled(tmp_path / "live")
    options = killed(store, tmp_path / "image")
    orphan = options.consume_queue_ext_dir / "Gone" / "3"
    orphan.mkdir(parents=True)
    for number in (0, 2):
        (orphan / f"{number * FILE_SIZE:020d}").write_bytes(bytes(FILE_SIZE))
    again = opened(options)
    assert not orphan.exists()
    check_ext_entries(again)


def test_a_full_disk_takes_entries_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    store = opened(ext_options(tmp_path), clock)
    add(store, clock, 0, 20)  # fills the first file of each queue
    before = tree(tmp_path / "consumequeue_ext")
    put(store, *(b"%d" % n for n in range(20, 40)), queue_id=0, tag="green")
    store.flush_commit_log()
    real = os.ftruncate

    def truncate(fd: int, size: int) -> None:
        if size == 200:  # a file of the queue, not of its extended entries
            raise OSError(errno.ENOSPC, "full")
        real(fd, size)

    monkeypatch.setattr(os, "ftruncate", truncate)
    for _ in range(3):
        assert store.reput_step() == 0
        clock.now_ms += 1000
        assert tree(tmp_path / "consumequeue_ext") == before
    monkeypatch.undo()
    assert dispatch_all(store) == 20
    check_ext_entries(store)


def test_given_bit_maps_are_written(tmp_path: Path) -> None:
    def bit_maps(batch: object, rows: object) -> list[bytes | None] | None:
        offsets = rows.physical_offsets  # type: ignore[attr-defined]
        return [BIT_MAP if offset % 2 else None for offset in offsets] if rows.queue_id else None  # type: ignore[attr-defined]

    store = filled(tmp_path / "live", filter_bit_maps=bit_maps, filter_bit_map_bits=112)
    for queue_id in (0, 1):
        queue = queue_of(store, "T", queue_id)
        assert queue is not None
        for offset in range(queue.max_queue_offset):
            unit, ext = queue.get_unit(offset), queue.get_ext_unit(offset)
            assert unit is not None
            assert ext is not None
            assert ext.bit_map == (BIT_MAP if queue_id and unit.physical_offset % 2 else b"")
    check_filters(store)
    before = tree(tmp_path / "live")
    options = killed(store, tmp_path / "image")
    shutil.rmtree(options.data_dir / "consumequeue")
    shutil.rmtree(options.data_dir / "consumequeue_ext")
    again = opened(options)
    assert {**tree(options.data_dir), "checkpoint": b""} == {**before, "checkpoint": b""}
    check_filters(again)
