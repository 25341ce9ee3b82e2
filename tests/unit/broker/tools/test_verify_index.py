"""The key index against the log: RocketMQ's own bytes, and every kind of fault in them."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from golden.test_mini_store import mini_store, open_mini
from reput_broker.tools.index_raw import RawIndex
from reput_broker.tools.report import Report
from reput_broker.tools.verify_index import verify_index_file
from support.store_samples import copied, examine, fill, named, records_of, write_index
from support.stores import flip_bit

SLOTS, ENTRIES = 16, 24
FIRST = (
    "0000018bcfe568000000018bcfe571c40000000000000000000000000000016b0000000200000004"
    "0000000000000000000000000000000000000000000000030000000200000000"
    "0000000000000000000000000000000000000000"
    "0026bfb500000000000000000000000000000000"
    "0026bfb600000000000000000000000000000000"
    "0026bd0d000000000000016b0000000200000001"
)
SECOND = (
    "0000018bcfe577a00000018bcfe577a0000000000000026600000000000002660000000100000002"
    "0000000000000000000000000000000000000000000000010000000000000000"
    "0000000000000000000000000000000000000000"
    "0026bfb500000000000002660000000100000000"
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good") / "store"
    fill(root)
    write_index(root, SLOTS, ENTRIES)
    return root


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return copied(good, tmp_path / "store")


def golden(root: Path) -> None:
    """The mini-store closed in order, with the index that RocketMQ made of it."""
    mini_store(root)
    assert open_mini(root).close()
    directory = root / "index"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, text in (("20231114221320000", FIRST), ("20231114221324000", SECOND)):
        (directory / name).write_bytes(bytes.fromhex(text).ljust(152, b"\0"))


def test_the_index_of_a_genuine_store(tmp_path: Path) -> None:
    golden(tmp_path)
    found = examine(tmp_path)
    assert found.report.faults == []
    assert found.report.figures["index_entries"] == 4


def test_our_key_by_key_writer_makes_rocketmqs_bytes(tmp_path: Path) -> None:
    golden(tmp_path)
    wanted = [path.read_bytes() for path in sorted((tmp_path / "index").iterdir())]
    assert [path.read_bytes() for path in write_index(tmp_path, slots=8, entries=4)] == wanted


def test_a_good_index_has_no_fault(good: Path) -> None:
    found = examine(good)
    assert found.report.faults == []
    assert found.report.figures["index_entries"] == 120
    assert RawIndex(min((good / "index").iterdir())).guess_slots() == SLOTS


def test_no_mixture_of_wrong_predecessors_looks_right(good: Path, tmp_path: Path) -> None:
    """Whether the chains are right is first asked of all entries at once. Some may be wrong and fit together."""
    slots = 2  # so that chains are long
    path = write_index(copied(good, tmp_path / "store"), slots, ENTRIES)[0]
    right = path.read_bytes()
    at = {number: 40 + 4 * slots + 20 * number + 16 for number in range(1, ENTRIES)}
    numbers = random.Random(7)
    mixed = 0
    for _ in range(500):
        data = bytearray(right)
        some = numbers.sample(sorted(at), numbers.randint(1, 4))
        values = [right[at[number] : at[number] + 4] for number in some]
        numbers.shuffle(values)
        if numbers.random() < 0.5:
            values[0] = struct.pack(">i", numbers.randint(-1, ENTRIES + 1))
        for number, value in zip(some, values, strict=True):
            data[at[number] : at[number] + 4] = value
        wrong = {at[number] for number in some if data[at[number] :][:4] != right[at[number] :][:4]}
        path.write_bytes(data)
        raw, report = RawIndex(path), Report()
        raw.set_slots(slots)
        verify_index_file(raw, report)
        raw.close()
        assert {fault.position for fault in report.faults} == wrong
        mixed += len(wrong) > 1
    assert mixed > 100


def test_every_flipped_bit_of_an_index_file_is_named(good: Path, tmp_path: Path) -> None:
    """Every byte of the header, every third behind it."""
    path = sorted((good / "index").iterdir())[1]
    size = path.stat().st_size
    store = copied(good, tmp_path / "store")
    damaged = store / path.relative_to(good)
    before = damaged.read_bytes()
    for at in [*range(40), *range(40, size, 3)]:
        flip_bit(damaged, at, at % 8)
        faults = examine(store).report.faults
        assert any(fault.kind == "index" for fault in faults), at
        damaged.write_bytes(before)


@pytest.mark.parametrize(("shift", "where"), [(2, 0), (9, 0), (15, 12), (19, 16)])
def test_an_entry_is_named_by_its_place(store: Path, shift: int, where: int) -> None:
    path = min((store / "index").iterdir())
    entry = 40 + 4 * SLOTS + 20 * 5
    flip_bit(path, entry + shift, 1)
    assert ("index", str(path.relative_to(store)), entry + where) in named(examine(store))


def test_a_key_that_is_not_in_the_index_is_named_by_its_record(store: Path) -> None:
    whole = records_of(store)
    fifth = whole[5]
    path = min((store / "index").iterdir())
    # entry 11 is the unique key of record 5: it names record 4 now
    struct.pack_into(">q", data := bytearray(path.read_bytes()), 40 + 4 * SLOTS + 20 * 11 + 4, whole[4].position)
    path.write_bytes(data)
    faults = named(examine(store))
    assert ("index", str(fifth.path.relative_to(store)), fifth.position) in faults


def test_an_index_that_ends_early(store: Path) -> None:
    max((store / "index").iterdir()).unlink()
    faults = [fault for fault in examine(store).report.faults if fault.kind == "index"]
    assert len(faults) == 1
    assert "5 keys are not in the index" in faults[0].reason
    (store / "abort").write_text("1")
    found = examine(store)  # files that no checkpoint confirms are rebuilt by a start
    assert [fault for fault in found.report.faults if fault.kind == "index"] == []


def test_a_record_dispatched_twice_is_not_a_fault(good: Path, tmp_path: Path) -> None:
    """RocketMQ inserts the keys of the last indexed record again after a crash."""
    store = copied(good, tmp_path / "store")
    path = write_index(store, SLOTS, 200)[0]
    data = bytearray(path.read_bytes())
    (used,) = struct.unpack_from(">i", data, 36)
    last = 40 + 4 * SLOTS + 20 * (used - 1)
    key_hash, offset, seconds, _ = struct.unpack_from(">iqii", data, last)
    struct.pack_into(">iqii", data, last + 20, key_hash, offset, seconds, used - 1)
    struct.pack_into(">i", data, 40 + 4 * (key_hash % SLOTS), used)
    struct.pack_into(">i", data, 36, used + 1)
    path.write_bytes(data)
    assert examine(store).report.faults == []
