"""A start that is killed, or loses power, at each of its steps; and a start that is refused, which takes none."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from faults.disk import Disk
from faults.recorder import Recorder
from faults.workload import abandon
from reput_broker.store.base.errors import ForeignFile, StoreDamaged
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import Record
from support.stores import FakeClock, bodies, dispatch_all, flip_bit, killed, opened, small_options, tree

COUNT = 40
SIZE = 400


def filled(data_dir: Path) -> MessageStore:
    """A store of several log and index files, everything on the disk; a queue that got nothing of late among them."""
    store = opened(small_options(data_dir))
    store.put_record(Record("rare", b"seldom", queue_id=0, properties=b"KEYS\x01seldom\x02"))
    for number in range(COUNT):
        body = b"%03d" % number + bytes(SIZE)
        store.put_record(Record("T", body, queue_id=number % 2, properties=b"KEYS\x01k%d\x02" % number))
    dispatch_all(store)
    store.flush_consume_queues()
    store.write_checkpoint()
    return store


def images_of_a_start(options: StoreOptions, scratch: Path) -> Iterator[tuple[str, StoreOptions]]:
    """What a kill and a power cut leave after each step of a start; the directory itself is used up."""
    recorder = Recorder(options.data_dir)
    store = MessageStore(options, clock_ms=FakeClock())
    with recorder:
        store.open()
    abandon(store)
    rng = random.Random(7)
    disk = recorder.start()
    for step, event in enumerate([None, *recorder.events]):
        if event is not None:
            disk.apply(event)
        for how in ("kill", "power cut"):
            target = scratch / f"{step}-{how}"
            _lay_out(disk, how, rng, target)
            yield f"{how} after step {step} of {len(recorder.events)}", replace(options, data_dir=target)
            shutil.rmtree(target)


def _lay_out(disk: Disk, how: str, rng: random.Random, target: Path) -> None:
    if how == "kill":
        disk.after_kill(None, rng, target)
    else:
        disk.after_power_cut(rng, target)


def check_whole(store: MessageStore) -> None:
    assert bodies(store, "rare") == [b"seldom"]
    for queue_id in (0, 1):
        assert bodies(store, "T", queue_id)[-1] == b"%03d" % (COUNT - 2 + queue_id) + bytes(SIZE)
    store.complete_index()
    assert len(store.query_message("rare", "seldom", 10).records) == 1


def note(events: list[str], event: str, _facts: object) -> None:
    events.append(event)


def test_after_an_orderly_stop_a_killed_start_leaves_nothing_to_do(tmp_path: Path) -> None:
    """Damage in an old file, which no start after an orderly stop reads, shows that none is read."""
    store = filled(tmp_path / "live")
    store.close()
    damaged = store.options.commit_log_dir / f"{0:020d}"
    flip_bit(damaged, 2)  # the size of the first record: nothing could be dispatched from there
    steps = 0
    for what, options in images_of_a_start(store.options, tmp_path):
        events: list[str] = []
        options = replace(options, on_event=partial(note, events))
        again = MessageStore(options, clock_ms=FakeClock())
        report = again.open()
        assert report.checked_from > 0, what
        assert report.dispatched <= 0, what
        assert not {"queues_completed_from_beginning", "consume_queue_truncated"} & set(events), (what, events)
        for queue_id in (0, 1):
            assert again.max_offset_in_queue("T", queue_id) == COUNT // 2, what
        assert again.max_offset_in_queue("rare", 0) == 1, what
        abandon(again)
        steps += 1
    assert steps >= 10


def test_after_an_orderly_stop_the_index_outlives_a_killed_start(tmp_path: Path) -> None:
    store = filled(tmp_path / "live")
    store.close()
    before = tree(store.options.data_dir)
    names = [name for name in before if name.startswith("index/")]
    assert len(names) > 1
    for what, options in images_of_a_start(store.options, tmp_path):
        changed_nothing = (options.data_dir / "checkpoint").read_bytes() == before["checkpoint"]
        store = opened(options)
        check_whole(store)
        abandon(store)
        if changed_nothing:
            after = tree(options.data_dir)
            assert {name: after[name] for name in names} == {name: before[name] for name in names}, what


@pytest.mark.parametrize("lost", ["nothing", "queue", "checkpoint", "entries"])
def test_after_a_kill_a_killed_start_changes_nothing_for_the_next(tmp_path: Path, lost: str) -> None:
    """A power cut may take what a start has made and not synced; never what was there before."""
    live = filled(tmp_path / "live")
    image = killed(live, tmp_path / "image")
    if lost == "queue":
        shutil.rmtree(image.consume_queue_dir / "rare")
    elif lost == "checkpoint":
        (image.data_dir / "checkpoint").unlink()
    elif lost == "entries":
        path = image.consume_queue_dir / "T" / "1" / f"{0:020d}"
        path.write_bytes(path.read_bytes()[:100].ljust(200, b"\0"))
    for _, options in images_of_a_start(image, tmp_path):
        store = opened(options)
        check_whole(store)
        assert [len(bodies(store, "T", queue_id)) for queue_id in (0, 1)] == [COUNT // 2, COUNT // 2]
        abandon(store)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_refused_start_takes_no_step(tmp_path: Path, orderly: bool) -> None:
    """However much there would be to repair: bad entries, incomplete files, stray files, bytes after the end."""
    live = filled(tmp_path / "live")
    if orderly:
        live.close()
    image = killed(live, tmp_path / "image")
    queue = image.consume_queue_dir / "T" / "0"
    last = max(queue.iterdir())
    data = last.read_bytes()
    last.write_bytes(data[:40] + b"\xff" * 20 + data[60:])
    (queue / f"{400:020d}").write_bytes(b"")
    (image.commit_log_dir / f"{8 * 4096:020d}").write_bytes(b"")
    log_file = max(path for path in image.commit_log_dir.iterdir() if path.stat().st_size)
    damaged = bytearray(log_file.read_bytes())
    damaged[100] ^= 1
    damaged[-3:] = b"end"
    log_file.write_bytes(damaged)
    before = tree(image.data_dir)
    names = sorted(image.data_dir.rglob("*"))
    recorder = Recorder(image.data_dir)
    with recorder, pytest.raises(StoreDamaged):
        opened(image)
    after = [path for path in sorted(image.data_dir.rglob("*")) if path not in names]
    assert after == []
    assert tree(image.data_dir) == before


@pytest.mark.parametrize("what", ["damage", "hole"])
def test_queues_that_need_all_of_a_damaged_log_refuse_the_start_before_anything_is_changed(
    tmp_path: Path, what: str
) -> None:
    """Only an old file is bad, and only because entries are gone does a start need it."""
    live = filled(tmp_path / "live")
    image = killed(live, tmp_path / "image")
    shutil.rmtree(image.consume_queue_dir / "rare")
    path = image.commit_log_dir / f"{0:020d}"
    first = int.from_bytes(path.read_bytes()[:4], "big")
    size = int.from_bytes(path.read_bytes()[first : first + 4], "big")
    if what == "damage":
        position = first + 2 * size
        flip_bit(path, position + 2)
    else:
        shutil.rmtree(image.consume_queue_dir / "T")
        position = first + 2 * size  # message 1 of queue 0 says that it is message 17
        flip_bit(path, position + 27, 4)
    before = tree(image.data_dir)
    with pytest.raises(StoreDamaged, match="reput store repair") as caught:
        opened(image)
    assert (caught.value.file, caught.value.position) == (path, position)
    assert tree(image.data_dir) == before


def test_a_foreign_file_is_refused_before_a_half_made_one_is_removed(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    live.close()
    image = killed(live, tmp_path / "image")
    (image.consume_queue_dir / "T" / "0" / f"{400:020d}").write_bytes(b"")
    (image.consume_queue_dir / "T" / "1" / "notes").write_text("not ours")
    before = tree(image.data_dir)
    with pytest.raises(ForeignFile):
        opened(image)
    assert tree(image.data_dir) == before
