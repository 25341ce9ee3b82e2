"""`repair`: a start that was refused succeeds afterwards, and copies of all removed bytes exist."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from faults.recorder import Recorder
from reput_broker.store.base.errors import StoreError
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tools.repair import RepairResult, apply_repair
from reput_broker.tools.repair_plan import RepairPlan, copy_part, move, plan_repair
from support.store_samples import QUEUES, copied, examine, fill, hashes, named, records_of
from support.stores import FakeClock, bodies, dispatch_all, flip_bit, opened, put, small_options

MESSAGES = 120


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good") / "store"
    fill(root, messages=MESSAGES)
    return root


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return copied(good, tmp_path / "store")


def refused(root: Path) -> bool:
    """Whether a start refuses the directory; it changes nothing then."""
    store = MessageStore(small_options(root), clock_ms=FakeClock())
    try:
        store.open()
    except StoreError:
        return True
    store.close()
    return False


def without_mark(root: Path) -> None:
    """Leave a checkpoint as RocketMQ writes it: a start then checks the whole log."""
    data = (root / "checkpoint").read_bytes()
    (root / "checkpoint").write_bytes(data[:40].ljust(4096, b"\0"))


def repaired(root: Path) -> tuple[RepairPlan, RepairResult]:
    found = examine(root)
    plan = plan_repair(found)
    return plan, apply_repair(found, plan)


def test_nothing_to_repair(store: Path) -> None:
    before = hashes(store)
    assert plan_repair(examine(store)).is_empty
    assert hashes(store) == before


@pytest.mark.parametrize("number", [1, 40, 118])
def test_a_damaged_body_ends_the_log_and_all_behind_it_is_kept(store: Path, number: int) -> None:
    places = records_of(store)
    place = places[number]
    flip_bit(place.path, place.body)
    without_mark(store)
    offset = int(place.path.name) + place.position
    damaged = place.path.read_bytes()
    later = {path.name: path.read_bytes() for path in (store / "commitlog").iterdir() if path > place.path}
    assert refused(store)
    before = hashes(store)
    plan = plan_repair(examine(store))
    assert hashes(store) == before, "a plan changes nothing"
    assert plan.truncation is not None
    assert (plan.truncation.offset, plan.truncation.position, plan.truncation.lost_records) == (
        offset,
        place.position,
        MESSAGES - number - 1,
    )
    assert plan.truncation.lost_topics == ({"T": MESSAGES - number - 1} if number < MESSAGES - 1 else {})

    _, result = repaired(store)
    assert result.end_offset == offset
    kept = result.side_directory / "commitlog"
    cut = (kept / f"{place.path.name}.from-{place.position}" if place.position else kept / place.path.name).read_bytes()
    assert damaged[place.position :].startswith(cut)
    assert not any(damaged[place.position + len(cut) :])
    for name, data in later.items():
        assert data.rstrip(b"\0") == (kept / name).read_bytes().rstrip(b"\0")
    assert json.loads((result.side_directory / "repair.json").read_text())["plan"]
    assert plan_repair(examine(store)).is_empty

    again = opened(small_options(store))
    for queue_id in range(QUEUES):
        wanted = [b"body-%04d" % n for n in range(number) if n % QUEUES == queue_id]
        assert bodies(again, "T", queue_id) == wanted
    put(again, b"new", topic="T")
    dispatch_all(again)
    assert bodies(again)[-1] == b"new"
    assert again.close()
    assert examine(store).report.is_clean
    offsets = ConsumerOffsetManager(store / "config/consumerOffset.json", clock_ms=FakeClock())
    offsets.load()
    for queue_id, committed in ((0, 7), (1, MESSAGES // QUEUES)):
        end = len([n for n in range(number) if n % QUEUES == queue_id])
        assert offsets.query("billing", "T", queue_id) == min(committed, end)
    offsets.close()


@pytest.mark.parametrize("at", [1, 5, 9, 26, 33])
def test_a_field_that_the_rest_tells_is_put_right(good: Path, store: Path, at: int) -> None:
    """TOTALSIZE, MAGIC, BODYCRC, QUEUEOFFSET, PHYSICALOFFSET: nothing is lost."""
    place = records_of(store)[40]
    flip_bit(place.path, place.position + at, 3)
    without_mark(store)
    assert at == 26 or refused(copied(store, store.with_name("as-it-is")))
    plan, result = repaired(store)
    assert plan.truncation is None
    assert len(plan.fixes) == 1
    log = {name: found[0] for name, found in hashes(good).items() if name.startswith("commitlog")}
    assert {name: found[0] for name, found in hashes(store).items() if name.startswith("commitlog")} == log
    assert not refused(store)
    assert result.side_directory.is_dir()


@pytest.mark.parametrize("shift", [88, 6])
def test_damage_that_a_start_does_not_mind_costs_nothing_else(store: Path, shift: int) -> None:
    """One bad record in an old file is no reason to lose all that came after it."""
    place = records_of(store)[3]
    flip_bit(place.path, place.position + shift)
    flip_bit(place.path, place.position + 90)  # two faults: it cannot be put right
    assert not refused(copied(store, store.with_name("as-it-is")))
    plan = plan_repair(examine(store))
    assert plan.truncation is None
    assert len(plan.left) == 1
    last = records_of(store)[-4]
    flip_bit(last.path, last.body)
    assert refused(store)
    plan, _ = repaired(store)
    assert plan.truncation is not None
    assert plan.truncation.lost_records == 3
    again = opened(small_options(store))
    assert [again.max_offset_in_queue("T", n) for n in range(QUEUES)] == [58, 58]
    put(again, b"new", topic="T")
    dispatch_all(again)
    assert again.max_offset_in_queue("T", 0) == 59
    assert again.close()


def test_a_missing_file_ends_the_log(store: Path) -> None:
    gone = sorted((store / "commitlog").iterdir())[1]
    gone.unlink()
    assert refused(store)
    plan, result = repaired(store)
    assert plan.truncation is not None
    assert result.end_offset <= int(gone.name)
    assert not refused(store)
    assert examine(store).report.is_clean


def test_a_truncated_file(store: Path) -> None:
    path = sorted((store / "commitlog").iterdir())[1]
    path.write_bytes(path.read_bytes()[:1000])
    assert refused(store)
    repaired(store)
    assert not refused(store)


def test_the_flushed_end_of_the_log_is_gone(store: Path) -> None:
    last = records_of(store)[-1]
    data = last.path.read_bytes()
    last.path.write_bytes(data[: last.position] + bytes(len(data) - last.position))
    assert refused(store)
    plan, _ = repaired(store)
    assert plan.truncation is not None
    assert plan.truncation.lost_records == 0
    assert not refused(store)


def test_foreign_files_and_garbled_tables_are_moved_away(store: Path) -> None:
    (store / "commitlog/notes.txt").write_text("hello")
    (store / "config/topics.json").write_text("{")
    (store / "config/topics.json.bak").unlink(missing_ok=True)
    (store / "deletedTopics").write_text("[")
    (store / "checkpoint").write_bytes(b"short")
    assert refused(store)
    _, result = repaired(store)
    assert (result.side_directory / "commitlog/notes.txt").read_text() == "hello"
    assert (result.side_directory / "config/topics.json").read_text() == "{"
    assert (result.side_directory / "before/checkpoint").read_bytes() == b"short"
    assert not (store / "config/topics.json").exists()
    assert not refused(store)
    assert not named(examine(store))


def test_wrong_units_are_rebuilt(good: Path, store: Path) -> None:
    flip_bit(store / "consumequeue/T/0/00000000000000000000", 45)
    shutil.rmtree(store / "consumequeue/T/1")
    plan, _ = repaired(store)
    assert plan.truncation is None
    wanted = {name: found[0] for name, found in hashes(good).items() if name.startswith("consumequeue")}
    assert {name: found[0] for name, found in hashes(store).items() if name.startswith("consumequeue")} == wanted


def index_files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def test_a_wrong_index_is_rebuilt(good: Path, store: Path) -> None:
    path = sorted((store / "index").iterdir())[1]
    flip_bit(path, 150)
    wrong = index_files(store)
    plan, result = repaired(store)
    assert plan.lines() == ["move the key index away and rebuild it from the log"]
    assert result.lines == ["240 keys in 7 files"]
    assert index_files(store) == index_files(good)
    assert index_files(result.side_directory) == wrong
    assert examine(store).report.is_clean
    assert not (store / "abort").exists()
    names = [path.name for path in (store / "index").iterdir()]
    assert not refused(store)
    assert [path.name for path in (store / "index").iterdir()] == names, "the start had nothing to do"


def test_an_index_of_unknown_sizes_is_left_to_the_next_start(good: Path, store: Path) -> None:
    for path in (store / "index").iterdir():
        path.write_bytes(b"\x01" * path.stat().st_size)
    plan, _ = repaired(store)
    assert plan.lines() == ["move the key index away: the next start rebuilds it from the log"]
    assert not (store / "index").exists()
    assert not refused(store)
    assert index_files(store) == index_files(good)


def test_with_the_log_the_index_is_cut(store: Path) -> None:
    last = records_of(store)[-3]
    flip_bit(last.path, last.body)
    plan, result = repaired(store)
    assert plan.rebuild_index
    assert f"{2 * (MESSAGES - 3)} keys in 6 files" in result.lines
    assert not refused(store)
    assert examine(store).report.is_clean


def test_killed_in_the_middle_the_same_repair_can_be_made_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = records_of(store)[40]
    flip_bit(place.path, place.body)
    without_mark(store)
    from reput_broker.tools import repair

    for step in ("_write_checkpoint", "rebuild", "truncate_log"):
        root = copied(store, store.with_name(step))
        with monkeypatch.context() as patch:

            def die(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(repair, step, die)
            with pytest.raises(KeyboardInterrupt):
                repaired(root)
        repaired(root)
        assert not refused(root), step
        reopened = opened(small_options(root))
        assert bodies(reopened, "T", 0) == [b"body-%04d" % n for n in range(0, 40, 2)]
        reopened.close()


# Where things are kept


@pytest.fixture
def spread(good: Path, tmp_path: Path) -> tuple[Path, tuple[Path, ...]]:
    """The store with its log in three directories of one name, one of them its own, and a damaged record."""
    root = copied(good, tmp_path / "store")
    directories = (tmp_path / "a" / "commitlog", tmp_path / "b" / "commitlog", root / "commitlog")
    place = records_of(root)[-2]
    flip_bit(place.path, place.body)
    for number, path in enumerate(sorted(directories[2].iterdir())):
        directories[number % 2].mkdir(parents=True, exist_ok=True)
        path.rename(directories[number % 2] / path.name)
    for number, directory in enumerate(directories):
        (directory / "notes.txt").write_text(f"notes {number}")
        (directory / "repair.json").write_text(f"json {number}")
    last = max(path for path in directories[0].glob("0*"))
    for number, directory in enumerate(directories[1:]):
        (directory / last.name).write_bytes((b"twin %d" % number).ljust(4096, b"\0"))
    return root, directories


def kept_as(result: RepairResult) -> dict[str, Path]:
    words = json.loads((result.side_directory / "repair.json").read_text())
    return {moved["file"]: result.side_directory / moved["kept_as"] for moved in words["moved"]}


def between_disks(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let a rename that leads to another directory fail."""
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(source).parent != Path(target).parent:
            raise OSError(code, os.strerror(code), str(source), None, str(target))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)


@pytest.mark.parametrize("other_disks", [False, True])
def test_files_of_one_name_are_kept_apart(
    spread: tuple[Path, tuple[Path, ...]], monkeypatch: pytest.MonkeyPatch, other_disks: bool
) -> None:
    root, directories = spread
    if other_disks:
        between_disks(monkeypatch, errno.EXDEV)
    found = examine(root, commit_log_dirs=directories)
    plan = plan_repair(found)
    assert plan.truncation is not None
    gone = {str(path): path.read_bytes() for path, _ in plan.aside}
    assert len(gone) == 8, "three notes, three of the name that the repair uses itself, two twins"
    result = apply_repair(found, plan)
    kept = kept_as(result)
    assert {path: kept[path].read_bytes() for path in gone} == gone
    assert len(set(kept.values())) == len(kept)
    assert not any(Path(path).exists() for path in gone)
    assert kept[str(directories[0] / "notes.txt")].parts[-3:] == ("outside", "1-commitlog", "notes.txt")
    assert kept[str(directories[1] / "notes.txt")].parts[-3:] == ("outside", "2-commitlog", "notes.txt")
    assert kept[str(directories[2] / "notes.txt")] == result.side_directory / "commitlog" / "notes.txt"
    store = opened(small_options(root, commit_log_dirs=directories))
    assert bodies(store)[-1] == b"body-%04d" % (MESSAGES - 4 + MESSAGES % 2)
    assert store.close()


def test_nothing_is_moved_over_something_else(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "side" / "a"
    source.write_text("new")
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(FileExistsError):
        move(source, target)
    with pytest.raises(FileExistsError):
        copy_part(source, 0, 3, target)
    assert (source.read_text(), target.read_text()) == ("new", "old")


def test_only_files_on_another_disk_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a"
    (source / "below").mkdir(parents=True)
    (source / "below" / "file").write_text("x")
    with monkeypatch.context() as patch:
        between_disks(patch, errno.EACCES)
        with pytest.raises(PermissionError):
            move(source, tmp_path / "side" / "a")
    assert (source / "below" / "file").exists()
    between_disks(monkeypatch, errno.EXDEV)
    move(source, tmp_path / "side" / "a")
    assert (tmp_path / "side" / "a" / "below" / "file").read_text() == "x"
    assert not source.exists()


def test_a_copy_is_on_the_disk_before_the_original_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    (top / "disk").mkdir(parents=True)
    (top / "disk" / "file").write_bytes(b"x" * 9000)
    (top / "store").mkdir()
    between_disks(monkeypatch, errno.EXDEV)
    recorder = Recorder(top)
    with recorder:
        move(top / "disk" / "file", top / "store" / "side" / "outside" / "file")
    disk, rng = recorder.start(), random.Random(1)
    for number, event in enumerate(recorder.events):
        disk.apply(event)
        for again in range(20):
            image = tmp_path / f"{number}-{again}"
            disk.after_power_cut(rng, image)
            files = [path.read_bytes() for path in image.rglob("file")]
            assert b"x" * 9000 in files, f"after {event}"


def test_queues_renamed_by_a_killed_rebuild_are_used(good: Path, store: Path) -> None:
    """They are put back before anything is made of what seems to be missing."""
    for name in ("consumequeue", "index"):
        (store / name).rename(store / f"{name}.replaced")
    assert plan_repair(examine(store)).is_empty
    last = records_of(store)[-1]
    flip_bit(last.path, last.body)
    repaired(store)
    assert not list(store.glob("*.replaced"))
    assert not refused(store)
    assert examine(store).report.is_clean
