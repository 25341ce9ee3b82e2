"""What the broker does with staged blocks: checks them, stores them in one thread call, and syncs them as they come."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.staging import committer, staging_file
from reput_broker.staging.feature import check_staged
from reput_broker.staging.staging_file import StagingFile
from reput_client.produce import staging_producer
from reput_client.produce.staging_producer import StagingProducer, StagingScope
from reput_protocol.commands.stage import encode_staged_head
from reput_protocol.errors import BrokerError, RecordMalformed
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import DEFAULT_LIMITS, encode_put_block
from support.inside import parts_of

COUNT = 40


def block(bodies: list[bytes], ids: list[str | None]) -> bytes:
    return bytes(encode_put_block([Message("orders", body) for body in bodies], "orders", 0, 1, ids))


def staged(data: bytes, count: int) -> bytes:
    return encode_staged_head("orders", 0, count, data) + data


def serving(directory: Path) -> Broker:
    return Broker(BrokerConfig.model_validate({"data_dir": directory, "port": 0, "http_port": None}))


@pytest.mark.parametrize("alike", [True, False])
def test_a_record_without_a_unique_id_is_named(alike: bool) -> None:
    bodies = [bytes(100 if alike else number) for number in range(COUNT)]
    check_staged(staged(block(bodies, [f"{number:02}" for number in range(COUNT)]), COUNT), DEFAULT_LIMITS, 1 << 20)
    other = {"p" * 8: "x" * 2}  # as long as a unique id of two digits
    messages = [
        Message("orders", body, properties=other)
        if number in (7, 9)
        else Message("orders", body, unique_id=f"{number:02}")
        for number, body in enumerate(bodies)
    ]
    data = bytes(encode_put_block(messages, "orders", 0, 1))
    with pytest.raises(RecordMalformed, match="no unique id") as refused:
        check_staged(staged(data, COUNT), DEFAULT_LIMITS, 1 << 20)
    assert refused.value.index == 7
    without = bytes(encode_put_block([Message("orders", body) for body in bodies], "orders", 0, 1))
    with pytest.raises(RecordMalformed, match="no unique id") as refused:
        check_staged(staged(without, COUNT), DEFAULT_LIMITS, 1 << 20)
    assert refused.value.index == 0


@pytest.mark.trio
async def test_staged_data_is_synced_while_more_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_file, "AHEAD_BYTES", 1)
    synced, inner = trio.Event(), StagingFile.sync_ahead
    token = trio.lowlevel.current_trio_token()

    def noting(file: StagingFile) -> None:
        inner(file)
        token.run_sync_soon(synced.set)

    monkeypatch.setattr(StagingFile, "sync_ahead", noting)
    data = block([b"a"], ["one"])
    async with serving(tmp_path) as broker, StagingProducer(broker.address, timeout_s=30) as writer:
        writer.begin(StagingScope("q", 0, 0, uuid.uuid4().hex))
        await writer.stage("orders", 0, 1, data)
        await writer.wait_staged()
        await synced.wait()
        sink: Any = parts_of(broker).staging
        (file,) = sink._committer._staging.all()
        assert file.unsynced == 0
        assert not file.ended


@pytest.mark.trio
async def test_a_queue_that_is_closed_between_two_requests_accepts_nothing_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, StagingProducer(broker.address, timeout_s=30) as writer:
        writer.begin(StagingScope("q", 0, 0, uuid.uuid4().hex))
        await writer.stage("orders", 0, 1, block([b"a"], ["one"]))
        await writer.wait_staged()
        sink: Any = parts_of(broker).staging
        topics = sink._committer._core.tables.topics
        topics.delete("orders")
        topics.put(_closed())
        (file,) = sink._committer._staging.all()
        has = file.size
        await writer.stage("orders", 0, 1, block([b"b"], ["two"]))
        with pytest.raises(BrokerError, match="not writable"):
            await writer.wait_staged()
        assert file.size == has


def _closed() -> Any:
    from reput_protocol.codes import Perm
    from reput_protocol.commands.topic import TopicConfig

    return TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=4, perm=Perm.READ)


@pytest.mark.trio
async def test_a_commit_is_answered_before_the_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, inner = threading.Event(), staging_file.remove

    def late(files: Any) -> None:
        assert answered.wait(60), "the answer waits for the removal"
        inner(files)

    monkeypatch.setattr(committer, "remove", late)
    async with serving(tmp_path) as broker, StagingProducer(broker.address, timeout_s=30) as writer:
        for batch_id in range(2):
            writer.begin(StagingScope("q", batch_id, 0, uuid.uuid4().hex))
            await writer.stage("orders", 0, 1, block([b"a"], ["one"]))
            result = await writer.commit("q", batch_id, [await writer.end()])
            answered.set()
            assert (result.messages, result.repeated) == (1, False)
            assert (await writer.query_staged()).stagings == 0
    assert not list((tmp_path / "staging").glob("*.stage"))


@pytest.mark.trio
@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize("memory", [0, 200, 1 << 20])
async def test_a_staging_that_the_broker_has_lost_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, memory: int
) -> None:
    """A failover leaves the next master without it, in the middle of a task whose rows cannot be read again."""
    monkeypatch.setattr(staging_producer, "FRAME_BYTES", 1)
    monkeypatch.setattr(staging_producer, "_KEPT_MEMORY_BYTES", memory)
    async with (
        serving(tmp_path) as broker,
        StagingProducer(broker.address, timeout_s=30) as writer,
        StagingProducer(broker.address, timeout_s=30) as other,
    ):
        writer.begin(StagingScope("q", 0, 0, uuid.uuid4().hex))
        for number in range(3):
            await writer.stage("orders", 0, 1, block([b"%d" % number], [str(number)]))
        await writer.wait_staged()
        await other.abort("q", 0)
        assert (await other.query_staged()).stagings == 0
        for number in range(3, 3 + after):
            await writer.stage("orders", 0, 1, block([b"%d" % number], [str(number)]))
        result = await writer.commit("q", 0, [await writer.end()])
        assert (result.messages, result.repeated) == (3 + after, False)


@pytest.mark.trio
async def test_a_large_staging_is_not_kept_and_its_loss_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_producer, "FRAME_BYTES", 1)
    monkeypatch.setattr(staging_producer, "_KEPT_MEMORY_BYTES", 200)
    monkeypatch.setattr(staging_producer, "_KEPT_BYTES_MAX", 300)
    async with (
        serving(tmp_path) as broker,
        StagingProducer(broker.address, timeout_s=30) as writer,
        StagingProducer(broker.address, timeout_s=30) as other,
    ):
        writer.begin(StagingScope("q", 0, 0, uuid.uuid4().hex))
        for number in range(5):
            await writer.stage("orders", 0, 1, block([bytes(100)], [str(number)]))
        await writer.wait_staged()
        await other.abort("q", 0)
        with pytest.raises(BrokerError, match="stage all of it again"):
            await writer.end()
