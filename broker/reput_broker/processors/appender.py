"""One append to the log, under the put lock, and what it leads to.

An append waits for nothing unless a new log file has to be made; then, and while another one waits for that, puts queue
up at the lock in the order they came.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from reput_broker.commit_service import CommitRealTimeService
from reput_broker.counters import Counters
from reput_broker.delivery.deduplication import StoredBefore
from reput_broker.flush_service import FlushCommitLogService
from reput_broker.pending_puts import PendingRequest
from reput_broker.put_lock import PutLock
from reput_broker.request import Refusal, Request, Response
from reput_broker.services import ReputMessageService
from reput_broker.store.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutResult
from reput_broker.store.status import PutStatus
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, RecordMalformed
from reput_protocol.put_block import RecordTooLarge

_OK = PutStatus.PUT_OK
_STORED = memoryview(b"")
_FILE_ROUNDS: Final = 2
"""The file that a start found is set aside, and then perhaps has no room for this put."""


class Appender:
    """Puts messages into the store and answers when the ack level that was asked for is reached."""

    def __init__(
        self,
        store: MessageStore,
        lock: PutLock,
        flush: FlushCommitLogService,
        reput: ReputMessageService,
        counters: Counters,
        commit: CommitRealTimeService | None = None,
        *,
        readers_see_unflushed: bool,
    ) -> None:
        self._store = store
        self._lock = lock
        self._flush = flush
        self._commit = commit
        self._wake_reput = reput.wake if readers_see_unflushed and commit is None else _nothing
        self._counters = counters
        self._page_cache_seconds = counters.produce_seconds[AckLevel.PAGE_CACHE]

    def append(
        self,
        request: Request,
        size: int,
        put: Callable[[], PutResult],
        answer: Callable[[PutResult], Response],
        topic: str,
        ack: AckLevel,
        kind: str = "normal",
    ) -> Response | Awaitable[Response | None] | None:
        """Run `put` as soon as nothing is in its way and answer with what `answer` makes of its result.

        Args:
            size: bytes that will be appended at most.
            put: does the append; does not wait.
            kind: as what the messages are counted.

        Raises:
            Refusal: it cannot be done, and nothing was stored.
        """
        lock = self._lock
        if lock.is_held or self._store.needs_new_file(size):
            return self._append_slowly(request, size, put, answer, topic, ack, kind)
        lock.acquire_nowait()
        try:
            result = put()
        finally:
            lock.release()
        if result.status is not _OK:
            raise self._refusal(result.status)
        return self._finish(request, result, size, answer(result), topic, ack, kind)

    async def _append_slowly(
        self,
        request: Request,
        size: int,
        put: Callable[[], PutResult],
        answer: Callable[[PutResult], Response],
        topic: str,
        ack: AckLevel,
        kind: str,
    ) -> Response | None:
        result = await self._put_slowly(size, put)
        if result.status is not _OK:
            raise self._refusal(result.status)
        return self._finish(request, result, size, answer(result), topic, ack, kind)

    async def _put_slowly(self, size: int, put: Callable[[], PutResult]) -> PutResult:
        """Wait for the lock and for a log file where one is needed, then put."""
        self._store.note_file_wait()
        async with self._lock.held():
            for _ in range(_FILE_ROUNDS):
                if not self._store.needs_new_file(size):
                    break
                try:
                    await trio.to_thread.run_sync(self._store.make_log_file)
                except (DiskFull, FileNotMade) as error:
                    self._store.want_file()
                    raise self._no_file(error) from error
                except StoreClosed as error:
                    raise self._refusal(PutStatus.SERVICE_NOT_AVAILABLE) from error
            return put()

    async def append_own(self, size: int, put: Callable[[], PutResult], topic: str) -> PutResult:
        """Run `put`, which stores what the broker itself has to store, as soon as nothing is in its way.

        Who calls it sees to the sync.

        Raises:
            Refusal: it cannot be done, and nothing was stored.
        """
        lock = self._lock
        if lock.is_held or self._store.needs_new_file(size):
            result = await self._put_slowly(size, put)
        else:
            lock.acquire_nowait()
            try:
                result = put()
            finally:
                lock.release()
        if result.status is not _OK:
            raise self._refusal(result.status)
        self._counters.topic(topic).count_in(result.count, size)
        self._wake_reput()
        if self._commit is not None:
            self._commit.wrote()
        return result

    def _finish(
        self,
        request: Request,
        result: PutResult,
        size: int,
        response: Response,
        topic: str,
        ack: AckLevel,
        kind: str,
    ) -> Response | None:
        if isinstance(result, StoredBefore):
            self._counters.topic(topic).duplicates += result.count
        else:
            self._counters.topic(topic).count_in(result.count, size, kind)
        self._wake_reput()
        if ack is AckLevel.FLUSHED:
            request.body = _STORED  # it is in the log; a request that waits for the disk need not keep it
            self._flush.answer_when_flushed(
                result.end_offset, PendingRequest(request, response, result.count)
            )
            return None
        if self._commit is not None and not request.is_oneway:
            request.body = _STORED
            self._commit.answer_when_committed(
                result.end_offset, PendingRequest(request, response, result.count)
            )
            return None
        if self._commit is not None:
            self._commit.wrote()
        else:
            self._flush.wrote()
        self._page_cache_seconds.observe(time.monotonic() - request.received_at)
        return response

    def _no_file(self, error: DiskFull | FileNotMade) -> Refusal:
        """Return the refusal for a put that needs a file which cannot be made; the error says why and what to do."""
        rejected = self._counters.rejected
        if isinstance(error, DiskFull):
            rejected["disk_full"] += 1
            return Refusal(ErrorCode.DISK_FULL, str(error))
        if error.is_out_of_descriptors:
            rejected["busy"] += 1
            return Refusal(ErrorCode.BUSY, f"{error}; send again in a moment")
        return Refusal(ErrorCode.READ_ONLY, f"{error}; send again once that is done")

    def _refusal(self, status: PutStatus) -> Refusal:
        store, rejected = self._store, self._counters.rejected
        refusal = store.file_refusal
        if status is PutStatus.CREATE_MAPPED_FILE_FAILED and refusal is not None:
            return self._no_file(refusal)
        if status is PutStatus.DISK_FULL:
            rejected["disk_full"] += 1
            reason = store.disk_full_reason or "no space left for a new file"
            return Refusal(ErrorCode.DISK_FULL, f"{reason}; free disk space, then send again")
        if status is PutStatus.READ_ONLY:
            reason = store.read_only_reason or "the store takes no more messages"
            return Refusal(ErrorCode.READ_ONLY, f"{reason}; see the broker's log")
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            rejected["busy"] += 1
            return Refusal(
                ErrorCode.BUSY,
                "all buffers of the transient store pool wait for the disk; send again in a moment",
            )
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return Refusal(ErrorCode.NOT_READY, "the store is not open; send again shortly")
        rejected["too_large"] += 1
        if status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
            return Refusal(ErrorCode.TOO_LARGE, "the properties take more than 32767 bytes; shorten them")
        options = store.options
        return Refusal(
            ErrorCode.TOO_LARGE,
            f"the message breaks a limit: topic at most 127 bytes, body at most {options.message_bytes_max} bytes "
            f"(store.message_size_max), and all that is put at once must fit into one log file of "
            f"{options.commit_log_file_size} bytes (store.commit_log_file_size); make it smaller",
        )


def _nothing() -> None:
    """Wake nobody: readers see what is flushed, and the flush wakes dispatch."""


def malformed(error: RecordMalformed, counters: Counters) -> Refusal:
    """Return the refusal for a block that breaks a rule, and count it."""
    reason = str(error)
    if isinstance(error, RecordTooLarge):
        counters.rejected["too_large"] += 1
        return Refusal(ErrorCode.TOO_LARGE, f"{reason}; nothing of the block was stored")
    if "BODYCRC" in reason:
        counters.rejected["bad_crc"] += 1
        return Refusal(ErrorCode.MALFORMED, f"{reason}; encode the block again")
    counters.rejected["malformed"] += 1
    return Refusal(ErrorCode.MALFORMED, f"{reason}; nothing of the block was stored")
