"""A store directory read without Spark: plans, tasks, damage, and filters that narrow."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.results import Block
from reput_client.errors import NotAStore
from reput_pipeline.source.offline import (
    OfflineStore,
    QueuePartition,
    RecordsPartition,
    SegmentPartition,
    plan,
    task_count,
)
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.ranges import NOTHING_NARROWED, Narrowing
from reput_pipeline.source.tasks import read_task
from reput_pipeline.spark.errors import DamagedStore, DataLost, NoSuchTopic
from reput_pipeline.spark.option_reader import OptionError
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.store_samples import MESSAGES, copied, hashes, records_of
from support.stores import BORN_HOST, T0, FakeClock, dispatch_all, flip_bit, opened, small_options

pa = pytest.importorskip("pyarrow")
schemas = import_module("support.pipeline_jobs")

ALL = "T"


def run(path: Path, narrowing: Narrowing = NOTHING_NARROWED, **given: str) -> tuple[list[Any], list[dict[str, Any]]]:
    """Plan and read; return the partitions and the rows."""
    options = parse_source_options({"path": str(path), "subscribe": ALL, **given}, streaming=False)
    with OfflineStore(str(path)) as store:
        partitions = plan(store, options, narrowing)
    schema = schemas.arrow_schema_of(options)
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        for batch in read_task(partition, options, schema, narrowing):
            batch.validate(full=True)
            assert batch.schema == schema
            rows += batch.to_pylist()
    return partitions, rows


def places(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


EVERYTHING = sorted((number % 2, number // 2) for number in range(MESSAGES))


@pytest.mark.parametrize("parts", [None, 1, 2, 7, 60])
def test_the_log_read_through_gives_every_message_once(root: Path, parts: int | None) -> None:
    partitions, rows = run(root, NOTHING_NARROWED, **({} if parts is None else {"minPartitions": str(parts)}))
    assert all(isinstance(partition, SegmentPartition) for partition in partitions)
    assert len(partitions) <= (parts or 1)
    assert places(rows) == EVERYTHING


@pytest.mark.parametrize(
    ("mib", "tasks"), [(0, 1), (7, 1), (16, 2), (100, 4), (900, 4), (1024, 8), (3000, 8), (8192, 16)]
)
def test_tasks_are_as_many_as_cores_unless_they_would_be_tiny_or_huge(mib: int, tasks: int) -> None:
    assert task_count(mib << 20, 4) == tasks


@pytest.mark.parametrize("parts", [1, 3, 60])
def test_queue_by_queue_gives_the_same(root: Path, parts: int) -> None:
    partitions, rows = run(root, minPartitions=str(parts), subExpression="tag0 || tag1 || tag2")
    assert all(isinstance(partition, QueuePartition) for partition in partitions)
    assert len(partitions) == parts
    assert places(rows) == EVERYTHING
    assert sorted(rows, key=lambda row: row["physicalOffset"]) == run(root)[1]


def test_few_messages_are_read_by_queue(root: Path) -> None:
    partitions, rows = run(root, Narrowing(queue_ids=frozenset({1}), offset_low=3, offset_high=9))
    assert isinstance(partitions[0], (QueuePartition, SegmentPartition))
    assert places(rows) == [(1, offset) for offset in range(3, 9)]


def test_a_tag_is_found_by_its_hash_and_compared(root: Path) -> None:
    _, rows = run(root, subExpression="tag1")
    assert {row["tags"] for row in rows} == {"tag1"}
    assert len(rows) == MESSAGES // 3
    # "Aa" and "BB" have one hash, in Java and here.
    options = small_options(root.parent / "hashes")
    store = opened(options)
    for number in range(20):
        block = bytearray(encode_put_block([Message("T", b"x", tag=("Aa", "BB")[number % 2])], "T", 0, T0))
        store.put_one(Block(block, "T", 0, 1, BORN_HOST))
    dispatch_all(store)
    store.close()
    _, rows = run(options.data_dir, subExpression="BB")
    assert [row["tags"] for row in rows] == ["BB"] * 10


def test_a_key_leads_to_its_messages_through_the_index(root: Path) -> None:
    partitions, rows = run(root, Narrowing(keys=frozenset({"k7"})))
    assert isinstance(partitions[0], RecordsPartition)
    assert sum(row["keys"] == "k7" for row in rows) == 3
    assert len(rows) < 10


def test_without_an_index_that_is_complete_the_log_is_read(root: Path, tmp_path: Path) -> None:
    for spoil in ("abort", "gone", "torn"):
        path = copied(root, tmp_path / spoil)
        files = sorted((path / "index").iterdir())
        if spoil == "abort":
            (path / "abort").touch()
        elif spoil == "gone":
            files[0].unlink()
        else:
            files[0].write_bytes(b"x" * 100)
        partitions, rows = run(path, Narrowing(keys=frozenset({"k7"})))
        assert not any(isinstance(partition, RecordsPartition) for partition in partitions)
        assert sum(row["keys"] == "k7" for row in rows) == 3


def test_times_narrow_to_the_messages_of_that_time(root: Path) -> None:
    low, high = T0 + 700 * 10, T0 + 700 * 20
    _, rows = run(root, Narrowing(time_low_ms=low, time_high_ms=high))
    assert len(rows) == 10
    _, rows = run(root, startingTimestamp=str(low), endingTimestamp=str(high))
    assert len(rows) == 10
    with pytest.raises(OptionError, match="has no message stored at"):
        run(root, startingTimestamp=str(T0 * 2))
    _, rows = run(root, startingTimestamp=str(T0 * 2), startingOffsetsByTimestampStrategy="latest")
    assert rows == []


def flip_body(path: Path) -> tuple[Path, int]:
    place = records_of(path)[21]
    flip_bit(place.path, place.body)
    return place.path, place.position


def flip_size(path: Path) -> tuple[Path, int]:
    place = records_of(path)[21]
    flip_bit(place.path, place.position + 3)
    return place.path, place.position


def cut_short(path: Path) -> tuple[Path, int]:
    place = records_of(path)[-1]
    data = bytearray(place.path.read_bytes())
    data[place.position + place.size // 2 :] = bytes(len(data) - place.position - place.size // 2)
    place.path.write_bytes(data)
    return place.path, place.position


@pytest.mark.parametrize("way", [{}, {"subExpression": "tag0 || tag1 || tag2"}])
@pytest.mark.parametrize("damage", [flip_body, flip_size, cut_short])
def test_damage_is_named_by_file_and_byte_or_left_out_and_counted(
    root: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    damage: Callable[[Path], tuple[Path, int]],
    way: dict[str, str],
) -> None:
    path = copied(root, tmp_path / "damaged")
    where, position = damage(path)
    with pytest.raises(DamagedStore) as caught:
        run(path, NOTHING_NARROWED, **way)
    assert f"{where} at byte {position}:" in str(caught.value)
    _, rows = run(path, NOTHING_NARROWED, onDamage="skip", **way)
    assert len(rows) == MESSAGES - 1
    assert f"left out 1 damaged record of {where}" in capfd.readouterr().err


def test_a_damaged_unit_is_named(root: Path, tmp_path: Path) -> None:
    path = copied(root, tmp_path / "damaged")
    file = path / "consumequeue" / "T" / "0" / f"{200:020d}"
    data = bytearray(file.read_bytes())
    data[40:60] = bytes(20)
    file.write_bytes(data)
    with pytest.raises(DamagedStore, match=f"{file} at byte 40: message 12 of "):
        run(path, subExpression="tag0 || tag1 || tag2")


BODY_BYTES = 512 << 10
"""Of messages of which a read has eight, and a file fifteen."""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A directory with 24 large messages in two files of the log."""
    options = small_options(tmp_path / "large", commit_log_file_size=8 << 20)
    store = opened(options)
    for number in range(24):
        block = bytearray(encode_put_block([Message("T", b"x" * BODY_BYTES, tag="a")], "T", number % 2, T0))
        store.put_one(Block(block, "T", number % 2, 1, BORN_HOST))
    dispatch_all(store)
    store.close()
    return options.data_dir


def batches_of(path: Path, way: dict[str, str]) -> Iterator[Any]:
    """Plan and read in one task, without damaged messages."""
    options = parse_source_options(
        {"path": str(path), "subscribe": ALL, "minPartitions": "1", "onDamage": "skip", **way}, streaming=False
    )
    with OfflineStore(str(path)) as store:
        (partition,) = plan(store, options, NOTHING_NARROWED)
    yield from read_task(partition, options, schemas.arrow_schema_of(options), NOTHING_NARROWED)


WAYS: list[dict[str, str]] = [{}, {"subExpression": "a"}]
"""Through the log, and through the queues."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("left", [1 << 20, 100, 0])
def test_a_file_that_becomes_shorter_while_it_is_read_is_damage(
    large: Path, capfd: pytest.CaptureFixture[str], left: int, way: dict[str, str]
) -> None:
    first, last = sorted((large / "commitlog").iterdir())
    batches = batches_of(large, way)
    rows = next(batches).num_rows
    assert rows == 8  # of the first file or of the first queue in it
    for file in (first, last):
        os.truncate(file, left)
    rows += sum(batch.num_rows for batch in batches)
    in_last = left // BODY_BYTES // 2
    assert rows == 8 + in_last
    text = capfd.readouterr().err
    assert f"left out 7 damaged records of {first}" in text
    assert f"left out {9 - in_last} damaged records of {last}" in text


@pytest.mark.parametrize("way", WAYS)
def test_what_a_broker_zeroes_after_a_failover_is_not_read_as_data(
    large: Path, monkeypatch: pytest.MonkeyPatch, way: dict[str, str]
) -> None:
    sound = RecordColumns.checksum_faults

    def then_zeroed(columns: RecordColumns, *, bodies: bool = True) -> list[tuple[int, str]]:
        faults = sound(columns, bodies=bodies)
        for file in (large / "commitlog").iterdir():
            with file.open("r+b") as log:
                log.write(bytes(file.stat().st_size))
        return faults

    monkeypatch.setattr(RecordColumns, "checksum_faults", then_zeroed)
    rows = [row for batch in batches_of(large, way) for row in batch.to_pylist()]
    assert rows
    assert all(row["body"] == b"x" * BODY_BYTES and row["topic"] == "T" for row in rows)


@pytest.mark.parametrize("way", [{}, {"subExpression": "tag0 || tag1 || tag2"}])
@pytest.mark.parametrize(
    ("place", "size"), [(1, 200), (8191, 4096), (1 << 40, 200), ((1 << 63) - 1, 200), (None, (1 << 31) - 2)]
)
@pytest.mark.parametrize("message", [12, 14, 22])
def test_a_unit_that_points_elsewhere_is_damage_of_one_message(
    root: Path, tmp_path: Path, message: int, place: int | None, size: int, way: dict[str, str]
) -> None:
    path = copied(root, tmp_path / "damaged")
    file = path / "consumequeue" / "T" / "0" / f"{message // 10 * 200:020d}"
    position = message % 10 * 20
    data = bytearray(file.read_bytes())
    own, _, tag = struct.unpack_from(">qiq", data, position)
    struct.pack_into(">qiq", data, position, own if place is None else place, size, tag)
    file.write_bytes(data)
    _, rows = run(path, NOTHING_NARROWED, onDamage="skip", **way)
    assert places(rows) == [queue for queue in EVERYTHING if queue != (0, message)]
    with pytest.raises(DamagedStore, match=f"message {message} of T/0 should be here, but there is another record"):
        run(path, NOTHING_NARROWED, **way)


def test_records_far_apart_are_read_one_by_one(tmp_path: Path) -> None:
    options = small_options(tmp_path, commit_log_file_size=8 << 20)
    store = opened(options)
    for number in range(60):
        body, queue_id = (b"%d" % number, 0) if number % 4 else (b"x" * 100_000, 1)
        block = bytearray(encode_put_block([Message("T", body, tag="a")], "T", queue_id, T0))
        store.put_one(Block(block, "T", queue_id, 1, BORN_HOST))
    dispatch_all(store)
    store.close()
    _, rows = run(tmp_path, Narrowing(queue_ids=frozenset({0})), subExpression="a")
    assert [int(row["body"]) for row in rows] == [number for number in range(60) if number % 4]


def test_expired_messages_are_data_lost_or_skipped(root: Path, tmp_path: Path) -> None:
    path = copied(root, tmp_path / "expired")
    options = parse_source_options({"path": str(path), "subscribe": "T", "minPartitions": "2"}, streaming=False)
    lenient = parse_source_options({"path": str(path), "subscribe": "T", "failOnDataLoss": "false"}, streaming=False)
    with OfflineStore(str(path)) as store:
        partitions = plan(store, options, NOTHING_NARROWED)
    gone = records_of(path)[0].path
    in_file = sum(place.path == gone for place in records_of(path))
    gone.unlink()
    schema = schemas.arrow_schema_of(options)
    with pytest.raises(DataLost, match="was deleted while the query ran"):
        [*read_task(partitions[0], options, schema, NOTHING_NARROWED)]
    rows = sum(
        batch.num_rows for partition in partitions for batch in read_task(partition, lenient, schema, NOTHING_NARROWED)
    )
    assert rows == MESSAGES - in_file
    assert len(run(path)[1]) == MESSAGES - in_file  # planned again, nothing is missing
    with pytest.raises(DataLost, match="offset 0 is gone, its first message is"):
        run(path, startingOffsets='{"T":{"0":0}}')


def test_a_topic_that_was_created_again_has_its_new_messages_only(tmp_path: Path) -> None:
    options = small_options(tmp_path)
    store = opened(options)
    for text in (b"old", b"new"):
        for number in range(6):
            block = bytearray(encode_put_block([Message("T", text, tag="a")], "T", number % 2, T0))
            store.put_one(Block(block, "T", number % 2, 1, BORN_HOST))
        dispatch_all(store)
        if text == b"old":
            store.delete_topic("T")
    store.close()
    for way in ({}, {"subExpression": "a"}):
        _, rows = run(tmp_path, NOTHING_NARROWED, **way)
        assert [row["body"] for row in rows] == [b"new"] * 6


def test_properties_of_every_shape_are_read_as_every_reader_reads_them(tmp_path: Path) -> None:
    rng = random.Random(7)
    options = small_options(tmp_path, commit_log_file_size=1 << 20)
    store = opened(options, FakeClock())
    expected = []
    for number in range(300):
        properties = {f"p{rng.randrange(9)}\u00e9"[: rng.randrange(2, 4)]: "v" * rng.randrange(1, 9) for _ in range(5)}
        tag = rng.choice([None, "a", "\u00fcber"])
        keys = rng.sample(["k1", "k2", "k3"], rng.randrange(3))
        message = Message("T", b"b" * rng.randrange(50), tag=tag, keys=keys, properties=properties)
        block = bytearray(encode_put_block([message], "T", 0, T0))
        store.put_one(Block(block, "T", 0, 1, BORN_HOST))
        expected.append((number, tag, " ".join(keys) or None, properties, message.body))
    dispatch_all(store)
    store.close()
    _, rows = run(tmp_path)
    own = {"TAGS", "KEYS", "UNIQ_KEY"}
    found = [
        (
            row["queueOffset"],
            row["tags"],
            row["keys"],
            {name: value for name, value in row["properties"] if name not in own},
            row["body"],
        )
        for row in rows
    ]
    assert found == expected


def test_named_places_that_are_not_there_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchTopic, match="topic 'U' is not in"):
        run(root, subscribe="U")
    with pytest.warns(UserWarning, match="topic 'U' is not in"):
        assert len(run(root, subscribe="T,U", failOnDataLoss="false")[1]) == MESSAGES
    with pytest.raises(OptionError, match="option startingOffsets: names queue T/5"):
        run(root, startingOffsets='{"T":{"5":0}}')
    with pytest.raises(OptionError, match="would end at 3, before its start at 5"):
        run(root, startingOffsets='{"T":{"0":5}}', endingOffsets='{"T":{"0":3}}')
    for path, reason in (("/nowhere", "there is no such directory"), (str(tmp_path), "no directory commitlog")):
        with pytest.raises(NotAStore, match=reason):
            OfflineStore(path)
    with pytest.raises(NotAStore, match="pyarrow has no file system for it"):
        OfflineStore("ftp://host/store")
    assert OfflineStore(f"file://{root}").queue_keys()


def test_reading_changes_nothing(root: Path) -> None:
    before = hashes(root)
    run(root)
    run(root, Narrowing(keys=frozenset({"k7"})), subExpression="tag1")
    assert hashes(root) == before
