"""Saving a table: callers share a write, and a failed one leaves the table unsaved."""

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.topics import TopicConfigManager


def opened(path: Path) -> TopicConfigManager:
    manager = TopicConfigManager(path / "topics.json", clock_ms=lambda: 0)
    manager.load()
    return manager


class _SlowDisk:
    """Counts writes, and holds each until it is let go."""

    def __init__(self, manager: TopicConfigManager, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes = 0
        self.go = threading.Event()
        real = manager.file.write_temporary

        def write(data: bytes) -> None:
            self.writes += 1
            assert self.go.wait(10.0)
            real(data)

        monkeypatch.setattr(manager.file, "write_temporary", write)


def test_callers_share_writes_and_each_finds_its_change_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)
    disk = _SlowDisk(manager, monkeypatch)
    saver = TableSaver(manager)

    async def create(topic: str) -> None:
        manager.create_on_send(topic)
        await saver.save()
        assert opened(tmp_path).get(topic) is not None

    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, "first")
                await trio.testing.wait_all_tasks_blocked()
                for number in range(20):
                    nursery.start_soon(create, f"later-{number}")
                await trio.testing.wait_all_tasks_blocked()
                disk.go.set()
            await saver.save()

    trio.run(main)
    assert disk.writes == 2


def test_a_failed_save_leaves_the_table_unsaved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened(tmp_path)
    saver = TableSaver(manager)

    def full(_data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        manager.create_on_send("mine")
        with monkeypatch.context() as patch:
            patch.setattr(manager.file, "write_temporary", full)
            with pytest.raises(OSError, match="No space"):
                await saver.save()
        await saver.save()

    trio.run(main)
    assert opened(tmp_path).get("mine") is not None
