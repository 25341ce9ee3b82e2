"""The service that drives retention: how often, in which order, its reports, and failures."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.observe.figures import DiskFigures
from reput_broker.store.base.results import Extent
from reput_broker.store.message_store import MessageStore
from reput_broker.store.queue.table import DELETED_DIR
from reput_broker.store.retention import DiskLevel, RetentionRules
from reput_broker.upkeep.clean_service import CleanFilesService, rules_of
from support.cores import NoDuties, core_of
from support.retention import RESERVED_MS, FakeMachine, fill, store_files
from support.stores import dispatch_all, opened, put, small_options


class Broker:
    """A store of six files and its service."""

    def __init__(self, tmp_path: Path, needed_from: Callable[[], int | None] = lambda: None, **store: Any) -> None:
        self.machine = FakeMachine()
        config = BrokerConfig(data_dir=tmp_path, store=store)
        self.config = config.store
        self.counters = Counters()
        self.figures = DiskFigures()
        self.said: list[str | None] = []
        self.store: MessageStore = opened(small_options(tmp_path / "store"), lambda: self.machine.now_ms)
        fill(self.store, 6)
        self.machine.age(self.store.options.data_dir)
        core = core_of(
            config=config,
            store=self.store,
            surroundings=self.machine.surroundings(),
            counters=self.counters,
            sources=SimpleNamespace(disk=self.figures),
            store_health=SimpleNamespace(note_disk=self.said.append),
        )
        role = NoDuties()
        role.needed_from = needed_from  # type: ignore[method-assign]
        self.service = CleanFilesService(core, role)

    def expire(self) -> None:
        self.machine.hour = 4
        self.machine.now_ms += RESERVED_MS


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.store.close()


def run(work: Any) -> list[Any]:
    """Run under a clock that jumps over sleeps; return what was logged."""
    with structlog.testing.capture_logs() as logs:
        trio.run(work, clock=trio.testing.MockClock(autojump_threshold=0.05))
    return logs


def test_the_first_check_is_delayed_and_the_next_ones_are_periodic(broker: Broker) -> None:
    looks: list[float] = []

    async def main() -> None:
        real = broker.machine.disk_usage

        def look(path: Path) -> float:
            looks.append(trio.from_thread.run_sync(trio.current_time) - started)
            return real(path)

        broker.service._log.disk._usage = look
        async with trio.open_nursery() as nursery:
            started = trio.current_time()
            nursery.start_soon(broker.service.run)
            await trio.sleep(85)
            nursery.cancel_scope.cancel()

    run(main)
    assert [round(at) for at in looks[::2]] == [60, 70, 80], "the log's disk and the queues', each time"


def test_a_round_removes_the_files_of_deleted_topics_off_the_event_loop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = broker.store
    put(store, b"x", topic="gone")
    dispatch_all(store)
    threads: set[str] = set()
    real = shutil.rmtree

    def rmtree(path: Path) -> None:
        threads.add(threading.current_thread().name)
        real(path)

    monkeypatch.setattr(shutil, "rmtree", rmtree)

    async def main() -> None:
        store.delete_topic("gone")
        assert not threads, "the event loop only moves their directory"
        await broker.service.clean()

    run(main)
    assert threads
    assert "MainThread" not in threads
    assert not (store.options.consume_queue_dir / DELETED_DIR).exists()


def test_a_round_deletes_counts_and_says_so(broker: Broker) -> None:
    broker.expire()
    threads: set[str] = set()
    real = broker.service._log.delete_next

    def delete_next() -> Any:
        threads.add(threading.current_thread().name)
        return real()

    broker.service._log.delete_next = delete_next  # type: ignore[method-assign]

    async def main() -> None:
        started = trio.current_time()
        await broker.service.clean()
        assert trio.current_time() - started == pytest.approx(0.1 * 6), "a pause after each file, and after the queue"

    logs = run(main)
    assert len(store_files(broker.store)) == 1
    assert threading.current_thread().name not in threads
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("files_deleted", "info")] * 2
    assert (logs[0]["commitlog"], logs[0]["size_bytes"], logs[0]["min_offset"]) == (5, 5 * 4096, 5 * 4096)
    assert logs[1]["consumequeue"] == 2
    assert broker.counters.segments_deleted["commitlog", "time"] == 5
    assert broker.counters.segments_deleted["consumequeue", "time"] == 2
    assert broker.counters.deleted_bytes == {"commitlog": 5 * 4096, "consumequeue": 2 * 200, "index": 0}


def test_early_deletion_is_a_warning(broker: Broker) -> None:
    broker.machine.used = 0.95
    logs = run(broker.service.clean)
    assert logs[0]["event"] == "files_deleted_before_their_time"
    assert logs[0]["before_their_time"] == 5
    assert broker.counters.segments_deleted["commitlog", "disk"] == 5
    full = broker.figures.level
    assert broker.said[-1] == broker.store.disk_full_reason
    broker.machine.used = 0.5
    run(broker.service.clean)
    assert (full, broker.figures.level) == (DiskLevel.REFUSE, DiskLevel.OK)
    assert broker.said[-1] is None
    assert broker.store.is_writable


def test_files_that_an_unfinished_batch_needs_stay_even_if_the_disk_is_full(tmp_path: Path) -> None:
    needed: list[int | None] = [None]
    broker = Broker(tmp_path, needed_from=lambda: needed[0])
    try:
        files = store_files(broker.store)
        size = broker.store.options.commit_log_file_size
        needed[0] = broker.store.min_physical_offset + 2 * size + 1
        broker.machine.used = 0.95
        broker.expire()
        run(broker.service.clean)
        assert store_files(broker.store) == files[2:]
        needed[0] = None
        run(broker.service.clean)
        assert len(store_files(broker.store)) == 1
    finally:
        broker.store.close()


def test_what_keeps_a_full_disk_from_being_relieved_is_logged_once(broker: Broker) -> None:
    async def main() -> None:
        for used in (0.8, 0.8, 0.8, 0.95, 0.95, 0.5, 0.8):
            broker.machine.used = used
            await broker.service.clean()

    broker.config.__dict__["clean_file_forcibly"] = False
    logs = [entry for entry in run(main) if entry["event"] == "disk_not_relieved"]
    assert [(entry["disk_level"], entry["used_ratio"]) for entry in logs] == [
        ("clean", 0.8), ("refuse", 0.95), ("clean", 0.8),
    ]  # fmt: skip
    assert all("file_reserved_time" in entry["hint"] for entry in logs)


def test_a_reader_in_the_way_is_named(broker: Broker) -> None:
    broker.expire()
    broker.machine.used = 0.8
    with broker.store.hold_extents([Extent(0, 10)]):
        assert "00000000000000000000 is still being read" in run(broker.service.clean)[0]["hint"]
    run(broker.service.clean)
    broker.machine.used = 0.9
    assert "last one" in run(broker.service.clean)[0]["hint"]


def test_by_hand_it_does_not_wait(broker: Broker) -> None:
    broker.expire()
    broker.machine.hour = 12

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.service.run)
            await trio.testing.wait_all_tasks_blocked()
            started = trio.current_time()
            broker.service.delete_now()
            while len(store_files(broker.store)) > 1:
                await trio.sleep(0.1)
            assert trio.current_time() - started < 5
            nursery.cancel_scope.cancel()

    run(main)


def test_an_error_is_logged_and_tried_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.expire()

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        logs = run(broker.service.clean)
    assert [entry["event"] for entry in logs] == ["cleaning_failed"]
    assert broker.store.is_writable
    run(broker.service.clean)
    assert len(store_files(broker.store)) == 1


def test_files_are_kept_until_dependent_state_is_saved(broker: Broker) -> None:
    broker.expire()
    asked: list[int] = []

    async def save() -> None:
        asked.append(len(store_files(broker.store)))
        if len(asked) == 1:
            raise OSError(28, "No space left on device")

    broker.service._before_delete = save
    files = len(store_files(broker.store))
    logs = run(broker.service.clean)
    assert [entry["event"] for entry in logs] == ["cleaning_failed"]
    assert len(store_files(broker.store)) == files
    run(broker.service.clean)
    assert asked == [files, files]
    assert len(store_files(broker.store)) == 1


def test_a_deletion_that_the_disk_does_not_confirm_stops_puts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.expire()

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        logs = run(broker.service.clean)
    assert logs[-1]["event"] == "cleaning_failed"
    assert "restart" in logs[-1]["hint"]
    assert not broker.store.is_writable
    assert broker.store.read_only_reason is not None


def test_the_rules_are_those_of_the_configuration() -> None:
    assert rules_of(StoreConfig()) == RetentionRules(), "the defaults are RocketMQ's in both"
    config = BrokerConfig(
        store={
            "file_reserved_time": "1h",
            "delete_when": "00; 23",
            "disk_max_used_ratio": 0.5,
            "disk_clean_forcibly_ratio": 0.6,
            "disk_warning_ratio": 0.7,
            "clean_file_forcibly": False,
            "delete_files_batch": 3,
            "destroy_forcibly_interval": "1s",
            "redelete_hanged_interval": "2s",
        }
    )
    assert rules_of(config.store) == RetentionRules(3_600_000, frozenset({0, 23}), 0.5, 0.6, 0.7, False, 3, 1000, 2000)


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"delete_when": "24"}, "store.delete_when"),
        ({"delete_when": ""}, "store.delete_when"),
        ({"delete_when": "04,16"}, "store.delete_when"),
        ({"delete_when": 4}, "store.delete_when"),
        ({"disk_warning_ratio": 1.1}, "store.disk_warning_ratio"),
        ({"disk_warning_ratio": 0.8}, "store.disk_warning_ratio"),
        ({"disk_max_used_ratio": 0.9}, "store.disk_clean_forcibly_ratio"),
        ({"disk_max_used_ratio": 75}, "store.disk_max_used_ratio"),
        ({"file_reserved_time": "0s"}, "store.file_reserved_time"),
        ({"delete_files_batch": 0}, "store.delete_files_batch"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(store=values)
    assert [problem.key for problem in refused.value.problems] == [key]
