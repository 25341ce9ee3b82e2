"""A store whose log is truncated or moved aside, as a slave noted, whenever the broker is killed meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.compose.open_files import shares_of
from reput_broker.compose.storage import Storage, store_options
from reput_broker.config.model import BrokerConfig
from reput_broker.ha.reopen import Reopen
from reput_broker.store.base.errors import StoreDamaged, StoreLocked
from reput_client import Message, Producer, PullConsumer
from support.stores import opened, put

PROGRESS = ("delayOffset.json", "timercheck")


class Killed(BaseException):
    """Ends the process."""


def replica(config: BrokerConfig) -> Storage:
    options = store_options(config, shares_of(1000), ("127.0.0.1", 0), lambda *_: None, is_replica=True)
    return Storage(config, options, lambda: 0, lambda *_: None)


async def open_and_die(config: BrokerConfig) -> None:
    storage = replica(config)
    with pytest.raises(Killed):
        await storage.open()
    await storage.close()


@pytest.mark.trio
@pytest.mark.parametrize("dies_in", ["_forget_progress", "_load", None])
async def test_progress_and_offsets_beyond_the_new_end_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str | None
) -> None:
    store = {"commit_log_file_size": "64KiB", "index": False}
    config = BrokerConfig(data_dir=tmp_path, port=0, store=store, delay={"flush_interval": "10ms"})
    async with (
        Broker(config) as broker,
        Producer(broker.address, group="p") as producer,
        PullConsumer(broker.address, group="g") as consumer,
    ):
        await producer.send(Message("T", b"kept"), queue_id=0)
        truncate_to = broker.store.max_physical_offset
        for options in ({}, {"delay_level": 1}, {"delay_s": 0.1}):
            await producer.send(Message("T", b"lost", **options), queue_id=0)
        await consumer.commit("T", 0, 2)
        with trio.fail_after(20):
            while broker.store.max_offset_in_queue("T", 0) < 4:
                await trio.sleep(0.01)
    assert all((tmp_path / "config" / name).exists() for name in PROGRESS)
    Reopen(truncate_to=truncate_to).note(tmp_path)
    if dies_in is not None:
        with monkeypatch.context() as patch:
            patch.setattr(Storage, dies_in, die)
            await open_and_die(config)
    storage = replica(config)
    await storage.open()
    assert storage.store.max_physical_offset == truncate_to
    assert storage.tables.offsets.for_group("g") == {"T": {0: 1}}
    await storage.close()
    assert not any((tmp_path / "config" / name).exists() for name in (*PROGRESS, "delayOffset.json.bak"))
    async with Broker(config) as broker, PullConsumer(broker.address, group="g") as consumer:
        found = await consumer.pull("T", queue_id=0, offset=0)
        assert [message.body for message in found.messages] == [b"kept"]


@pytest.mark.trio
async def test_a_log_that_is_moved_aside_is_moved_whole(tmp_path: Path) -> None:
    """The broker is killed before each of the renames, and the next start completes it."""
    kills, is_killed = 0, True
    while is_killed:
        root = tmp_path / str(kills)
        config = log_on_two_disks(root)
        before = content_of(root)
        Reopen(aside="123", reason="why").note(config.data_dir)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "rename", dies_after(kills))
            storage = replica(config)
            try:
                await storage.open()
            except Killed:
                kills += 1
            else:
                is_killed = False
            await storage.close()
        storage = replica(config)
        await storage.open()
        assert storage.store.max_physical_offset == 0
        await storage.close()
        assert not before.keys() - content_of(root).keys()
        assert not (config.data_dir / "reopen.json").exists()
    assert kills >= 4


def log_on_two_disks(root: Path) -> BrokerConfig:
    store = {
        "commit_log_file_size": "64KiB",
        "commit_log_dirs": [root / "disk-1" / "commitlog", root / "disk-2" / "commitlog"],
        "consume_queue_entries": 100,
        "index": False,
    }
    config = BrokerConfig(data_dir=root / "data", port=0, store=store)
    options = store_options(config, shares_of(1000), ("127.0.0.1", 0), lambda *_: None, is_replica=False)
    log = opened(options)
    for number in range(70):
        put(log, b"%d" % number + bytes(1000))
    log.close()
    return config


def dies_after(count: int) -> Callable[[Path, Path], Path]:
    rename, calls = Path.rename, itertools.count()

    def counted(path: Path, target: Path) -> Path:
        if next(calls) == count:
            raise Killed
        return rename(path, target)

    return counted


def content_of(root: Path) -> dict[bytes, str]:
    """The names of what must be kept, by content."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name.isdigit()]
    return {path.read_bytes(): str(path) for path in paths}


@pytest.mark.trio
async def test_a_note_that_is_not_one_and_a_store_in_use_are_refused(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "64KiB"})
    async with Broker(config):
        Reopen(aside="123").note(tmp_path)
        with pytest.raises(StoreLocked):
            await replica(config).open()
    (tmp_path / "reopen.json").write_text('{"truncate_to":"x"}')
    with pytest.raises(StoreDamaged, match="it does not say what to do"):
        await replica(config).open()


def die(*_: object) -> None:
    raise Killed
