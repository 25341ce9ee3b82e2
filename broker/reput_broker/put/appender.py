"""Append puts to the log under the put lock, and answer them.

An append waits only when a new log file must be made. Then puts queue at the lock in order of arrival.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Self

from reput_broker.observe.counters import Counters
from reput_broker.put.progress import LogProgress, PendingRequest, do_nothing, not_reached
from reput_broker.put.put_lock import Fence, Fenced, PutLock
from reput_broker.remoting.request import Put, Refusal, Response, Result
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import Block, PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, RecordMalformed
from reput_protocol.record.put_block import RecordTooLarge

_OK = PutStatus.PUT_OK
_STORED = memoryview(b"")
_size_of = attrgetter("size")


class StoredBefore(PutResult):
    """The first outcome of a put whose messages are already stored."""

    queue_id: int = -1

    @classmethod
    def at(
        cls,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        end_offset: int,
        store_timestamp_ms: int,
        count: int = 1,
    ) -> Self:
        """Return the outcome of messages that are stored there."""
        return cls(PutStatus.PUT_OK, queue_offset, physical_offset, end_offset, store_timestamp_ms, count, queue_id)


class Appender:
    """Appends messages and answers when the requested ack level is reached.

    Args:
        dispatch: called after puts that no connection dispatches.
    """

    def __init__(
        self,
        store: MessageStore,
        lock: PutLock,
        fence: Fence,
        progress: LogProgress,
        counters: Counters,
        dispatch: Callable[[], None],
    ) -> None:
        self._fence = fence
        self._store = store
        self._lock = lock
        self._progress = progress
        self._syncs_always = store.options.flush_sync and not progress.has_pool
        self._dispatch = dispatch
        self._counters = counters
        self._page_cache_seconds = counters.produce_seconds[AckLevel.PAGE_CACHE]

    def append(self, puts: Sequence[Put]) -> Awaitable[None] | None:
        """Append the puts of one read in order, and set each outcome: its answer, or an error.

        Returns:
            None if that is done, else an awaitable that completes it.
        """
        reason = self._fence.refusal()
        if reason is not None:
            refusal = not_master(self._fence, reason)
            for put in puts:
                put.outcome = refusal
            return None
        if self._lock.is_held or self._store.needs_new_file(sum(map(_size_of, puts))):
            if not self._lock.is_busy:
                return self._append_waiting(puts)
            for put in puts:
                put.outcome = self._busy(f"a send has waited {self._lock.held_s:.1f} s for a file of the log")
            return None
        self._lock.call_now(self._write, puts)
        self._set_outcomes(puts)
        return None

    async def _append_waiting(self, puts: Sequence[Put]) -> None:
        for put in puts:
            try:
                await self._lock.call(self._store, put.size, partial(self._write, (put,)))
            except (DiskFull, FileNotMade) as error:
                put.outcome = self._no_file(error)
            except Fenced as error:
                put.outcome = not_master(self._fence, error.reason)
            except StoreClosed:
                put.outcome = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
            self._set_outcomes((put,))  # now, since the wait for the next one may be cancelled

    async def resolve(self, result: Result) -> Response | None:
        """Return a processor's answer, appending its put if there is one; None if the answer is sent later.

        For a processor that needs the answer itself; otherwise the connection appends the put with those next to it.

        Raises:
            ReputError: a put was refused, and nothing of it was stored.
        """
        if isinstance(result, Awaitable):
            result = await result
        if not isinstance(result, Put):
            return result
        waiting = self.append((result,))
        if waiting is not None:
            await waiting
        self._dispatch()
        if isinstance(result.outcome, Exception):
            raise result.outcome
        assert not isinstance(result.outcome, PutResult), "`_set_outcomes` has replaced it"
        return result.outcome

    def _write(self, puts: Sequence[Put]) -> None:
        """Perform the puts; consecutive blocks are appended together."""
        while puts:
            work = puts[0].work
            blocks: list[Block] = []
            for put in puts:
                if not isinstance(put.work, Block):
                    break
                blocks.append(put.work)
            results: Sequence[PutResult | Exception]
            size = max(1, len(blocks))
            try:
                results = self._store.put(blocks) if isinstance(work, Block) else [work()]
            except Exception as error:
                results = [error] * size
            for put, result in zip(puts[:size], results, strict=True):
                put.outcome = result
            puts = puts[size:]

    def _set_outcomes(self, puts: Sequence[Put]) -> None:
        """Count what was stored, and set the answer of each put; of one that waits for its ack level, none yet."""
        stored, in_page_cache, now = 0, 0, time.monotonic()
        for put in puts:
            result = put.outcome
            if isinstance(result, RecordMalformed):
                put.outcome = malformed(result, self._counters)
            if not isinstance(result, PutResult):
                continue
            if result.status is not _OK:
                put.outcome = self._refusal(result.status)
                continue
            stored += 1
            request, response, traffic = put.request, put.answer(result), self._counters.topics[put.topic]
            if isinstance(result, StoredBefore):
                traffic.duplicates += result.count
            else:
                traffic.count_in(result.count, put.size, put.kind)
            if put.ack is not AckLevel.PAGE_CACHE or (self._progress.has_pool and not request.is_oneway):
                request.body = _STORED  # it is in the log; a waiting request need not keep it
                put.outcome = None
                pending = PendingRequest(request, response, result.count, self._fence)
                self._progress.answer_when(put.ack, result.end_offset, pending)
                continue
            in_page_cache += 1
            reason = self._fence.expiry()
            if reason is not None:
                response = not_reached(response, reason, ErrorCode.REPLICA_TIMEOUT)
            put.outcome = response
        if stored:
            seconds = now - puts[0].request.received_at
            self._counters.put_seconds.observe(seconds, stored)
            self._counters.longest_put_s = max(self._counters.longest_put_s, seconds)
        if in_page_cache:
            self._page_cache_seconds.observe(now - puts[0].request.received_at, in_page_cache)
            if self._syncs_always:
                self._progress.flushed.want()

    async def passed(self) -> None:
        """Return when every put that came before is in the log, or was refused."""
        with suppress(DiskFull, FileNotMade, Fenced, StoreClosed):  # which the caller's own put meets too
            await self._lock.call(self._store, 0, do_nothing)

    async def append_or_refuse(self, size: int, put: Callable[[], PutResult], topic: str) -> PutResult:
        """Run `put`, which stores a record of the broker itself for a request, when the lock is free. The caller
        ensures the sync. While the fence is closed it refuses, where `OwnPuts.under_lock` waits.

        Raises:
            Refusal: nothing was stored.
        """
        try:
            result = await self._lock.call(self._store, size, put)
        except (DiskFull, FileNotMade) as error:
            raise self._no_file(error) from error
        except Fenced as error:
            raise not_master(self._fence, error.reason) from None
        except StoreClosed as error:
            raise self._refusal(PutStatus.SERVICE_NOT_AVAILABLE) from error
        if result.status is not _OK:
            raise self._refusal(result.status)
        self._counters.topics[topic].count_in(result.count, size)
        self._dispatch()
        return result

    def _no_file(self, error: DiskFull | FileNotMade) -> Refusal:
        rejected = self._counters.rejected
        if isinstance(error, DiskFull):
            rejected["disk_full"] += 1
            return Refusal(ErrorCode.DISK_FULL, str(error))
        if error.is_out_of_descriptors:
            rejected["busy"] += 1
            return Refusal(ErrorCode.BUSY, f"{error}; send again in a moment")
        return Refusal(ErrorCode.READ_ONLY, f"{error}; send again once that is done")

    def _busy(self, reason: str) -> Refusal:
        self._counters.rejected["busy"] += 1
        # The beginning is RocketMQ's, which its users look for.
        text = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {reason}; send again in a moment"
        return Refusal(ErrorCode.BUSY, text)

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
            reason = store.read_only_reason or "the store accepts no more messages"
            return Refusal(ErrorCode.READ_ONLY, f"{reason}; see the broker's log")
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            return self._busy("all buffers of the transient store pool wait for the disk")
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            return Refusal(ErrorCode.NOT_READY, "the store is not open; send again shortly")
        rejected["too_large"] += 1
        if status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
            return Refusal(
                ErrorCode.TOO_LARGE, "the message is illegal: its properties take more than 32767 bytes; shorten them"
            )
        options = store.options
        return Refusal(
            ErrorCode.TOO_LARGE,
            f"the message is illegal: topic at most 127 bytes, body at most {options.message_bytes_max} bytes "
            f"(store.message_size_max), and a block must fit into one log file of "
            f"{options.commit_log_file_size} bytes (store.commit_log_file_size); make it smaller",
        )


def not_master(fence: Fence, reason: str, response_code: int | None = None) -> Refusal:
    """Return the refusal of a message or change while the fence is closed: nothing was stored or changed."""
    text = f"{reason}; send to the master, which the route names shortly"
    return Refusal(ErrorCode.NOT_MASTER, text, response_code=response_code, ext=fence.who_may_lead())


def malformed(error: RecordMalformed, counters: Counters) -> Refusal:
    """Count and return the refusal for an invalid block."""
    reason = str(error)
    if isinstance(error, RecordTooLarge):
        counters.rejected["too_large"] += 1
        return Refusal(ErrorCode.TOO_LARGE, f"{reason}; nothing of the block was stored")
    if "BODYCRC" in reason:
        counters.rejected["bad_crc"] += 1
        return Refusal(ErrorCode.MALFORMED, f"{reason}; encode the block again")
    counters.rejected["malformed"] += 1
    return Refusal(ErrorCode.MALFORMED, f"{reason}; nothing of the block was stored")
