"""A batch whose master is lost: the next has the beginning of its log, and publishes the batch once."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.request import Refusal
from reput_broker.staging import batches
from reput_broker.staging.batches import Publisher
from reput_broker.staging.committer import Commit
from reput_broker.store.base.errors import StoreDamaged
from reput_client.consume.fetch_records import BulkReader
from reput_client.errors import RequestTimeout
from reput_client.produce.staging_producer import StagingProducer, StagingScope
from reput_protocol.commands.stage import StagedPart
from reput_protocol.errors import BrokerError
from reput_protocol.names import SINK_TOPIC, STAGED_TOPIC
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import record_views
from support.inside import committer_of, parts_of

pytestmark = pytest.mark.trio
FILE = 256 * 1024
TASKS, QUEUES, BLOCKS, BLOCK = 2, 2, 2, 2
ALL = {
    queue: [f"{task}/{queue}/{number}".encode() for task in range(TASKS) for number in range(BLOCKS * BLOCK)]
    for queue in range(QUEUES)
}
NONE: dict[int, list[bytes]] = {queue: [] for queue in range(QUEUES)}


@asynccontextmanager
async def serving(
    directory: Path, *, elected: bool = False, **ha: Any
) -> AsyncIterator[tuple[Broker, StagingProducer]]:
    config = BrokerConfig.model_validate(
        {
            "data_dir": directory,
            "port": 0,
            "http_port": None,
            "store": {"commit_log_file_size": FILE, "index": False},
            "topics": {"default_queues": QUEUES},
            "ha": ha,
        }
    )
    async with Broker(config) as broker, StagingProducer(broker.address, timeout_s=10) as writer:
        if elected:
            confirm(broker, 1 << 60)
        yield broker, writer


def confirm(broker: Broker, offset: int) -> None:
    """Have the log confirmed up to an offset, which may be less than before."""
    broker.store.confirm_offset = None
    progress = parts_of(broker).core.puts.progress
    progress.confirm(0)
    progress.confirm(offset)


async def stage_all(writer: StagingProducer, batch_id: int) -> list[StagedPart]:
    parts = []
    for task in range(TASKS):
        writer.begin(StagingScope("q", batch_id, task, uuid.uuid4().hex))
        for block in range(BLOCKS):
            for queue in range(QUEUES):
                some = ALL[queue][(task * BLOCKS + block) * BLOCK :][:BLOCK]
                ids = [f"{uuid.uuid4().hex}" for _ in some]
                data = encode_put_block([Message("orders", body) for body in some], "orders", queue, 1, ids)
                await writer.stage("orders", queue, len(some), data)
        parts.append(await writer.end())
    return parts


async def rows(broker: Broker) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {queue: [] for queue in range(QUEUES)}
    async with BulkReader(broker.address) as reader:
        for queue_id, low, high in (await reader.queue_bounds(["orders"])).topics.get("orders", []):
            while low < high:
                block = await reader.fetch("orders", queue_id, low, high)
                found[queue_id] += [view.body for view in record_views(block.records)]
                low = block.next_offset
    return found


def records(directory: Path) -> Iterator[tuple[int, str, bytes]]:
    """Yield end, topic and body of each record of a log of one file."""
    (path,) = (directory / "commitlog").iterdir()
    for view in record_views(path.read_bytes().rstrip(b"\0"), check_crc=False):
        yield view.position + view.size, view.topic, bytes(view.body)


def copy_of(directory: Path, end: int, to: Path) -> Path:
    """Make the store of a replica that has received the log up to `end`."""
    (path,) = (directory / "commitlog").iterdir()
    data = path.read_bytes()
    (to / "commitlog").mkdir(parents=True)
    (to / "commitlog" / path.name).write_bytes(data[:end] + bytes(len(data) - end))
    return to


async def check_next_master(directory: Path, decided: bool) -> None:
    async with serving(directory, elected=True) as (broker, writer):
        assert await rows(broker) == (ALL if decided else NONE)
        assert (await writer.query_staged("q")).last_batch_id == (0 if decided else -1)
        assert (await writer.query_staged()).stagings == 0
        # The driver runs its batch again.
        assert (await writer.commit("q", 0, await stage_all(writer, 0))).repeated is decided
        assert await rows(broker) == ALL


async def published(directory: Path) -> tuple[list[tuple[int, str, bytes]], int]:
    """Publish a batch; return the records of the log, and the end of the one that decided the batch."""
    async with serving(directory, elected=True) as (_, writer):
        parts = await stage_all(writer, 0)
        assert not (await writer.commit("q", 0, parts)).repeated
    found = list(records(directory))
    markers = [end for end, topic, _ in found if topic == SINK_TOPIC]
    assert len(markers) == 2
    return found, markers[0]


async def test_wherever_the_log_of_the_next_master_ends_the_batch_is_published_once(tmp_path: Path) -> None:
    found, decided_at = await published(tmp_path / "a")
    topics = [topic for _, topic, _ in found]
    assert topics.index("orders") > topics.index(SINK_TOPIC) > topics.index(STAGED_TOPIC)
    assert topics[-1] == SINK_TOPIC
    for number, end in enumerate([0, *(end for end, _, _ in found)]):
        replica = copy_of(tmp_path / "a", end, tmp_path / f"b{number}")
        await check_next_master(replica, end >= decided_at)
        shutil.rmtree(replica)


class Killed(Exception):
    """Ends a broker in the middle of a batch."""


@asynccontextmanager
async def killed_after(pieces: int) -> AsyncIterator[None]:
    put = Publisher._put
    calls: list[tuple[Any, ...]] = []

    async def dying(*arguments: Any) -> Any:
        if len(calls) == pieces:
            raise Killed
        calls.append(arguments)
        return await put(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "_put", dying)
        with pytest.RaisesGroup(Killed, flatten_subgroups=True, allow_unwrapped=True):
            yield


async def test_masters_that_are_lost_one_after_the_other_complete_the_batch_together(tmp_path: Path) -> None:
    found, decided_at = await published(tmp_path / "0")
    end = next(end for end, topic, _ in found if topic == "orders")
    for number in range(1, 4):
        replica = copy_of(tmp_path / f"{number - 1}", end, tmp_path / f"{number}")
        async with killed_after(2), serving(replica, elected=True):
            pass
        end = max(end for end, _, _ in records(replica))
        assert [topic for _, topic, _ in records(replica)].count("orders") == 4 * number
        assert end > decided_at
    await check_next_master(tmp_path / "3", decided=True)


async def test_a_master_that_returns_completes_its_batch_from_the_copies_if_its_stagings_are_damaged(
    tmp_path: Path,
) -> None:
    async with killed_after(3), serving(tmp_path, elected=True) as (_, writer):
        await writer.commit("q", 0, await stage_all(writer, 0))
    whole, damaged = sorted((tmp_path / "staging").iterdir())
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-200] + bytes([data[-200] ^ 1]) + data[-199:])
    await check_next_master(tmp_path, decided=True)
    assert not whole.exists()


async def test_copies_that_are_not_in_the_log_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, decided_at = await published(tmp_path / "a")
    replica = copy_of(tmp_path / "a", decided_at, tmp_path / "b")

    async def nothing(*_: object) -> AsyncIterator[Any]:
        no_records: tuple[Any, ...] = ()
        for record in no_records:
            yield record

    monkeypatch.setattr(batches, "records_from", nothing)
    with pytest.RaisesGroup(
        pytest.RaisesExc(StoreDamaged, match="lacks staged blocks of batch 0 of query q"),
        flatten_subgroups=True,
        allow_unwrapped=True,
    ):
        async with serving(replica, elected=True):
            pass


async def test_a_table_of_batches_that_is_ahead_of_the_log_is_not_believed(tmp_path: Path) -> None:
    await published(tmp_path / "a")
    replica = copy_of(tmp_path / "a", 0, tmp_path / "b")
    (replica / "config").mkdir()
    shutil.copy(tmp_path / "a" / "config" / "sinkBatches.json", replica / "config")
    members = json.loads((replica / "config" / "sinkBatches.json").read_text())
    assert members["lastBatches"]["q"][0] == 0
    await check_next_master(replica, decided=False)


async def test_a_commit_is_answered_once_the_set_has_it_and_may_be_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path, slave_timeout="50ms") as (broker, writer):
        parts = await stage_all(writer, 0)
        confirm(broker, broker.store.max_physical_offset)
        committer = committer_of(broker)
        wanted = Commit("q", 0, parts)
        for _ in range(2):
            with pytest.raises(Refusal, match="longer than ha") as refused:
                await committer.commit(wanted)
            assert refused.value.error.retryable
        confirm(broker, broker.store.max_physical_offset)
        assert (await writer.commit("q", 0, parts)).repeated
        assert await rows(broker) == ALL
        # The slaves fall behind again: whether this batch is committed is known, whether a later one is, not yet.
        confirm(broker, 0)
        with pytest.raises(Refusal, match="ask again"):
            await committer.confirmed()


async def test_a_query_is_not_told_of_a_batch_that_a_failover_may_take_back(tmp_path: Path) -> None:
    async with serving(tmp_path, slave_timeout="50ms") as (broker, writer):
        await writer.commit("q", 0, await stage_all(writer, 0))
        confirm(broker, 0)
        async with StagingProducer(broker.address, timeout_s=0.3) as hasty:
            for ask in (hasty.query_staged("q"), stage_all(hasty, 0)):
                with pytest.raises((BrokerError, RequestTimeout)):
                    await ask
        confirm(broker, broker.store.max_physical_offset)
        assert (await writer.query_staged("q")).last_batch_id == 0
