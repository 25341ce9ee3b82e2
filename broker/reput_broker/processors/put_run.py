"""Runs of native puts: what a producer with many sends in flight brings in one read, stored and answered together.

Only what is right in every respect is taken here; whatever is not, goes through `SendProcessor` one by one and is
judged there. Each put is still one of its own: stored whole, with its own answer, in the order in which they came.
"""

from __future__ import annotations

import time

from reput_broker.commit_service import CommitRealTimeService
from reput_broker.counters import Counters
from reput_broker.flush_service import FlushCommitLogService
from reput_broker.pending_puts import PendingRun
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.put_lock import PutLock
from reput_broker.request import PutRun
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import RunResult
from reput_broker.store.status import PutStatus
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError
from reput_protocol.put_block import BLOCK_BYTES_MAX
from reput_protocol.put_frames import encode_put_answer


class PutRunProcessor:
    """Stores runs of puts."""

    def __init__(
        self,
        store: MessageStore,
        access: TopicAccess,
        lock: PutLock,
        flush: FlushCommitLogService,
        counters: Counters,
        commit: CommitRealTimeService | None = None,
    ) -> None:
        self._store = store
        self._access = access
        self._lock = lock
        self._flush = flush
        self._commit = commit
        self._counters = counters
        self._store_host = str(store.options.host)
        self._page_cache_seconds = counters.produce_seconds[AckLevel.PAGE_CACHE]

    def put_run(self, run: PutRun) -> bool:
        """Store all blocks of the run with one append, or none of them and return False."""
        if run.count == 1:
            return self._put_one(run)
        if not self._is_welcome(run):
            return False
        lock = self._lock
        lock.acquire_nowait()
        try:
            stored = self._store.put_run(run.headers, run.blocks, run.client.born_host)
        except ReputError:
            return False  # nothing was stored; each put is told why
        finally:
            lock.release()
        if stored is None:
            return False
        messages = self._count(run)
        host, ack, stored_at = self._store_host, run.ack, stored.store_timestamp_ms
        frames = b"".join(
            [
                encode_put_answer(
                    opaque, header.queue_id, queue_offset, physical_offset, stored_at, host, ack
                )
                for opaque, header, queue_offset, physical_offset in zip(
                    run.opaques, run.headers, stored.queue_offsets, stored.physical_offsets, strict=True
                )
            ]
        )
        self._finish(run, frames, stored, messages)
        return True

    def _put_one(self, run: PutRun) -> bool:
        """Do the same for a run of one, which is what a producer with one send in flight sends: no lists, no loops."""
        header, block = run.headers[0], run.blocks[0]
        store, lock, size = self._store, self._lock, len(block)
        if (
            lock.is_held
            or header.dedup is not None
            or run.ack is AckLevel.REPLICATED
            or size > BLOCK_BYTES_MAX
            or not store.is_writable
            or store.needs_new_file(size)
            or not self._access.may_write(header.topic, header.queue_id)
        ):
            return False
        lock.acquire_nowait()
        try:
            stored = store.put_block(
                bytearray(block),
                topic=header.topic,
                queue_id=header.queue_id,
                count=header.count,
                born_host=run.client.born_host,
            )
        except ReputError:
            return False  # nothing was stored; the put is told why
        finally:
            lock.release()
        if stored.status is not PutStatus.PUT_OK:
            return False
        self._counters.topic(header.topic).count_in(header.count, size)
        frame = encode_put_answer(
            run.opaques[0],
            header.queue_id,
            stored.queue_offset,
            stored.physical_offset,
            stored.store_timestamp_ms,
            self._store_host,
            run.ack,
        )
        if run.ack is AckLevel.FLUSHED or self._commit is not None:
            places = RunResult(
                [stored.queue_offset], [stored.physical_offset], stored.end_offset, stored.store_timestamp_ms
            )
            self._finish(run, frame, places, header.count)
        else:
            self._answer_now(run, frame)
        return True

    def _finish(self, run: PutRun, frames: bytes, stored: RunResult, messages: int) -> None:
        run.blocks.clear()  # they are in the log; a run that waits for the disk need not keep them
        if run.ack is AckLevel.FLUSHED:
            self._flush.answer_when_flushed(
                stored.end_offset, PendingRun(run, frames, stored, self._store_host, messages)
            )
        elif self._commit is not None:
            self._commit.answer_when_committed(
                stored.end_offset, PendingRun(run, frames, stored, self._store_host, messages)
            )
        else:
            self._answer_now(run, frames)

    def _answer_now(self, run: PutRun, frames: bytes) -> None:
        self._flush.wrote()
        self._page_cache_seconds.observe(time.monotonic() - run.received_at, run.count)
        run.client.answer_run(run, frames)

    def _is_welcome(self, run: PutRun) -> bool:
        """Whether nothing that does not depend on the records is in the way of the run."""
        if self._lock.is_held or run.ack is AckLevel.REPLICATED:
            return False
        if max(map(len, run.blocks)) > BLOCK_BYTES_MAX:
            return False
        if any(header.dedup for header in run.headers):
            return False
        may_write = self._access.may_write
        wanted = {(header.topic, header.queue_id) for header in run.headers}
        return all(may_write(topic, queue_id) for topic, queue_id in wanted)

    def _count(self, run: PutRun) -> int:
        """Count the run into its topics; return how many messages it brought."""
        messages = 0
        traffic, last = None, None
        for header, block in zip(run.headers, run.blocks, strict=True):
            if traffic is None or header.topic != last:
                last = header.topic
                traffic = self._counters.topic(last)
            traffic.count_in(header.count, len(block))
            messages += header.count
        return messages
