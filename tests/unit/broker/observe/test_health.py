"""Health: what makes a broker ready, and what each check reports."""

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from reput_broker import Broker, BrokerConfig
from reput_broker.observe.health import BrokerState, Health, StoreHealth
from reput_broker.store.index import file as index_file
from support.stores import dispatch_all, put


def test_it_is_ready_once_recovered_and_until_it_drains() -> None:
    health = Health(clock=lambda: 5.0)
    assert not health.ready
    assert health.failing() == ["recovered"]
    health.state = BrokerState.RUNNING
    assert health.ready
    health.state = BrokerState.DRAINING
    assert not health.ready
    assert health.failing() == ["not_draining"]


def test_a_read_only_store_still_serves_pulls() -> None:
    health = Health()
    health.state = BrokerState.RUNNING
    health.state = BrokerState.READONLY
    assert health.ready
    assert not health.checks["writable"].ok


def test_a_slave_that_cannot_store_what_its_master_sends_is_not_ready() -> None:
    health = Health()
    store = StoreHealth(health, is_replica=True)
    health.state = BrokerState.RUNNING
    store.turn_read_only("a sync has failed: input/output error")
    assert not health.ready
    assert health.failing() == ["writable"]
    health.state = BrokerState.RECOVERING  # another tenure opens the store again
    health.state = BrokerState.RUNNING
    assert health.ready


def test_a_check_remembers_since_when() -> None:
    now = 1.0
    health = Health(clock=lambda: now)
    health.set("disk", True)
    now = 2.0
    health.set("disk", True, "half full")
    assert health.checks["disk"].since_s == 1.0
    now = 3.0
    health.set("disk", False, "full")
    assert health.checks["disk"].since_s == 3.0


def test_the_report_names_each_check() -> None:
    health = Health(clock=lambda: 1.0)
    health.set("disk", False, "full", gates=True)
    health.state = BrokerState.RUNNING
    report = health.report()
    assert report["ready"] is False
    assert report["failing"] == ["disk"]
    assert report["checks"]["disk"] == {"ok": False, "since": 1.0, "detail": "full", "gates_readiness": True}


def test_health_says_which_directories_of_the_log_fail() -> None:
    health = Health()
    store = StoreHealth(health)
    store.note("commit_log_dir_failed", {"path": "/b", "reason": "/b/1 cannot be created: Read-only file system"})
    store.note("commit_log_dir_failed", {"path": "/c", "reason": "/c/2 cannot be created: Input/output error"})
    check = health.checks["commit_log_dirs"]
    assert not check.ok
    assert check.detail == "/b/1 cannot be created: Read-only file system; /c/2 cannot be created: Input/output error"
    assert not check.gates, "other directories take the files, and pulls go on in any case"
    store.note("commit_log_dir_works_again", {"path": "/b"})
    assert health.checks["commit_log_dirs"].detail == "/c/2 cannot be created: Input/output error"
    store.note("commit_log_dir_works_again", {"path": "/c"})
    assert health.checks["commit_log_dirs"].ok


@pytest.mark.trio
async def test_a_file_that_is_lacking_shows_in_health_until_it_is_made(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1MiB", "index": False})
    async with Broker(config) as broker:
        say = broker.store.options.on_event
        await trio.to_thread.run_sync(say, "log_file_not_made", {"path": "/a/1", "reason": "too many open files"})
        await trio.testing.wait_all_tasks_blocked()
        assert broker.health.checks["log_files"].detail == "too many open files"
        assert broker.health.state is BrokerState.RUNNING
        await trio.to_thread.run_sync(say, "log_file_made_again", {})
        await trio.testing.wait_all_tasks_blocked()
        assert broker.health.checks["log_files"].ok


@pytest.mark.trio
async def test_a_store_that_stops_taking_messages_shows_in_health(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1MiB", "index": False})
    async with Broker(config) as broker:
        assert broker.health.state is BrokerState.RUNNING
        await trio.to_thread.run_sync(broker.store.stop_writing, "what was dispatched is damaged")
        with trio.fail_after(30):
            while broker.health.state is BrokerState.RUNNING:
                await trio.sleep(0.001)
        assert broker.health.state is BrokerState.READONLY
        assert broker.health.checks["writable"].detail == "what was dispatched is damaged"


@pytest.mark.trio
async def test_an_index_that_cannot_be_written_shows_in_health_until_it_is_complete(tmp_path: Path) -> None:
    """And the broker completes it by itself, without puts or requests meanwhile."""
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1MiB"})
    async with Broker(config) as broker:
        store = broker.store
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(index_file, "create_file", none_can_be_made)
            put(store, b"a", keys=["a"])
            dispatch_all(store)
            with trio.fail_after(30):
                while "index" not in broker.health.checks:
                    await trio.sleep(0.001)
            check = broker.health.checks["index"]
            assert not check.ok
            assert not check.gates
            assert "Permission denied" in check.detail
            assert store.is_writable
        with trio.fail_after(30):
            while not broker.health.checks["index"].ok:
                await trio.sleep(0.01)
        found = store.query_message("T", "a", 1)
        assert (len(found.records), found.is_complete) == (1, True)


def none_can_be_made(path: Path, size: int) -> int:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))
