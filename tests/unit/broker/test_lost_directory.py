"""A broker whose data directory is replaced while it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_broker.observe.health import BrokerState
from reput_client import Message, Producer, PullConsumer
from reput_client.errors import StoreUnavailable
from reput_protocol.errors import ErrorCode, ReputError
from support.stores import tree

_CHANGES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.utime", "os.link")
_watched: list[tuple[str, list[str]]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _watched and event in _CHANGES:
        below, found = _watched[-1]
        for argument in arguments[:2]:
            if isinstance(argument, str | Path) and str(argument).startswith(below):
                writes = event != "open" or bool(int(str(arguments[2])) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
                if writes:
                    found.append(f"{event} {argument}")


sys.addaudithook(_note)


@pytest.fixture
def changes(tmp_path: Path) -> Iterator[list[str]]:
    """What this process changes by a path below the data directory from the moment on that the list is watched."""
    found: list[str] = []
    yield found
    _watched.clear()


def config(data_dir: Path) -> BrokerConfig:
    return BrokerConfig(
        data_dir=data_dir,
        port=0,
        store={"commit_log_file_size": "64KiB", "consume_queue_entries": 20, "index_entries": 200},
        offsets={"flush_interval": "100ms"},
        delay={"flush_interval": "100ms", "timer_log_file_size": "64KiB"},
    )


@pytest.mark.trio
async def test_a_broker_writes_nothing_to_another_directory_at_its_path(tmp_path: Path, changes: list[str]) -> None:
    data = tmp_path / "data"
    async with (
        Broker(config(data)) as broker,
        Producer(broker.address, group="p", retries=0) as producer,
        PullConsumer(broker.address, group="g") as consumer,
    ):
        await producer.send_batch([Message("T", bytes(100), keys=[str(n)]) for n in range(30)], queue_id=0)
        await producer.send(Message("T", b"later", delay_s=3.0))
        await consumer.commit("T", 0, 10)
        data.rename(tmp_path / "away")
        data.mkdir()
        (data / "config").mkdir()
        (data / "config" / "topics.json").write_text("another broker's")
        before = tree(tmp_path / "data")
        _watched.append((str(data), changes))

        with pytest.raises(ReputError, match="is not what this broker opened"):
            await producer.send(Message("T", b"x"))
        with trio.fail_after(10):  # the task that looks at directories tells the rest
            while broker.health.state is not BrokerState.READONLY:
                await trio.sleep(0.01)
        assert not broker.health.ready
        assert "bring the directory back" in broker.health.checks["directories"].detail
        for work in (producer.send(Message("new", b"x")), producer.send(Message("T", b"x", delay_s=60.0))):
            with pytest.raises(ReputError):
                await work
        with pytest.raises(StoreUnavailable, match="is not what this broker opened") as refused:
            await consumer.commit("T", 0, 20)
        assert refused.value.error is ErrorCode.READ_ONLY
        found = await consumer.pull("T", queue_id=0, offset=0, max_messages=32, wait_s=0.0)
        assert (len(found.messages), found.max_offset) == (20, found.max_offset)
        await trio.sleep(0.1)
    assert changes == []
    assert tree(tmp_path / "data") == before
    assert (tmp_path / "away" / "abort").exists()
    data.rename(tmp_path / "other")
    (tmp_path / "away").rename(data)
    async with Broker(config(data)) as broker, PullConsumer(broker.address, group="g") as consumer:
        assert await consumer.committed("T", 0) == 10
        found = await consumer.pull("T", queue_id=0, offset=0, max_messages=32, wait_s=0.0)
        assert (len(found.messages), found.max_offset) == (20, found.max_offset)


@pytest.mark.trio
async def test_a_broker_at_rest_notices_that_its_directory_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with Broker(config(data)) as broker:
        data.rename(tmp_path / "away")
        with trio.fail_after(30):
            while broker.health.ready:
                await trio.sleep(0.01)
        assert "nothing is there" in broker.health.checks["directories"].detail
    assert not data.exists()
