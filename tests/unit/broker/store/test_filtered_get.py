"""Gets whose filter looks at properties: the rules of any get, what is read on the way, and what it may cost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reput_broker.store import message_reader as filtered_get
from reput_broker.store.base.errors import StoreClosed, StoreDamaged
from reput_broker.store.base.results import GetMessageResult, GetStatus
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.message_reader import FilteredGet
from reput_broker.store.message_store import MessageStore
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import TagFilter
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from support.inside import log_of, queue_of
from support.stores import PLENTY, dispatch_all, flip_bit, numbers, opened, outline, put, small_options, store_of_25


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return store_of_25(tmp_path, numbered=True)


def get(store: MessageStore, offset: int, sql: str, *, cold: bool = False, **more: object) -> GetMessageResult:
    arguments = {"max_messages": 32, "max_bytes": 1 << 20} | more
    found = store.get_filtered("T", 0, offset, sql_filter=SqlFilter.parse(sql), **arguments)  # type: ignore[arg-type]
    if isinstance(found, FilteredGet):
        with found:
            found.cold |= cold
            found = found.run()
    return found


@pytest.mark.parametrize("cold", [False, True])
def test_matching_messages_are_found_and_others_skipped(store: MessageStore, cold: bool) -> None:
    result = get(store, 0, "n > 3 AND n < 8", cold=cold)
    assert numbers(store, result) == [4, 5, 6, 7]
    assert outline(result) == (GetStatus.FOUND, 10, 0, 25)  # to the end of the queue's file
    result = get(store, 3, "n IN ('3', '5') AND TAGS = 'b'", cold=cold)
    assert (numbers(store, result), len(result.extents)) == ([3, 5], 2)
    assert outline(get(store, 10, "n < 3", cold=cold)) == (GetStatus.NO_MATCHED_MESSAGE, 20, 0, 25)
    assert outline(get(store, 24, "missing = 1")) == (GetStatus.NO_MATCHED_MESSAGE, 25, 0, 25)


def test_an_offset_without_a_message_has_the_status_of_any_get(store: MessageStore) -> None:
    for offset in (25, 26, 1000):
        expected = store.get_message("T", 0, offset, 32, 1 << 20)
        assert get(store, offset, "n = 1") == expected
    unknown = store.get_filtered("T", 7, 0, 1, 100, SqlFilter.parse("n = 1"))
    assert unknown == store.get_message("T", 7, 0, 1, 100)
    store.close()
    with pytest.raises(StoreClosed):
        get(store, 0, "n = 1")


def test_the_limits_are_those_of_any_get(store: MessageStore) -> None:
    size = get(store, 0, "n = 0").size
    assert numbers(store, get(store, 0, "n > 1", max_bytes=1)) == [2]
    limited = get(store, 0, "n > 1", max_messages=3)
    assert (numbers(store, limited), limited.next_begin_offset) == ([2, 3, 4], 5)
    assert get(store, 0, "n > 1", max_bytes=3 * size).count == 3
    assert get(store, 0, "n > 1", max_bytes=3 * size - 1).count == 2


def test_at_most_800_entries_are_looked_at(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 20, consume_queue_entries=2000))
    for _ in range(20):
        put(store, *[b""] * 50)
    dispatch_all(store)
    assert get(store, 0, "n = 1").next_begin_offset == 800
    assert get(store, 0, "n = 1", max_messages=900).next_begin_offset == 900
    assert get(store, 0, "n = 1", limits=PLENTY).next_begin_offset == 1000


def test_a_costly_filter_examines_fewer_messages_and_still_progresses(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    costly = " OR ".join(["n = 'x'"] * 100)
    per_message = 3000 + 301 * 150 + 100 * (600 + len(encode_properties({"TAGS": "a", "n": "1"})))
    monkeypatch.setattr(filtered_get, "EFFORT_MAX", 3 * per_message - 1)
    assert outline(get(store, 0, costly)) == (GetStatus.NO_MATCHED_MESSAGE, 3, 0, 25)
    monkeypatch.setattr(filtered_get, "EFFORT_MAX", 0)
    assert get(store, 3, costly).next_begin_offset == 4


def test_a_get_reads_no_body_that_it_does_not_hand_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tag nothing of what is passed over, by SQL no more than its two ends."""
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 20))
    starts: list[int] = []
    for number in range(8):
        body = b"%02d" % number + os.urandom(40_000)
        starts.append(put(store, body, tag="ab"[number == 5], properties={"n": str(number)}).physical_offset)
    dispatch_all(store)
    read: list[tuple[int, int]] = []
    for name in ("slice", "read_held"):
        original = getattr(MappedFile, name)

        def noted(file: MappedFile, position: int, size: int, original: object = original) -> object:
            read.append((position, size))
            return original(file, position, size)  # type: ignore[operator]

        monkeypatch.setattr(MappedFile, name, noted)

    by_tag = store.get_message("T", 0, 0, 32, 1 << 20, TagFilter.parse("b"))
    assert read == []
    assert numbers(store, by_tag) == [5]
    assert read == [(starts[5], by_tag.size)]

    read.clear()
    result = get(store, 0, "n = 5", cold=True)
    assert (result.count, result.next_begin_offset) == (1, 8)
    assert len(read) == 16
    assert sum(size for _, size in read) < 8 * 200


def test_small_records_are_read_at_once_when_they_are_cold(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    original = MappedFile.read_held

    def noted(file: MappedFile, position: int, size: int) -> bytes:
        reads.append(size)
        return original(file, position, size)

    monkeypatch.setattr(MappedFile, "read_held", noted)
    assert get(store, 0, "n = 3", cold=True).count == 1
    assert len(reads) == 10


def test_an_unreadable_record_is_not_skipped(store: MessageStore) -> None:
    """Whoever gets it finds the damage; skipped, it would be lost without a word."""
    physical_offset = get(store, 7, "n = 7").extents[0].physical_offset
    (path,) = (store.options.data_dir / "commitlog").iterdir()
    flip_bit(path, physical_offset + 4)  # the magic
    for cold in (False, True):
        result = get(store, 0, "n = 2", cold=cold)
        assert result.count == 2
        assert result.extents[-1].physical_offset == physical_offset


def test_an_entry_that_leads_nowhere_is_damage(store: MessageStore) -> None:
    first = store.options.consume_queue_dir / "T" / "0" / f"{0:020d}"
    flip_bit(first, 3 * 20, 7)  # message 3: the offset becomes negative
    for cold in (False, True):
        with pytest.raises(StoreDamaged, match="entry 3"):
            get(store, 0, "n = 99", cold=cold)


def test_an_entry_that_leaves_its_file_is_damage(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, commit_log_file_size=4096))
    places = [put(store, bytes(900)).physical_offset for _ in range(6)]
    dispatch_all(store)
    assert places[4] == 4096, "messages 0 to 3 fill the first file"
    with (store.options.consume_queue_dir / "T" / "0" / f"{0:020d}").open("r+b") as file:
        file.seek(3 * 20 + 8)
        file.write((4096 - places[3] + 1).to_bytes(4, "big"))
    for cold in (False, True):
        with pytest.raises(StoreDamaged, match="entry 3"):
            get(store, 0, "n = 99", cold=cold)


def test_records_that_wait_in_a_pool_of_buffers_are_none_yet(tmp_path: Path) -> None:
    options = small_options(
        tmp_path, commit_log_file_size=1 << 16, transient_store_pool=True, transient_store_pool_size=2
    )
    store = opened(options)
    put(store, b"00", b"01", properties={"n": "1"})
    store.commit_buffers()
    dispatch_all(store)
    put(store, b"02", properties={"n": "1"})
    for cold in (False, True):
        result = get(store, 0, "n = 1", cold=cold)
        assert (numbers(store, result), result.next_begin_offset) == ([0, 1], 2)


def test_records_with_long_topics_and_ipv6_addresses(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path, commit_log_file_size=1 << 16))
    topic = "%RETRY%" + "g" * 140
    for number in range(4):
        store.put_record(Record(topic, b"", properties=encode_properties({"n": str(number)})))
    dispatch_all(store)
    for cold in (False, True):
        found = store.get_filtered(topic, 0, 0, 32, 1 << 20, SqlFilter.parse("n = 2"))
        assert isinstance(found, FilteredGet)
        with found:
            found.cold = cold
            assert (found.run().count, found.run().next_begin_offset) == (1, 4)


def test_files_are_held_until_they_are_released(store: MessageStore) -> None:
    found = store.get_filtered("T", 0, 0, 32, 1 << 20, SqlFilter.parse("n = 5"))
    assert isinstance(found, FilteredGet)
    assert found.run().count == 1
    file = log_of(store).files.first_file
    assert file is not None
    assert not file.destroy(1000)  # it is being read
    _, data = found.run_and_read()
    assert data[88:90] == b"05"
    found.release()
    found.release()
    assert file.destroy(1000)


def test_found_messages_are_counted_when_reported(store: MessageStore) -> None:
    result = get(store, 0, "n = 5")
    assert store.stats.get_messages == 0
    store.count_get(result)
    store.count_get(get(store, 0, "n = 99"))
    assert (store.stats.get_found, store.stats.get_messages, store.stats.get_bytes) == (1, 1, result.size)


def test_records_that_left_the_log(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = queue_of(store, "T", 0).get_unit(5)
    assert unit is not None
    monkeypatch.setattr(type(log_of(store)), "min_offset", property(lambda _: unit.physical_offset))
    assert outline(get(store, 0, "n < 5")) == (GetStatus.MESSAGE_WAS_REMOVING, 10, 0, 25)
    result = get(store, 2, "n < 7")
    assert (numbers(store, result), result.next_begin_offset) == ([5, 6], 10)
