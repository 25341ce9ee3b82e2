"""What is kept on the disk about sinks: stagings, markers, the last batches."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from reput_broker.staging import staging_file as staging_files
from reput_broker.staging.batches import (
    CommittedBatch,
    CommittedBatches,
    CopyPlace,
    Intent,
    QueuePlace,
    StagingFacts,
    begin_marker,
    give_up_marker,
    is_intent,
    marker_of,
    read_intent,
    read_marker,
)
from reput_broker.staging.staging_file import StagingFile, StagingKey, StagingTable, remove, runs_of
from reput_broker.store.base.errors import FlushFailed, StoreDamaged
from reput_broker.tables.table_saver import TableSaver, save_now
from reput_protocol.commands.stage import staged_blocks
from support.sink_client import block_of
from support.stores import FakeClock

KEY = StagingKey("q", 3, 1, "staging-0001")
HOST = bytes(8)
BLOCK = block_of("orders", 2, [b"a", b"b"], "u")


def staged(directory: Path, *blocks: bytes, ended: bool = True) -> StagingFile:
    file = StagingFile.create(directory, KEY, HOST)
    for block in blocks:
        file.append(block, list(staged_blocks(block)))
    if ended:
        file.end()
    return file


def facts(file: StagingFile | None) -> tuple[object, ...]:
    assert file is not None
    return file.key, file.born_host, file.size, file.messages, file.checksum, file.ended


def test_a_staging_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = staged(tmp_path, BLOCK, BLOCK)
    again = StagingFile.load(file.path)
    assert facts(again) == facts(file)
    assert [(block.topic, block.queue_id, block.messages) for block in file.verify()] == [("orders", 2, 2)] * 2


@pytest.mark.parametrize("cut", [1, 5, len(BLOCK) - 1, len(BLOCK)])
def test_a_block_truncated_by_a_kill_is_dropped_and_the_sender_continues(tmp_path: Path, cut: int) -> None:
    file = staged(tmp_path, BLOCK, BLOCK, ended=False)
    with file.path.open("r+b") as raw:
        raw.truncate(file.path.stat().st_size - cut)
    again = StagingFile.load(file.path)
    assert again is not None
    assert (again.size, again.messages, again.ended) == (len(BLOCK), 2, False)
    again.append(BLOCK, list(staged_blocks(BLOCK)))
    again.end()
    assert facts(StagingFile.load(file.path)) == facts(again)
    assert (again.size, again.checksum) == (file.size, file.checksum)


@pytest.mark.parametrize("size", [0, 5, 30, 60])
def test_a_staging_without_its_head_is_none(tmp_path: Path, size: int) -> None:
    file = staged(tmp_path, ended=False)
    with file.path.open("r+b") as raw:
        raw.truncate(size)
    assert StagingFile.load(file.path) is None


def test_a_flipped_bit_is_named(tmp_path: Path) -> None:
    file = staged(tmp_path, BLOCK)
    (block,) = file.blocks()
    with file.path.open("r+b") as raw:
        raw.seek(block.position + 90)
        raw.write(b"?")
    with pytest.raises(StoreDamaged, match=f"{file.path.name} is damaged at byte {block.position}"):
        file.verify()


def test_a_failed_sync_ahead_is_reported_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = staged(tmp_path, BLOCK, ended=False)

    def failing(_: int) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(staging_files, "sync_data", failing)
        file.sync_ahead()
    with pytest.raises(FlushFailed, match="does not answer"):
        file.end()  # the system has reported the error once, and would now report success
    assert not file.ended


def test_a_sync_ahead_leaves_the_rest_to_the_end_and_a_dropped_staging_alone(tmp_path: Path) -> None:
    file = staged(tmp_path, BLOCK, ended=False)
    assert file.unsynced == len(BLOCK)
    file.sync_ahead()
    assert file.unsynced == 0
    file.append(BLOCK, list(staged_blocks(BLOCK)))
    file.end()
    assert facts(StagingFile.load(file.path)) == facts(file)
    file.remove()
    file.sync_ahead()


def test_blocks_are_read_together_as_far_as_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = staged(tmp_path, BLOCK, BLOCK, BLOCK)
    blocks = file.blocks()
    for run_bytes, runs in ((1, 3), (2 * len(BLOCK), 2), (1 << 20, 1)):
        monkeypatch.setattr(staging_files, "RUN_BYTES", run_bytes)
        found = list(runs_of(blocks))
        assert len(found) == runs
        for size in (0, 1 << 20):
            read = [bytes(data) for run in found for data in file.read_run(run, bytearray(size))]
            assert read == [file.read(block) for block in blocks]
        assert file.verify() == blocks


def test_the_table_has_what_is_staged_and_what_is_idle(tmp_path: Path) -> None:
    now = [100.0]
    table = StagingTable(tmp_path / "staging", lambda: now[0])
    table.load(now[0])
    table.add(table.create(KEY, HOST))
    table.add(table.create(KEY._replace(query_id="other", staging_id="staging-0002"), HOST))
    (tmp_path / "staging" / "x.stage").write_bytes(b"?")
    again = StagingTable(tmp_path / "staging", lambda: now[0])
    again.load(now[0])
    assert sorted(file.key.staging_id for file in again.all()) == ["staging-0001", "staging-0002"]
    now[0] += 50
    again.touch("q")
    now[0] += 20
    assert [file.key.query_id for file in again.idle(60)] == ["other"]
    remove(again.forget(again.idle(60)))
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["staging-0001.stage"]
    assert len(again) == 1


def test_a_marker_is_read_as_it_was_written() -> None:
    intent = Intent(
        "q",
        4,
        [StagingFacts("staging-0001", 1, HOST.hex(), 77, 12, 99)],
        12,
        [QueuePlace("orders", 1, 77)],
        [{"topicName": "orders"}],
        CopyPlace(3, 4096),
    )
    for one in (intent, replace(intent, copies=None)):
        members = json.loads(begin_marker(one))
        assert is_intent(members)
        assert read_intent(members) == one
    given_up = json.loads(give_up_marker(intent))
    assert is_intent(given_up)
    assert read_intent(given_up) is None
    assert intent.key_of(intent.stagings[0]) == StagingKey("q", 4, 1, "staging-0001")
    closing = json.loads(marker_of("q", CommittedBatch(4, 12, 1)))
    assert not is_intent(closing)
    assert read_marker(closing) == ("q", CommittedBatch(4, 12, 1))


def test_the_snapshot_outlives_the_markers(tmp_path: Path) -> None:
    clock = FakeClock()
    table = CommittedBatches(tmp_path / "sinkBatches.json", clock)
    table.load()
    table.note("q", CommittedBatch(7, 100, clock()), 0, 4096)
    table.note("r", CommittedBatch(1, 5, clock()), 1, 8192)
    assert table.unsaved_from == 4096
    save_now(table)
    assert table.unsaved_from is None
    again = CommittedBatches(tmp_path / "sinkBatches.json", clock)
    again.load()
    assert (again.next_marker, again.last("q"), len(again)) == (2, CommittedBatch(7, 100, clock()), 2)
    assert [again.is_committed("q", batch_id) for batch_id in (6, 7, 8)] == [True, True, False]
    clock.now_ms += 10_000
    again.note("r", CommittedBatch(2, 5, clock()), 2, 12288)
    assert again.forget_before(5) == 1
    assert again.last("q") is None
    assert again.last("r") == CommittedBatch(2, 5, clock())


def test_a_snapshot_that_cannot_be_written_leaves_the_first_marker_unsaved(tmp_path: Path) -> None:
    table = CommittedBatches(tmp_path / "sinkBatches.json", FakeClock())
    table.note("q", CommittedBatch(0, 1, 1), 0, 4096)
    job = table.begin_save()
    assert job is not None
    table.note("q", CommittedBatch(1, 1, 1), 1, 8192)
    job.abandon()
    assert table.unsaved_from == 4096


@pytest.mark.trio
async def test_a_snapshot_whose_name_is_not_durable_leaves_the_markers_unsaved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = CommittedBatches(tmp_path / "sinkBatches.json", FakeClock())
    table.note("q", CommittedBatch(0, 1, 1), 0, 4096)

    def failing() -> None:
        raise OSError("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(table.file, "sync_directory", failing)
        for _ in range(2):
            with pytest.raises(OSError, match="does not answer"):
                await TableSaver(table).save()
            with pytest.raises(OSError, match="does not answer"):
                save_now(table)
        assert table.unsaved_from == 4096
    save_now(table)
    assert table.unsaved_from is None


@pytest.mark.parametrize("size", [10, -1, -30])
def test_a_decided_staging_is_left_as_it_is(tmp_path: Path, size: int) -> None:
    path = staged(tmp_path, BLOCK, BLOCK).path
    broken = path.read_bytes()[:size]
    path.write_bytes(broken)
    StagingTable(tmp_path, FakeClock()).load(0, [KEY.staging_id])
    assert path.read_bytes() == broken
    StagingTable(tmp_path, FakeClock()).load(0)
    assert not path.exists() or path.read_bytes() != broken
