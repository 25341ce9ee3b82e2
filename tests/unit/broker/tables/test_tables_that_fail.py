"""Requests that change a table whose file cannot be written: a disk failure, reported as such."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from reput_broker.remoting.request import Response
from reput_broker.store.base.dispatch import DeletedTopics
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import HeaderType, Value
from support.broker_bench import BrokerBench, broker_bench
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)


class Disk:
    """A disk whose syncs of files with a part of a name fail."""

    fails: str | None = None
    error = errno.EIO


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk, real = Disk(), os.fsync

    def fsync(fd: int) -> None:
        if disk.fails is not None and disk.fails in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(disk.error, os.strerror(disk.error))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    yield disk
    disk.fails = None


def topic_ext(topic: str) -> dict[str, Value]:
    return {"topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}  # fmt: skip


async def ask(bench: BrokerBench, code: int, ext: dict[str, Value], body: bytes = b"") -> Response:
    response = await bench.client(HeaderType.MSGPACK).ask(code, ext, body)
    assert response is not None
    return response


@pytest.mark.parametrize(("error", "symbol"), [(errno.EIO, "READ_ONLY"), (errno.ENOSPC, "DISK_FULL")])
async def test_a_topic_that_cannot_be_saved_is_the_disks_fault(
    tmp_path: Path, disk: Disk, error: int, symbol: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with broker_bench(tmp_path) as bench:
        disk.fails, disk.error = "topics.json", error
        for _ in range(2):
            response = await ask(bench, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("new"))
            assert (response.remark or "").startswith(f"{symbol}: the broker's disk failed: ")
            assert "topics.json.tmp" in (response.remark or ""), "which file"
        check = bench.broker.health.checks["tables"]
        assert not check.ok
        assert "topics could not be saved" in check.detail
        disk.fails = None
        response = await ask(bench, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_ext("new"))
        assert response.code == 0
        assert bench.broker.health.checks["tables"].ok
    said = capsys.readouterr()
    assert "a defect of the broker" not in said.err + said.out


@pytest.mark.parametrize("fails", ["topics.json", "deletedTopics"])
async def test_a_deletion_that_failed_in_between_is_completed_by_the_next(
    tmp_path: Path, disk: Disk, fails: str
) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("old")
        await bench.client().send("old", b"x")
        await bench.settled()
        disk.fails = fails
        response = await ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "old"})
        assert "the broker's disk failed" in (response.remark or "")
        disk.fails = None
        assert ("old", 0) in bench.broker.store.queues()
        response = await ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "old"})
        assert response.code == 0
        assert ("old", 0) not in bench.broker.store.queues()
        assert b'"old"' not in bench.tables.topics.file.path.read_bytes()
        await bench.create_topic("old")
        assert await bench.bodies("old") == []


async def test_deletions_share_their_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of them at once do not cost ten times what one does, and a failure is told to all that it concerns."""
    marks: list[int] = []
    add = DeletedTopics.add

    def count(self: DeletedTopics, topics: Collection[str], end_offset: int) -> None:
        marks.append(len(topics))
        if len(topics) > 1:
            raise OSError(errno.EIO, "Input/output error")
        add(self, topics, end_offset)

    monkeypatch.setattr(DeletedTopics, "add", count)
    async with broker_bench(tmp_path) as bench:
        names = [f"T{number}" for number in range(10)]
        for name in (*names, "empty"):
            await bench.create_topic(name)
        for name in names:
            await bench.client().send(name, b"x")
        await bench.settled()
        said: dict[str, int] = {}

        async def delete(name: str) -> None:
            said[name] = (await ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})).code

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(delete, name)
        assert sum(marks) == 10
        assert len(marks) <= 5
        assert max(marks) == 4, "the event loop is not blocked for long"
        # Those that failed together can be repeated.
        assert sum(code != 0 for code in said.values()) == sum(count for count in marks if count > 1)
        for name in names:
            await delete(name)
        marks.clear()
        await delete("empty")
        assert marks == [], "the log has nothing of it"
        assert set(said.values()) == {0}
        assert not any(name in bench.tables.topics.all() for name in names)


async def test_a_topic_is_created_again_once_what_the_deleted_one_had_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("old")
        await bench.client().send("old", b"of the old")
        await bench.settled()
        saver, may_save, order = bench.tables.topic_saver, trio.Event(), list[str]()
        save = saver.save

        async def save_late() -> None:
            if not order:
                order.append("deletion is saved")
                await may_save.wait()
            await save()

        monkeypatch.setattr(type(saver), "save", lambda _: save_late())

        async def delete() -> None:
            await ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "old"})
            order.append("deleted")

        async def send() -> None:
            await bench.client().send("old", b"of the new")
            order.append("sent")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            await trio.testing.wait_all_tasks_blocked()
            assert ("old", 0) in bench.broker.store.queues(), "the table is on disk before anything is dropped"
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            may_save.set()
        assert order == ["deletion is saved", "deleted", "sent"]
        assert await bench.bodies("old") == [b"of the new"]


async def test_offsets_that_cannot_be_saved_end_no_broker(tmp_path: Path, disk: Disk) -> None:
    async with broker_bench(tmp_path) as bench:
        await bench.create_topic("T")
        for fails in ("consumerOffset", "config"):
            disk.fails = fails
            bench.tables.offsets.commit("g", "T", 0, 1 + len(fails))
            with pytest.raises(OSError, match="Input/output error"):
                await bench.tables.offset_saver.save()
            assert not bench.broker.health.checks["tables"].ok
        disk.fails = None
        await bench.tables.offset_saver.save()
        assert bench.broker.health.checks["tables"].ok


@pytest.mark.parametrize("name", ["a/b", "../x", "", " ", "a b", "x" * 300, "\u00e4", "a\x1b[31m"])
async def test_an_invalid_name_cannot_be_deleted(tmp_path: Path, name: str) -> None:
    async with broker_bench(tmp_path) as bench:
        for code, field in (
            (RequestCode.DELETE_TOPIC_IN_BROKER, "topic"),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, "groupName"),
        ):
            response = await ask(bench, code, {field: name})
            assert (response.remark or "").startswith("INVALID_ARGUMENT: "), code


async def test_deleting_a_missing_one_succeeds(tmp_path: Path) -> None:
    """As RocketMQ's tools expect, which delete at every broker of a cluster, and again where one did not answer."""
    async with broker_bench(tmp_path) as bench:
        topic = await ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "none"})
        group = await ask(bench, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "none"})
        assert (topic.code, group.code) == (0, 0)


async def test_topics_are_created_automatically_up_to_a_number(tmp_path: Path) -> None:
    async with broker_bench(tmp_path, topics={"auto_create_max": 3}) as bench:
        client = bench.client(HeaderType.MSGPACK)
        for number in range(3):
            response = await client.send(f"T{number}", b"x")
            assert response is not None
            assert response.code == 0, response.remark
        response = await client.send("T3", b"x")
        assert response is not None
        assert "NO_TOPIC: topic 'T3' does not exist and is not created" in (response.remark or "")
        assert "topics.auto_create_max" in (response.remark or "")
        await bench.create_topic("T3")
        response = await client.send("T3", b"x")
        assert response is not None
        assert response.code == 0, "an administrator is not bound by it"
        assert bench.tables.topics.user_topic_count() == 4
        for topic in ("T1", "T2"):
            await ask(bench, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        response = await client.send("T9", b"x")
        assert response is not None
        assert response.code == 0
