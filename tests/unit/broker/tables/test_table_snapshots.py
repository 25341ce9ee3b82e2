"""What a save writes: the table as it was when the save began, put together by the thread that writes it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
from msgspec import to_builtins

from reput_broker.tables import config_file, subscription_groups
from reput_broker.tables.config_file import SavedTable
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.topic import TopicConfig


class Table(SavedTable, Protocol):
    """A table with its file."""

    file: config_file.ConfigFile


class Case:
    """A table, and ways to change it that its file shows."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def change(self, value: int) -> None:
        """Set one entry to `value` and add another; remove the one that was added before."""
        table = self.table
        name, before = f"added-{value}", f"added-{value - 1}"
        if isinstance(table, TopicConfigManager):
            table.put(TopicConfig("same", value, value))
            table.put(TopicConfig(name))
            table.delete(before)
        elif isinstance(table, SubscriptionGroupManager):
            table.put(SubscriptionGroupConfig("same", retry_max_times=value))
            table.set_readable("same", f"T{value}", readable=False)
            table.set_readable("same", f"T{value - 1}", readable=True)
            table.put(SubscriptionGroupConfig(name))
            table.delete(before)
        else:
            assert isinstance(table, ConsumerOffsetManager)
            table.commit("same", "T", 0, value)
            table.commit(name, "T", 0, value)
            table.remove_group(before)

    def written(self) -> Any:
        return json.loads(self.table.file.path.read_bytes())


@pytest.fixture(params=[TopicConfigManager, SubscriptionGroupManager, ConsumerOffsetManager])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    manager = request.param(tmp_path / "config" / "table.json", clock_ms=lambda: 0)
    manager.load()
    return Case(manager)


def test_a_change_during_a_save_is_in_the_next_one_and_not_in_part_in_this_one(case: Case) -> None:
    table = case.table
    case.change(1)
    first = table.begin_save()
    assert first is not None
    content = first._members()  # type: ignore[attr-defined]
    expected = json.loads(content if isinstance(content, bytes) else config_file.encode(content))
    case.change(2)
    first.write()
    first.adopt()
    first.sync()
    assert case.written() == expected
    assert b"added-1" in table.file.path.read_bytes()
    assert b"added-2" not in table.file.path.read_bytes()
    second = table.begin_save()
    assert second is not None
    second.write()
    second.adopt()
    second.sync()
    assert b"added-1" not in table.file.path.read_bytes()
    assert b"added-2" in table.file.path.read_bytes()
    assert table.begin_save() is None


def test_the_text_is_put_together_in_the_writing_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SubscriptionGroupManager(tmp_path / "config" / "groups.json", clock_ms=lambda: 0)
    manager.load()
    for number in range(100):
        manager.put(SubscriptionGroupConfig(f"g{number}"))
    threads: list[int] = []

    def members(config: SubscriptionGroupConfig, **options: Any) -> Any:
        threads.append(threading.get_ident())
        return to_builtins(config, **options)

    monkeypatch.setattr(subscription_groups, "to_builtins", members)
    trio.run(TableSaver(manager).save)
    assert len(threads) >= 100
    assert threading.get_ident() not in threads
