"""A store whose log is cut off: nothing is kept that says what only the lost part held."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.compose.open_files import shares_of
from reput_broker.compose.storage import Storage, store_options
from reput_broker.config.model import BrokerConfig
from reput_client import Message, Producer, PullConsumer

PROGRESS = ("delayOffset.json", "timercheck")


@pytest.mark.trio
async def test_progress_and_offsets_beyond_the_cut_are_forgotten(tmp_path: Path) -> None:
    store = {"commit_log_file_size": "64KiB", "index": False}
    config = BrokerConfig(data_dir=tmp_path, port=0, store=store, delay={"flush_interval": "10ms"})
    async with (
        Broker(config) as broker,
        Producer(broker.address, group="p") as producer,
        PullConsumer(broker.address, group="g") as consumer,
    ):
        await producer.send(Message("T", b"kept"), queue_id=0)
        cut_at = broker.store.max_physical_offset
        for options in ({}, {"delay_level": 1}, {"delay_s": 0.1}):
            await producer.send(Message("T", b"lost", **options), queue_id=0)  # type: ignore[arg-type]
        await consumer.commit("T", 0, 2)
        with trio.fail_after(20):
            while broker.store.max_offset_in_queue("T", 0) < 4:
                await trio.sleep(0.01)
    assert all((tmp_path / "config" / name).exists() for name in PROGRESS)
    options = store_options(config, shares_of(1000), ("127.0.0.1", 0), lambda *_: None, is_replica=True)
    storage = Storage(config, options, lambda: 0, lambda *_: None, cut_at)
    await storage.open()
    assert storage.store.max_physical_offset == cut_at
    assert storage.tables.offsets.for_group("g") == {"T": {0: 1}}
    await storage.close()
    assert not any((tmp_path / "config" / name).exists() for name in (*PROGRESS, "delayOffset.json.bak"))
    async with Broker(config) as broker, PullConsumer(broker.address, group="g") as consumer:
        found = await consumer.pull("T", queue_id=0, offset=0)
        assert [message.body for message in found.messages] == [b"kept"]
