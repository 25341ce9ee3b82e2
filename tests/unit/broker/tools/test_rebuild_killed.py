"""A rebuild that is interrupted anywhere: the next start has every message, every key and every queue offset."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from faults.killed_rebuild import check_kept, make_kept
from faults.outcome import scratch
from faults.recorder import Recorder
from reput_broker.store.base.errors import FlushFailed
from reput_broker.store.base.file_io import sync_directory
from reput_broker.store.opening import directory_swap
from reput_broker.tools.rebuild import REBUILDERS, IndexRebuild, rebuild
from support.store_samples import MESSAGES, QUEUES, examine, fill
from support.stores import bodies, killed, opened, small_options

SEED = 20_260_101


def check(image: Path, *, again: bool) -> None:
    """Start, read everything by queue and by key, stop, and look at it with other eyes; perhaps rebuild once more."""
    store = opened(small_options(image))
    while store.index_step():
        pass
    store.complete_index()
    for queue_id in range(QUEUES):
        wanted = [b"body-%04d" % number for number in range(queue_id, MESSAGES, QUEUES)]
        assert bodies(store, "T", queue_id) == wanted
    for number in range(MESSAGES):
        found = store.query_message("T", f"U{number:06d}", 64)
        assert (found.is_complete, len(found.records)) == (True, 1)
    assert store.close()
    examined = examine(image)
    assert examined.report.is_clean, examined.report.faults
    if again:
        rebuild(examined.layout, examined.log.kept_end, [IndexRebuild])
        assert not list(image.glob("*.tmp"))
        assert not list(image.glob("*.replaced"))


@pytest.mark.parametrize("ends", ["kill", "power cut"])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_rebuild_can_end_anywhere(tmp_path: Path, ends: str, stopped: bool) -> None:
    root = tmp_path / "store"
    fill(root)
    if not stopped:
        store = opened(small_options(root))
        image = killed(store, tmp_path / "killed").data_dir
        assert store.close()
        root = image
    rng = random.Random(SEED)
    found = examine(root)
    recorder = Recorder(root)
    with recorder:
        rebuild(found.layout, found.log.kept_end, list(REBUILDERS.values()))
    disk = recorder.start()
    assert len(recorder.events) > 50
    with scratch() as directory:
        for number, event in enumerate(recorder.events):
            disk.apply(event)
            image = directory / f"image-{number}"
            if ends == "kill":
                disk.after_kill(event, rng, image)
            else:
                disk.after_power_cut(rng, image)
            try:
                check(image, again=number % 8 == 0)
            except Exception as error:
                error.add_note(f"seed {SEED}, event {number} of {len(recorder.events)}: {event}")
                raise
            shutil.rmtree(image)


@pytest.mark.parametrize("ends", ["kill", "power cut"])
@pytest.mark.parametrize("one_step", [True, False])
@pytest.mark.parametrize("kinds", [["queues"], ["index"]])
def test_a_queue_without_messages_keeps_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, one_step: bool, kinds: list[str]
) -> None:
    """The log does not say any more where it ended: cut between any two steps, its old files or its new ones do."""
    if not one_step:
        monkeypatch.setattr(directory_swap, "exchange", lambda *_: False)
    rng = random.Random(SEED)
    kept = make_kept(tmp_path / "store", rng)
    found = examine(kept.options.data_dir)
    recorder = Recorder(kept.options.data_dir)
    with recorder:
        rebuild(found.layout, found.log.kept_end, [REBUILDERS[kind] for kind in kinds])
    disk = recorder.start()
    with scratch() as directory:
        for number, event in enumerate(recorder.events):
            disk.apply(event)
            image = directory / f"image-{number}"
            if ends == "kill":
                disk.after_kill(event, rng, image)
            else:
                disk.after_power_cut(rng, image)
            assert check_kept(kept, image) == [], f"event {number} of {len(recorder.events)}: {event}"
            shutil.rmtree(image)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("one_step", [True, False])
def test_after_a_failed_sync_neither_queues_nor_what_took_their_place_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_step: bool
) -> None:
    """The system tells of it once: that a second sync works says nothing about the names on the disk."""
    root = tmp_path / "store"
    fill(root)
    found = examine(root)
    before = contents(root / "consumequeue")
    told: list[Path] = []

    def sync(path: Path) -> None:
        if not told:
            told.append(path)
            raise FlushFailed(path, OSError(errno.EIO, os.strerror(errno.EIO)))
        sync_directory(path)

    with monkeypatch.context() as patch:
        if not one_step:
            patch.setattr(directory_swap, "exchange", lambda *_: False)
        patch.setattr(directory_swap, "sync_directory", sync)
        with pytest.raises(FlushFailed):
            rebuild(found.layout, found.log.kept_end, [REBUILDERS["queues"]])
    assert told == [root]
    assert contents(root / "consumequeue") == before
    assert contents(root / "rebuild-0.tmp") == before, "the other one, whichever it is"
    check(root, again=True)
