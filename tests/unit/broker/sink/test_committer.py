"""A commit that meets a full disk: before it is decided nothing has happened, after that it is completed once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reput_broker.broker import Broker
from reput_broker.config import BrokerConfig
from reput_broker.request import Refusal
from reput_client.aio import AnyioRuntime
from reput_client.batch_writer import BatchWriter, StagingScope
from reput_client.bulk import BulkReader
from reput_protocol.bodies_stage import StagedPart
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.message import Message
from reput_protocol.record_batch import encode_put_block
from reput_protocol.record_view import record_views

pytestmark = pytest.mark.trio
MESSAGES = 2000


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Broker, BatchWriter]]:
    config = BrokerConfig.model_validate({"data_dir": directory, "port": 0, "http_port": None})
    async with (
        Broker(config) as broker,
        BatchWriter(broker.address, timeout_s=30, runtime=AnyioRuntime()) as writer,
    ):
        yield broker, writer


async def staged(writer: BatchWriter, batch_id: int) -> StagedPart:
    writer.begin(StagingScope("q", batch_id, 0, uuid.uuid4().hex))
    messages = [Message("orders", b"%d" % number + bytes(100)) for number in range(MESSAGES)]
    ids = [f"{batch_id}-{number}" for number in range(MESSAGES)]
    await writer.stage("orders", 0, MESSAGES, encode_put_block(messages, "orders", 0, 1, ids))
    return await writer.end()


async def bodies(broker: Broker) -> list[int]:
    found: list[int] = []
    async with BulkReader(broker.address, runtime=AnyioRuntime()) as reader:
        start, end = 0, (await reader.queue_bounds(["orders"])).topics["orders"][0].max_offset
        while start < end:
            block = await reader.fetch("orders", 0, start, end)
            found += [int(view.body.rstrip(b"\0")) for view in record_views(block.records)]
            start = block.next_offset
    return found


async def test_a_full_disk_is_told_before_anything_is_decided(tmp_path: Path) -> None:
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
        publisher: Any = broker._sink._committer._publisher
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
        assert (await writer.staged()).stagings == 0


async def test_a_start_completes_what_was_decided_and_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)
        publisher: Any = broker._sink._committer._publisher
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
        assert (await writer.staged("q")).last_batch_id == 0


async def test_an_abort_while_a_batch_is_being_decided_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (broker, writer):
        part = await staged(writer, 0)
        committer: Any = broker._sink._committer
        make_topic = committer._make_topic

        async def aborted_meanwhile() -> None:
            async with BatchWriter(broker.address, timeout_s=30, runtime=AnyioRuntime()) as other:
                assert (await other.abort("q", 0)).stagings == 1
            await make_topic()

        monkeypatch.setattr(committer, "_make_topic", aborted_meanwhile)
        assert (await writer.commit("q", 0, [part])).messages == MESSAGES
        assert await bodies(broker) == list(range(MESSAGES))
        assert not committer.is_decided("q", 0)
