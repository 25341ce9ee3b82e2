"""A start for which the disk has no room: it waits, reports why, and continues by itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_broker.compose import storage
from reput_broker.observe.health import BrokerState, Health
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.opening.lock import AbortMarker
from reput_broker.store.queue.reput import RecoveringQueueBuilder
from reput_broker.tables.offset_journal import JournalWriteFailed, OffsetJournal
from reput_client import Message, Producer, PullConsumer
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

CONFIG: dict[str, Any] = {"port": 0, "store": {"commit_log_file_size": "1MiB", "index": False}}


class Disk:
    is_full = True
    attempts = 0
    free_bytes = 0


@pytest.fixture(params=["abort", "queues", "tables"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that is full for one of the things that a start writes."""
    disk = Disk()

    def refusing(real: Any, error: Exception) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if disk.is_full:
                disk.attempts += 1
                raise error
            return real(*arguments, **named)

        return call

    full = DiskFull(Path("x"), 20)
    if request.param == "abort":
        monkeypatch.setattr(AbortMarker, "create", refusing(AbortMarker.create, full))
    elif request.param == "queues":
        real = RecoveringQueueBuilder.dispatch
        monkeypatch.setattr(RecoveringQueueBuilder, "dispatch", refusing(real, full))
    else:
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "consumerOffset.journal.next")
        monkeypatch.setattr(OffsetJournal, "create", refusing(OffsetJournal.create, error))
    monkeypatch.setattr(storage, "free_and_used", lambda _: (disk.free_bytes, 1.0))
    yield disk
    disk.is_full = False


async def filled(data: Path, disk: Disk) -> None:
    """Leave a store with messages as a power cut may: the queues, and the offsets' journal, are lost."""
    disk.is_full = False
    async with Broker(BrokerConfig(data_dir=data, **CONFIG)) as broker, Producer(broker.address, group="p") as p:
        await p.send_batch([Message("T", b"%d" % number) for number in range(10)], queue_id=0)
    for path in [*data.glob("consumequeue/*/*/*")]:  # noqa: ASYNC240
        path.unlink()
    (data / "config" / "consumerOffset.journal").unlink()
    (data / "abort").write_text("1")
    disk.is_full = True


async def test_a_start_waits_for_room(tmp_path: Path, disk: Disk, capsys: pytest.CaptureFixture[str]) -> None:
    await filled(tmp_path / "data", disk)
    broker = Broker(BrokerConfig(data_dir=tmp_path / "data", http_port=0, **CONFIG), embedded=False)
    async with trio.open_nursery() as nursery:

        async def free_later() -> None:
            await trio.sleep(22)
            assert broker.health.state is BrokerState.RECOVERING
            assert not broker.health.ready
            assert "the start waits for room: " in broker.health.checks["disk_space"].detail
            disk.is_full = False

        nursery.start_soon(free_later)
        async with broker, PullConsumer(broker.address, group="g") as consumer:
            assert broker.health.ready
            found = await consumer.pull("T", queue_id=0, offset=0, max_messages=32, wait_s=0.0)
            assert [message.body for message in found.messages] == [b"%d" % number for number in range(10)]
    said = capsys.readouterr()
    assert (said.err + said.out).count("start_waits_for_room  ") == 1


async def test_attempts_become_rarer_until_there_is_more_free_space(tmp_path: Path, disk: Disk) -> None:
    await filled(tmp_path / "data", disk)
    disk.attempts = 0
    broker = Broker(BrokerConfig(data_dir=tmp_path / "data", http_port=0, **CONFIG), embedded=False)
    async with trio.open_nursery() as nursery:

        async def free_later() -> None:
            await trio.sleep(7200)
            assert 10 < disk.attempts < 20, "5, 10, 20 s, up to 10 minutes"
            disk.free_bytes = 1 << 30
            disk.is_full = False

        nursery.start_soon(free_later)
        began_at = trio.current_time()
        async with broker:
            assert trio.current_time() - began_at <= 7200 + 6


async def test_a_pause_is_as_long_as_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter(range(0, 1 << 40, 1 << 30))
    monkeypatch.setattr(storage, "free_and_used", lambda _: (next(free), 1.0))
    room = storage.FreeSpace((Path("x"),), trio.Event())
    began_at = trio.current_time()
    await room.wait(0, 900.0)
    assert trio.current_time() - began_at == pytest.approx(900)
    await room.wait(0, 1.0)
    assert trio.current_time() - began_at == pytest.approx(905)
    await room.wait(1 << 39, 1.0)
    assert trio.current_time() - began_at == pytest.approx(925)


async def test_a_start_that_waits_can_be_stopped(tmp_path: Path, disk: Disk) -> None:
    await filled(tmp_path / "data", disk)
    broker = Broker(BrokerConfig(data_dir=tmp_path / "data", http_port=0, **CONFIG), embedded=False)
    async with trio.open_nursery() as nursery:

        async def stop_later() -> None:
            disk.attempts = 0
            await trio.sleep(3)
            broker.stop()

        nursery.start_soon(stop_later)
        with pytest.raises(ExceptionGroup) as raised:
            async with broker:
                pass
    assert raised.group_contains((DiskFull, OSError), depth=None)
    assert disk.attempts == 1


async def test_a_broker_in_a_program_raises(tmp_path: Path, disk: Disk) -> None:
    await filled(tmp_path / "data", disk)
    with pytest.raises(ExceptionGroup) as raised:
        async with Broker(BrokerConfig(data_dir=tmp_path / "data", **CONFIG)):
            pass
    assert raised.group_contains((DiskFull, OSError), depth=None)


async def test_a_journal_without_room_is_waited_for_and_another_failure_is_not(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    failures = [JournalWriteFailed(journal, OSError(number, "no")) for number in (errno.ENOSPC, errno.EIO)]

    class Opening:
        async def open(self) -> None:
            raise failures.pop(0)

        async def close(self) -> None: ...

    stop_wanted = trio.Event()
    room = storage.FreeSpace((tmp_path,), stop_wanted)
    with pytest.raises(JournalWriteFailed) as failed:
        await storage.open_when_there_is_room(lambda: cast("Any", Opening()), room, Health(), stop_wanted)
    assert not failed.value.disk_full
    assert failures == []
