"""A put that needs a file which cannot be made: each reason has its code, its facts and its remedy."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.appender import Appender
from reput_broker.put.put_lock import Fence, PutLock
from reput_broker.remoting.request import Put, Refusal, Response
from reput_broker.store.base.errors import DiskFull, FileNotMade, FlushFailed, StoreClosed
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutResult, PutStatus
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode
from support.log_progress import FakeLog, progress_of

PATH = Path("/data/commitlog/00000000000000004096")


def failed(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class FakeStore(FakeLog):
    """A log that needs a file, and an attempt to make one that fails."""

    def __init__(self, failure: Exception, status: PutStatus = PutStatus.PUT_OK) -> None:
        super().__init__()
        self.options = SimpleNamespace(flush_sync=True)
        self.failure = failure
        self.status = status
        self.file_refusal = failure
        self.disk_full_reason = None
        self.read_only_reason = None
        self.waits = 0
        self.puts = 0
        self.wants = 0

    def needs_new_file(self, size: int) -> bool:
        return self.status is PutStatus.PUT_OK

    def note_file_wait(self) -> None:
        self.waits += 1

    def make_log_file(self) -> None:
        raise self.failure

    def want_file(self) -> None:
        self.wants += 1

    def put(self) -> PutResult:
        self.puts += 1
        return PutResult(self.status)


def appender_over(store: Any) -> tuple[Appender, Counters]:
    fence, counters = Fence(), Counters()
    progress = progress_of(store, counters)
    lock = PutLock(fence, StoreConfig())
    return Appender(store, lock, fence, progress, counters, lambda: None), counters


@pytest.mark.trio
async def test_a_stored_message_counts_though_a_later_put_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a log file, and its connection ends."""
    store: Any = FakeStore(DiskFull(PATH, 100))
    monkeypatch.setattr(store, "needs_new_file", lambda size: size >= 100)
    monkeypatch.setattr(store, "make_log_file", lambda: time.sleep(0.2))
    appender, _ = appender_over(store)
    syncs: list[int] = []
    appender._progress.flushed.want = lambda: syncs.append(1)
    request: Any = SimpleNamespace(received_at=0.0, is_oneway=False, body=b"")
    puts = [Put(request, size, store.put, lambda _: Response(), "t", AckLevel.PAGE_CACHE) for size in (10, 200)]
    with trio.move_on_after(0.05):
        waiting = appender.append(puts)
        assert waiting is not None
        await waiting
    assert len(syncs) == store.puts == 1
    assert isinstance(puts[0].outcome, Response)


async def refusal_of(store: Any) -> tuple[Refusal, Counters]:
    appender, counters = appender_over(store)
    nothing: Any = None
    put = Put(nothing, 100, store.put, lambda _: Response(), "t", AckLevel.PAGE_CACHE)
    waiting = appender.append([put])
    if waiting is not None:
        await waiting
    assert isinstance(put.outcome, Refusal)
    return put.outcome, counters


AGAIN = "this is retried automatically; send again once that is done"


@pytest.mark.trio
@pytest.mark.parametrize(
    ("failure", "code", "text", "counted"),
    [
        (
            DiskFull(PATH, 4096),
            ErrorCode.DISK_FULL,
            f"no space left for 4096 bytes of {PATH}; free disk space and send again",
            "disk_full",
        ),
        (
            FileNotMade(PATH, failed(errno.EMFILE)),
            ErrorCode.BUSY,
            f"{PATH} cannot be created: Too many open files; allow the broker more open files (ulimit -n, "
            "LimitNOFILE); this is retried automatically; send again in a moment",
            "busy",
        ),
        (
            FileNotMade(PATH, failed(errno.EROFS)),
            ErrorCode.READ_ONLY,
            f"{PATH} cannot be created: Read-only file system; mount the file system of /data/commitlog for "
            f"writing; {AGAIN}",
            "",
        ),
        (
            FileNotMade(PATH, failed(errno.EACCES)),
            ErrorCode.READ_ONLY,
            f"{PATH} cannot be created: Permission denied; let the user that the broker runs as "
            f"(uid {os.geteuid()}) write to /data/commitlog; {AGAIN}",
            "",
        ),
        (
            FileNotMade(PATH, FlushFailed(PATH, failed(errno.EIO))),
            ErrorCode.READ_ONLY,
            f"{PATH} cannot be created: Input/output error; check the disk of /data/commitlog; {AGAIN}",
            "",
        ),
        (StoreClosed("the log is closed"), ErrorCode.NOT_READY, "the store is not open; send again shortly", ""),
    ],
)
async def test_each_reason_has_its_code(failure: Exception, code: ErrorCode, text: str, counted: str) -> None:
    store = FakeStore(failure)
    refusal, counters = await refusal_of(store)
    assert (refusal.error, refusal.text) == (code, text)
    assert {name: count for name, count in counters.rejected.items() if count} == ({counted: 1} if counted else {})
    assert store.waits == 1
    assert store.puts == 0, "nothing was stored"
    assert store.wants == (not isinstance(failure, StoreClosed)), "whoever makes files ahead tries again"


@pytest.mark.trio
@pytest.mark.parametrize(("needed", "made"), [(1, 1), (2, 2), (9, 2)])
async def test_a_file_that_was_made_ready_may_have_no_room_and_the_next_is_not_made_by_the_put(
    needed: int, made: int
) -> None:
    """But no put waits for more than these two: the put itself then reports the reason."""

    class Store(FakeStore):
        made = 0

        def needs_new_file(self, size: int) -> bool:
            return self.made < needed

        def make_log_file(self) -> None:
            self.made += 1

    store = Store(DiskFull(PATH, 4096), PutStatus.DISK_FULL)
    await refusal_of(store)
    assert (store.made, store.puts) == (made, 1)


@pytest.mark.trio
@pytest.mark.parametrize(("number", "code"), [(errno.ENFILE, ErrorCode.BUSY), (errno.EROFS, ErrorCode.READ_ONLY)])
async def test_the_first_file_of_a_log_is_refused_in_the_same_words(number: int, code: ErrorCode) -> None:
    """It is created by the put itself, whose status reports that."""
    refusal, _ = await refusal_of(FakeStore(FileNotMade(PATH, failed(number)), PutStatus.CREATE_MAPPED_FILE_FAILED))
    assert refusal.error is code
    assert f"{PATH} cannot be created: {os.strerror(number)}" in refusal.text


@pytest.mark.trio
async def test_a_message_larger_than_a_log_file_is_refused_with_that_limit() -> None:
    store: Any = FakeStore(failed(errno.EIO), PutStatus.MESSAGE_ILLEGAL)
    store.options = StoreOptions(PATH.parent, commit_log_file_size=1 << 20, message_bytes_max=4 << 20)
    refusal, counters = await refusal_of(store)
    assert refusal.error is ErrorCode.TOO_LARGE
    assert "body at most 4194304 bytes (store.message_size_max)" in str(refusal)
    assert "one log file of 1048576 bytes (store.commit_log_file_size)" in str(refusal)
    assert counters.rejected["too_large"] == 1
