"""`Verification`: nothing to find in a good directory, every flipped bit named in a damaged one."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from golden.test_mini_store import mini_store, open_mini
from reput_broker.tools.report import FIGURES
from support.store_samples import copied, examine, fill, hashes, named, records_of
from support.stores import FakeClock, bodies, dispatch_all, flip_bit, killed, opened, put, small_options


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good") / "store"
    fill(root)
    return root


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return copied(good, tmp_path / "store")


def test_a_good_directory_has_no_fault_and_keeps_every_byte(good: Path) -> None:
    before = hashes(good)
    found = examine(good)
    assert found.report.faults == []
    assert found.report.figures["records"] == found.report.figures["units"] == 60
    assert found.report.figures["offsets"] == 2
    assert hashes(good) == before


# What is flipped in a record: byte from its start, and where the fault is reported, from its start.
@pytest.mark.parametrize("field", ["size", "magic", "crc", "physical_offset", "body", "body_size", "topic_size"])
@pytest.mark.parametrize("bit", [0, 5, 7])
@pytest.mark.parametrize("which", [3, -1])
def test_a_flipped_bit_of_a_record_is_named_by_its_record(store: Path, field: str, bit: int, which: int) -> None:
    place = records_of(store)[which]
    at = {
        "size": place.position + 3,
        "magic": place.position + 6,
        "crc": place.position + 9,
        "physical_offset": place.position + 34,
        "body": place.body + 2,
        "body_size": place.position + 87,
        "topic_size": place.topic - 1,
    }[field]
    flip_bit(place.path, at, bit)
    found = examine(store)
    name = str(place.path.relative_to(store))
    assert any(fault[1:] == (name, place.position) for fault in named(found)), found.report.faults
    assert all(fault[0] in ("log", "record", "checkpoint", "queue") for fault in named(found))


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_a_topic_contradicts_the_queues(store: Path, bit: int) -> None:
    place = records_of(store)[5]
    flip_bit(place.path, place.topic, bit)
    found = examine(store)
    assert not found.report.is_clean
    # the unit that names the record, as nothing else knows the old name
    assert ("queue", "consumequeue/T/1/00000000000000000000", 2 * 20) in named(found) or found.log.damages


def test_a_flipped_bit_of_a_tag_contradicts_its_unit(store: Path) -> None:
    place = records_of(store)[8]
    data = place.path.read_bytes()
    flip_bit(place.path, data.index(b"TAGS\x01", place.properties) + 7)
    assert named(examine(store)) == {("queue", "consumequeue/T/0/00000000000000000000", 4 * 20 + 12)}


@pytest.mark.parametrize("bit", [0, 3])
def test_a_flipped_bit_of_a_queue_offset_is_named(store: Path, bit: int) -> None:
    place = records_of(store)[8]
    flip_bit(place.path, place.position + 27, bit)
    assert ("order", str(place.path.relative_to(store)), place.position + 20) in named(examine(store))


def test_with_the_whole_record_checksum_every_bit_of_a_record_counts(tmp_path: Path) -> None:
    fill(tmp_path / "good", messages=8, record_crc=True)
    place = records_of(tmp_path / "good")[4]
    name = place.path.read_bytes().index(b"__CRC32#", place.position)
    # Without its name, and what ends it, there is no checksum: the record passes for one that never had any.
    uncovered = {*range(name - 1, name + len("__CRC32#\1")), place.position + place.size - 1}
    for at in sorted({*range(place.position, place.position + place.size)} - uncovered):
        root = copied(tmp_path / "good", tmp_path / "store")
        flip_bit(root / place.path.relative_to(tmp_path / "good"), at, at % 8)
        assert not examine(root).report.is_clean, at - place.position
        shutil.rmtree(root)


@pytest.mark.parametrize(("field", "at"), [("physical_offset", 6), ("size", 10), ("tags_code", 17)])
@pytest.mark.parametrize("number", [0, 4, 29])
def test_a_flipped_bit_of_a_unit_is_named_by_its_field(store: Path, field: str, at: int, number: int) -> None:
    path = store / "consumequeue/T/1" / f"{number // 10 * 200:020d}"
    flip_bit(path, number % 10 * 20 + at, 2)
    shift = {"physical_offset": 0, "size": 8, "tags_code": 12}[field]
    found = examine(store)
    assert ("queue", str(path.relative_to(store)), number % 10 * 20 + shift) in named(found), found.report.faults


@pytest.mark.parametrize("at", range(72))
def test_a_flipped_bit_of_the_checkpoint_is_named_by_its_byte(store: Path, at: int) -> None:
    flip_bit(store / "checkpoint", at, at % 8)
    assert ("checkpoint", "checkpoint", at) in named(examine(store))


def test_bytes_behind_the_mark_are_named(store: Path) -> None:
    flip_bit(store / "checkpoint", 3000)
    assert named(examine(store)) == {("checkpoint", "checkpoint", 3000)}


def test_tables_that_cannot_be_read_are_named_by_place(store: Path) -> None:
    topics = store / "config/topics.json"
    data = topics.read_bytes()
    flip_bit(topics, data.index(b'"perm"'), 1)
    offsets = store / "config/consumerOffset.json"
    flip_bit(offsets, 0)
    faults = named(examine(store))
    assert {(kind, file) for kind, file, _ in faults} == {
        ("topics", "config/topics.json"),
        ("offsets", "config/consumerOffset.json"),
    }
    assert all(
        data.index(b'"perm"') - 3 <= position <= data.index(b'"perm"') + 8 for k, _, position in faults if k == "topics"
    )


def test_an_offset_beyond_its_queue_is_not_damage(store: Path) -> None:
    """A client may commit any, and a power cut may take back what was consumed before it was flushed."""
    path = store / "config/consumerOffset.json"
    data = path.read_bytes()
    at = data.index(b'"0":7') + 4
    path.write_bytes(data[:at] + b"31" + data[at + 1 :])
    (store / "config/consumerOffset.journal").unlink()
    report = examine(store).report
    assert report.is_clean
    (note,) = [note for note in report.notes if "but the queue ends at" in note]
    assert "is 31, but the queue ends at" in note


def test_an_empty_store_is_clean(tmp_path: Path) -> None:
    assert opened(small_options(tmp_path / "store")).close()
    report = examine(tmp_path / "store").report
    assert report.is_clean
    assert {name: report.figures[name] for name in FIGURES} == dict.fromkeys(FIGURES, 0)
    assert set(FIGURES) <= set(report.figures), "the command shows them without a test for each"


def test_a_digit_that_changed_does_not_fit_the_journal(store: Path) -> None:
    path = store / "config/consumerOffset.json"
    data = path.read_bytes()
    flip_bit(path, data.index(b'"0":7') + 4)
    assert named(examine(store)) == {("offsets", "config/consumerOffset.json", 0)}


def test_a_flipped_bit_of_the_journal_is_named(store: Path) -> None:
    path = store / "config/consumerOffset.journal"
    flip_bit(path, path.stat().st_size - 3)
    assert ("journal", "config/consumerOffset.journal", 40) in named(examine(store))


def test_missing_units_are_named(store: Path) -> None:
    path = store / "consumequeue/T/0/00000000000000000400"
    data = path.read_bytes()
    path.write_bytes(data[:140] + bytes(60))  # the last three
    assert named(examine(store)) == {("queue", "consumequeue/T/0/00000000000000000400", 140)}
    path.write_bytes(data[:40] + bytes(20) + data[60:])  # one in the middle
    assert named(examine(store)) == {("queue", "consumequeue/T/0/00000000000000000400", 40)}
    shutil.rmtree(store / "consumequeue/T/0")
    assert named(examine(store)) == {("queue", "consumequeue/T/0/00000000000000000000", 0)}


def test_units_of_no_record_are_named(store: Path) -> None:
    extra = store / "consumequeue/T/0/00000000000000000600"
    extra.write_bytes(struct.pack(">qiq", 100_000, 120, 0).ljust(200, b"\0"))
    assert named(examine(store)) == {("queue", "consumequeue/T/0/00000000000000000600", 0)}
    extra.unlink()
    other = store / "consumequeue/T/7/00000000000000000000"
    other.parent.mkdir()
    other.write_bytes(struct.pack(">qiq", 0, records_of(store)[0].size, 0).ljust(200, b"\0"))
    kinds = {(kind, file) for kind, file, _ in named(examine(store))}
    assert ("queue", "consumequeue/T/7/00000000000000000000") in kinds


def test_files_that_do_not_belong_are_named(store: Path) -> None:
    (store / "commitlog/notes.txt").write_text("hello")
    short = sorted((store / "commitlog").glob("0*"))[1]
    short.write_bytes(short.read_bytes()[:1000])
    faults = named(examine(store))
    assert ("file", "commitlog/notes.txt", 0) in faults
    assert ("file", str(short.relative_to(store)), 1000) in faults


def test_a_missing_log_file_is_named_and_its_units_are_not(tmp_path: Path) -> None:
    fill(tmp_path, messages=120)
    gone = sorted((tmp_path / "commitlog").glob("0*"))[1]
    gone.unlink()
    faults = named(examine(tmp_path))
    name = str(gone.relative_to(tmp_path))
    assert faults == {("file", name, 0), ("log", name, 0)}


def test_bytes_behind_the_end_of_a_closed_log_are_named(store: Path) -> None:
    last = records_of(store)[-1]
    with last.path.open("r+b") as file:
        file.seek(last.position + last.size + 50)
        file.write(b"x")
    assert ("log", str(last.path.relative_to(store)), last.position + last.size) in named(examine(store))


def test_damage_does_not_hide_what_comes_after_it(store: Path) -> None:
    first, second = records_of(store)[4], records_of(store)[40]
    for place in (first, second):
        flip_bit(place.path, place.position + 6)
    faults = named(examine(store))
    for place in (first, second):
        assert ("log", str(place.path.relative_to(store)), place.position) in faults


def test_a_killed_store_has_notes_and_no_faults(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "live"))
    put(store, *[b"one"] * 5)
    dispatch_all(store)
    put(store, *[b"two"] * 5)
    root = killed(store, tmp_path / "image").data_dir
    found = examine(root)
    assert found.report.faults == []
    assert any("5 messages have no unit yet" in note for note in found.report.notes)
    last = records_of(root)[-1]
    flip_bit(last.path, last.position + 6)  # not flushed: a torn tail
    found = examine(root)
    assert found.report.faults == []
    assert found.log.kept_end == last.position
    first = records_of(root)[0]
    flip_bit(first.path, first.body)  # flushed: damage
    assert ("record", str(first.path.relative_to(root)), 0) in named(examine(root))
    store.close()


def test_a_genuine_rocketmq_layout(tmp_path: Path) -> None:
    mini_store(tmp_path)
    before = hashes(tmp_path)
    found = examine(tmp_path)
    assert found.report.faults == []
    assert found.log.end_offset == 839
    assert hashes(tmp_path) == before
    store = open_mini(tmp_path)
    assert store.close()
    found = examine(tmp_path)
    assert found.report.faults == []
    assert found.report.figures["units"] == 5
    assert found.report.figures["records"] == 7


def test_a_topic_that_was_deleted_and_created_again(tmp_path: Path) -> None:
    options = small_options(tmp_path)
    store = opened(options)
    put(store, b"old", b"older")
    dispatch_all(store)
    store.delete_topic("T")
    put(store, b"new")
    dispatch_all(store)
    assert bodies(store) == [b"new"]
    assert store.close()
    assert examine(tmp_path).report.faults == []
    # RocketMQ leaves no mark of the deletion.
    (tmp_path / "deletedTopics").unlink()
    found = examine(tmp_path)
    assert found.report.faults == []
    assert any("began again" in note for note in found.report.notes)


@pytest.mark.parametrize("has_old_units", [True, False])
def test_a_topic_created_again_whose_deletion_a_killed_slave_had_not_taken_over(
    tmp_path: Path, has_old_units: bool
) -> None:
    store = opened(small_options(tmp_path / "store"))
    put(store, b"old", b"older")
    dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    before = killed(store, tmp_path / "before").data_dir
    store.delete_topic("T")
    put(store, *(b"new %d" % number for number in range(3)))
    options = killed(store, tmp_path / "image")
    image = options.data_dir
    assert store.close()
    (image / "deletedTopics").unlink()
    if has_old_units:
        shutil.copytree(before / "consumequeue", image / "consumequeue", dirs_exist_ok=True)
    found = examine(image).report
    assert found.faults == []
    assert "T/0 was deleted and began again at message 0" in found.notes
    assert "3 messages have no unit yet: the next start creates them" in found.notes
    assert bodies(opened(options)) == [b"new 0", b"new 1", b"new 2"]


def test_a_topic_whose_deletion_was_interrupted(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{},"dataVersion":{}}')
    assert [fault.reason for fault in examine(tmp_path).report.faults] == [
        "topic T has queues with messages and no entry"
    ]
    (tmp_path / "abort").write_text("1")
    found = examine(tmp_path).report
    assert found.faults == []
    assert "topic T has queues with messages and no entry: the next start creates it" in found.notes


def test_keys_of_deleted_topics_do_not_hide_where_the_index_ends(tmp_path: Path) -> None:
    clock = FakeClock()
    options = small_options(tmp_path / "store")
    store = opened(options, clock)
    for number in range(options.index_entries):  # a full file and one in use
        clock.now_ms += 1000
        put(store, b"x", keys=[f"k{number}"])
        put(store, b"x", topic="gone", keys=["k"])
        dispatch_all(store)
    store.flush_index()
    store.flush_consume_queues()
    store.write_checkpoint()
    store.delete_topic("gone")
    killed(store, tmp_path / "image")
    assert store.close()
    found = examine(tmp_path / "image").report
    assert found.faults == []
    assert any("not in the index, from the record at" in note for note in found.notes), found.notes


def test_units_of_expired_files_are_not_a_fault(tmp_path: Path) -> None:
    options = fill(tmp_path)
    for path in sorted((tmp_path / "commitlog").iterdir())[:1]:
        path.unlink()
    found = examine(tmp_path)
    assert [fault for fault in found.report.faults if fault.kind != "checkpoint"] == []
    assert found.layout.log.min_offset == options.commit_log_file_size


def test_clocks_that_jump_back_are_not_a_fault(tmp_path: Path) -> None:
    clock = FakeClock()
    store = opened(small_options(tmp_path), clock)
    put(store, b"later")
    clock.now_ms -= 3_600_000
    put(store, b"earlier")
    dispatch_all(store)
    assert store.close()
    assert examine(tmp_path).report.faults == []
