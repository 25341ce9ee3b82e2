"""A commit that meets a full disk: before it is decided nothing has happened, after that it is completed once."""

from __future__ import annotations

import errno
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.request import Refusal
from reput_broker.staging import committer as committing
from reput_broker.staging.batches import Pace, Pieces, Publisher
from reput_broker.store.base.errors import StoreDamaged
from reput_client.consume.fetch_records import BulkReader
from reput_client.produce.staging_producer import StagingProducer, StagingScope
from reput_protocol.commands.stage import StagedPart
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import record_views
from support.inside import committer_of, parts_of, storage_of

pytestmark = pytest.mark.trio
MESSAGES = 2000
PART = 250


@asynccontextmanager
async def serving(directory: Path, **store: Any) -> AsyncIterator[tuple[Broker, StagingProducer]]:
    config = BrokerConfig.model_validate({"data_dir": directory, "port": 0, "http_port": None, "store": store})
    async with Broker(config) as broker, StagingProducer(broker.address, timeout_s=30) as writer:
        yield broker, writer


async def staged(writer: StagingProducer, batch_id: int) -> StagedPart:
    writer.begin(StagingScope("q", batch_id, 0, uuid.uuid4().hex))
    messages = [Message("orders", b"%d" % number + bytes(100)) for number in range(MESSAGES)]
    ids = [f"{batch_id}-{number}" for number in range(MESSAGES)]
    for first in range(0, MESSAGES, PART):  # each a piece at least, however large pieces may be
        part = slice(first, first + PART)
        await writer.stage("orders", 0, PART, encode_put_block(messages[part], "orders", 0, 1, ids[part]))
    return await writer.end()


async def bodies(broker: Broker) -> list[int]:
    found: list[int] = []
    async with BulkReader(broker.address) as reader:
        start, end = 0, (await reader.queue_bounds(["orders"])).topics["orders"][0].max_offset
        while start < end:
            block = await reader.fetch("orders", 0, start, end)
            found += [int(view.body.rstrip(b"\0")) for view in record_views(block.records)]
            start = block.next_offset
    return found


def stop_after(pieces: int, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Have so many pieces appended, and then this error instead."""
    put, calls = Publisher._put, []

    async def stopping(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) > pieces:
            raise error
        return await put(*arguments)

    monkeypatch.setattr(Publisher, "_put", stopping)


async def decided(directory: Path, pieces: int) -> None:
    """Leave a decided batch behind, of which so many pieces are in the log."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(pieces, patch, Refusal(ErrorCode.DISK_FULL, "no space left"))
        async with serving(directory) as (_, writer):
            with pytest.raises(BrokerError, match="is decided"):
                await writer.commit("q", 0, [await staged(writer, 0)])


def failing(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "the disk does not answer")


async def test_a_full_disk_is_reported_before_anything_is_decided(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)
        broker.store.refuse_for_disk("the disk is too full")
        with pytest.raises(BrokerError, match="too full") as refused:
            await writer.commit("q", 0, [part])
        assert refused.value.error is ErrorCode.DISK_FULL
        assert "is decided" not in str(refused.value)
        with pytest.raises(BrokerError, match="too full"):
            await staged(writer, 1)
        broker.store.refuse_for_disk(None)
        assert not (await writer.commit("q", 0, [part])).repeated
        assert await bodies(broker) == list(range(MESSAGES))


async def test_a_decided_batch_waits_for_room_and_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, writer):
        first, second = await staged(writer, 0), await staged(writer, 1)
        publisher: Any = committer_of(broker)._publisher
        put, calls = publisher._put, []

        async def refuse(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) > 2:
                raise Refusal(ErrorCode.DISK_FULL, "no space left")
            return await put(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(publisher, "_put", refuse)
            for part, batch_id, text in (
                (first, 0, "batch 0 is decided, and will be published"),
                (first, 0, "batch 0 is decided, and will be published"),
                (second, 1, "batch 0 of query q is decided and waits to be published"),
            ):
                with pytest.raises(BrokerError, match=text):
                    await writer.commit("q", batch_id, [part])
            assert (await writer.abort("q", 0)).stagings == 2, "what is decided is not dropped"
        assert (await writer.commit("q", 1, [second])).messages == MESSAGES
        assert (await writer.commit("q", 0, [first])).repeated
        assert await bodies(broker) == [*range(MESSAGES), *range(MESSAGES)]
        assert (await writer.query_staged()).stagings == 0


async def test_a_start_completes_what_was_decided_and_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)
        publisher: Any = committer_of(broker)._publisher
        put, calls = publisher._put, []

        async def refuse(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) > 1:
                raise Refusal(ErrorCode.DISK_FULL, "no space left")
            return await put(*arguments)

        monkeypatch.setattr(publisher, "_put", refuse)
        with pytest.raises(BrokerError, match="is decided"):
            await writer.commit("q", 0, [part])
    async with serving(tmp_path) as (broker, writer):
        assert await bodies(broker) == list(range(MESSAGES))
        assert (await writer.commit("q", 0, [part])).repeated
        assert (await writer.query_staged("q")).last_batch_id == 0


async def test_an_abort_while_a_batch_is_being_decided_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)
        committer: Any = committer_of(broker)
        begin = committer._begin

        async def aborted_meanwhile(intent: Any) -> None:
            async with StagingProducer(broker.address, timeout_s=30) as other:
                assert (await other.abort("q", 0)).stagings == 1
            await begin(intent)

        monkeypatch.setattr(committer, "_begin", aborted_meanwhile)
        assert (await writer.commit("q", 0, [part])).messages == MESSAGES
        assert await bodies(broker) == list(range(MESSAGES))
        assert not committer.decision.covers("q", 0)


async def test_a_disk_that_fails_after_the_decision_is_reported_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "_RETRY_INTERVAL_S", 0.01)
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)
        committer: Any = committer_of(broker)
        publish, calls = committer._publisher.publish, []

        async def fail_twice(*arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) <= 2:
                failing()
            return await publish(*arguments)

        monkeypatch.setattr(committer._publisher, "publish", fail_twice)
        with pytest.raises(BrokerError, match="batch 0 is decided, and will be published"):
            await writer.commit("q", 0, [part])
        with trio.fail_after(10):
            while committer.decision.covers("q", 0):
                await trio.sleep(0.01)
        assert len(calls) == 3
        assert (await writer.commit("q", 0, [part])).repeated
        assert await bodies(broker) == list(range(MESSAGES))


async def test_a_failed_clean_up_does_not_undo_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (broker, writer):
        with monkeypatch.context() as patch:
            patch.setattr(committing, "remove", failing)
            part = await staged(writer, 0)
            assert not (await writer.commit("q", 0, [part])).repeated
            assert (await writer.commit("q", 0, [part])).repeated
        assert not (await writer.commit("q", 1, [await staged(writer, 1)])).repeated
    async with serving(tmp_path) as (broker, writer):
        assert await bodies(broker) == [*range(MESSAGES), *range(MESSAGES)]
    assert list((tmp_path / "staging").iterdir()) == []


async def test_a_start_ends_at_a_damaged_staging_and_keeps_it(tmp_path: Path) -> None:
    was_configured = structlog.is_configured()
    await decided(tmp_path, pieces=1)
    (path,) = (tmp_path / "staging").glob("*.stage")
    whole = path.read_bytes()
    for position in (20, len(whole) - 200):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        broken = path.read_bytes()
        with (
            trio.fail_after(10),
            pytest.RaisesGroup(
                pytest.RaisesExc(StoreDamaged, match="make a file staging/give-up"),
                flatten_subgroups=True,
                allow_unwrapped=True,
            ),
        ):
            async with serving(tmp_path):
                pass
        assert path.read_bytes() == broken
        assert structlog.is_configured() == was_configured, "a start that failed leaves the program's log alone"
    path.write_bytes(whole)
    async with serving(tmp_path) as (broker, _):
        assert await bodies(broker) == list(range(MESSAGES))


async def test_an_operator_gives_up_a_batch_whose_staging_is_lost(tmp_path: Path) -> None:
    await decided(tmp_path, pieces=1)
    (path,) = (tmp_path / "staging").glob("*.stage")
    path.unlink()
    (tmp_path / "staging" / "give-up").touch()
    for _ in range(2):  # the second start finds nothing to complete
        async with serving(tmp_path) as (broker, writer):
            found = await bodies(broker)
            assert found == list(range(len(found)))
            assert 0 < len(found) < MESSAGES
            assert (await writer.query_staged("q")).last_batch_id == -1
    assert list((tmp_path / "staging").iterdir()) == []


async def test_the_log_is_kept_from_where_an_unfinished_batch_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, commit_log_file_size=64 * 1024) as (broker, writer):
        await writer.commit("q", 0, [await staged(writer, 0)])
        sink, second = parts_of(broker).staging, await staged(writer, 1)
        assert sink.needed_from() is None
        before = broker.store.max_physical_offset
        with monkeypatch.context() as patch:
            stop_after(2, patch, Refusal(ErrorCode.DISK_FULL, "no space left"))
            with pytest.raises(BrokerError, match="is decided"):
                await writer.commit("q", 1, [second])
        begins_at = sink.needed_from()
        assert begins_at is not None
        assert before <= begins_at < broker.store.max_physical_offset
    async with serving(tmp_path, commit_log_file_size=64 * 1024) as (broker, writer):
        assert await bodies(broker) == [*range(MESSAGES), *range(MESSAGES)]
        assert parts_of(broker).staging.needed_from() is None


async def test_no_file_with_an_unsaved_marker_is_deleted_while_the_table_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, commit_log_file_size=64 * 1024) as (broker, writer):
        sink: Any = parts_of(broker).staging
        monkeypatch.setattr(sink._batches.file, "write_temporary", failing)
        await writer.commit("q", 0, [await staged(writer, 0)])
        await sink.before_delete()  # the marker is in the last file, which is never deleted
        await writer.commit("q", 1, [await staged(writer, 1)])
        first_end = broker.store.min_physical_offset + 64 * 1024
        assert sink._batches.unsaved_from > first_end
        with pytest.raises(OSError, match="does not answer"):
            await sink.before_delete()


async def test_a_batch_whose_marker_cannot_be_appended_is_not_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)

        async def refuse(*_: object) -> None:
            raise Refusal(ErrorCode.READ_ONLY, "no file")

        with monkeypatch.context() as patch:
            patch.setattr(committing.Committer, "_append_marker", refuse)
            with pytest.raises(BrokerError, match="no file") as refused:
                await writer.commit("q", 0, [part])
        assert "is decided" not in str(refused.value)
        assert await bodies(broker) == []
    async with serving(tmp_path) as (broker, writer):
        assert await bodies(broker) == []
        assert (await writer.commit("q", 0, [part])).messages == MESSAGES
        assert await bodies(broker) == list(range(MESSAGES))


async def test_a_start_refuses_what_an_earlier_version_has_left_half_done(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "intent").touch()
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreDamaged, match="start that version once"), flatten_subgroups=True, allow_unwrapped=True
    ):
        async with serving(tmp_path):
            pass


async def test_a_piece_is_counted_even_if_its_publisher_is_cancelled(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, writer):
        storage_of(broker).tables.topics.create_on_send("orders")
        part = await staged(writer, 0)
        sink: Any = parts_of(broker).staging
        file = sink._committer._staging.get(part.staging_id)
        block = file.blocks()[0]
        pieces = Pieces(bytearray(file.read(block)))
        first, second = pieces.take(1000), pieces.take(1000)
        assert first is not None
        assert second is not None
        pace = Pace(broker.store.stats, trio.current_time, 1000)
        counts: dict[tuple[str, int], int] = {}
        await sink._committer._publisher._put(block, first, file, counts, pace)  # makes the log file
        with trio.CancelScope() as scope:
            scope.cancel()
            await sink._committer._publisher._put(block, second, file, counts, pace)
        assert scope.cancelled_caught
        assert counts == {("orders", 0): first.messages + second.messages}
