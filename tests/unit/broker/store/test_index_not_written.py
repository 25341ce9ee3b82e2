"""The index cannot be written for a while: it lags, reports that, and is completed; nothing else waits for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.results import PutStatus
from reput_broker.store.index import file as index_file
from reput_broker.store.index import service as index_backlog
from reput_broker.store.index.query import Doubt
from reput_broker.store.message_store import MessageStore
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, code: int, name: str = "create_file") -> Iterator[None]:
    """No index file can be made, or with "reserve_space" none that was there be made ready."""

    def fail(*arguments: Any) -> Any:
        raise OSError(code, os.strerror(code), str(arguments[0]))

    with monkeypatch.context() as patched:
        patched.setattr(index_file, name, fail)
        yield


def found(store: MessageStore, key: str) -> tuple[int, bool]:
    result = store.query_message("T", key, 9)
    return len(result.records), result.is_complete


def complete(store: MessageStore) -> None:
    while store.index_step(300):
        pass


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("at_once", [0, 1024])
def test_messages_are_put_and_consumed_and_indexed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, at_once: int
) -> None:
    monkeypatch.setattr(index_backlog, "KEYS_AT_ONCE", at_once)
    events: list[tuple[str, Any]] = []
    options = small_options(
        tmp_path / "store", index_entries=8, on_event=lambda event, facts: events.append((event, facts))
    )
    store = opened(options)
    for number in range(5):
        put(store, b"%d" % number, keys=[f"k{number}"])
    dispatch_all(store)
    with broken(monkeypatch, code):
        for number in range(5, 25):
            assert put(store, b"%d" % number, keys=[f"k{number}"]).status is PutStatus.PUT_OK
            dispatch_all(store)
        assert store.read_only_reason is None
        assert store.is_writable
        assert store.dispatch_behind_bytes == 0
        assert bodies(store) == [b"%d" % number for number in range(25)]
        assert found(store, "k1") == (1, False)
        assert found(store, "k20") == (0, False)
        assert store.find_by_unique_key("T", "none").doubt is Doubt.BEHIND
        with pytest.raises(OSError, match=os.strerror(code)):
            complete(store)
        assert found(store, "k20") == (0, False)
    said = [facts["reason"] for event, facts in events if event == "index_not_written"]
    assert len(said) == 1, "once until it is over"
    assert str(options.index_dir) in said[0]
    assert said[0].endswith("this is retried automatically")
    complete(store)
    assert [event for event, _ in events] == ["index_not_written", "index_complete"]
    put(store, b"25", keys=["k25"])
    dispatch_all(store)
    for number in range(26):
        assert found(store, f"k{number}") == (1, True), number
    assert store.index_behind_bytes == 0
    assert store.close()


def test_a_stop_while_it_cannot_be_written_is_orderly_and_the_next_start_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(small_options(tmp_path / "store"))
    put(store, b"a", keys=["a"])
    with broken(monkeypatch, errno.EIO):
        dispatch_all(store)
        assert store.close()
    assert not (tmp_path / "store" / "abort").exists()
    again = opened(small_options(tmp_path / "store"))
    again.complete_index()
    assert found(again, "a") == (1, True)
    assert again.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM])
def test_a_start_continues_if_no_space_can_be_reserved_for_the_last_index_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    options = small_options(tmp_path / "store")
    store = opened(options)
    put(store, b"a", keys=["a"])
    dispatch_all(store)
    assert store.close()
    with broken(monkeypatch, code, "reserve_space"):
        again = opened(options)
        put(again, b"b", keys=["b"])
        dispatch_all(again)
        assert again.read_only_reason is None
        assert found(again, "a") == (1, False)
    complete(again)
    assert found(again, "b") == (1, True)
    assert again.close()


def test_a_start_after_a_crash_continues_if_the_index_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_backlog, "KEYS_AT_ONCE", 0)
    clock = FakeClock()
    store = opened(small_options(tmp_path / "store"), clock)
    for number in range(30):
        put(store, b"%d" % number, keys=[f"k{number}"])
        dispatch_all(store)
    options = killed(store, tmp_path / "image")
    assert store.close()
    with broken(monkeypatch, errno.EIO):
        again = opened(options, clock)
        put(again, b"30", keys=["k30"])
        dispatch_all(again)
        assert found(again, "k3") == (0, False)
    complete(again)
    for number in range(31):
        assert found(again, f"k{number}") == (1, True)
    assert again.close()
