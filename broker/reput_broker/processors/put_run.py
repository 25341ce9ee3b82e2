"""Runs of native puts: what a producer with many sends in flight brings in one read, stored and answered together.

Only what is right in every respect is taken here; whatever is not, goes through `SendProcessor` one by one and is
judged there. Each put is still one of its own: stored whole, with its own answer, in the order in which they came.
"""

from __future__ import annotations

import time

from reput_broker.counters import Counters
from reput_broker.flush_service import FlushCommitLogService
from reput_broker.pending_puts import PendingRun
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.put_lock import PutLock
from reput_broker.request import PutRun
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError
from reput_protocol.put_frames import encode_put_answer
from reput_protocol.record_batch import BLOCK_BYTES_MAX


class PutRunProcessor:
    """Stores runs of puts."""

    def __init__(
        self,
        store: MessageStore,
        access: TopicAccess,
        lock: PutLock,
        flush: FlushCommitLogService,
        counters: Counters,
    ) -> None:
        self._store = store
        self._access = access
        self._lock = lock
        self._flush = flush
        self._counters = counters
        self._store_host = str(store.options.host)
        self._page_cache_seconds = counters.produce_seconds[AckLevel.PAGE_CACHE]

    def put_run(self, run: PutRun) -> bool:
        """Store all blocks of the run with one append, or none of them and return False."""
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
        run.blocks.clear()  # they are in the log; a run that waits for the disk need not keep them
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
        if ack is AckLevel.FLUSHED:
            self._flush.answer_when_flushed(
                stored.end_offset, PendingRun(run, frames, stored, host, messages)
            )
        else:
            self._flush.wrote()
            self._page_cache_seconds.observe(time.monotonic() - run.received_at, run.count)
            run.client.answer_run(run, frames)
        return True

    def _is_welcome(self, run: PutRun) -> bool:
        """Whether nothing that does not depend on the records is in the way of the run."""
        if self._lock.is_held or run.ack is AckLevel.REPLICATED:
            return False
        if max(map(len, run.blocks)) > BLOCK_BYTES_MAX:
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
