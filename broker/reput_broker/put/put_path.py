"""The services between an append and its acknowledgement: lock, appender, flush, commit and dispatch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.pull.long_polling import PullRequestHoldService
from reput_broker.put.appender import Appender
from reput_broker.put.fence import Fence
from reput_broker.put.flush_service import CommitRealTimeService, FlushCommitLogService
from reput_broker.put.own_puts import OwnPuts
from reput_broker.put.progress import LogProgress, do_nothing
from reput_broker.put.put_lock import PutLock
from reput_broker.put.reput_service import ReputMessageService
from reput_broker.put.store_tasks import AllocateService, StoreTasks
from reput_broker.remoting.request import Confirmed, PutAck
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import AckLevel


class PutPath:
    """The services of the log of one broker.

    Args:
        hold: answers waiting pulls after each dispatch.
        on_failure: called with the reason when nothing can be stored any more.
        fence: of this tenure.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        hold: PullRequestHoldService,
        counters: Counters,
        on_failure: Callable[[str], None],
        fence: Fence,
    ) -> None:
        self.fence = fence
        self.lock = PutLock(fence, config.store)
        self.allocate = AllocateService(store)
        self.progress = progress = LogProgress(store, config, counters)
        self.reput = ReputMessageService(store, progress.dispatched)
        self.flush = FlushCommitLogService(store, config.store, counters, progress, on_failure)
        self.commit: CommitRealTimeService | None = None
        self.store_tasks = StoreTasks(store, config.store, counters)
        progress.dispatched.follow(hold.answer_ready)
        is_sync = config.store.flush == "sync"
        self.wrote: Callable[[], None] = self.flush.want if is_sync else self.reput.wake
        """Called after the broker has appended messages of its own."""
        if progress.has_pool:
            self.commit = CommitRealTimeService(store, config.store, progress, on_failure)
            if not is_sync:
                progress.committed.follow(self.reput.catch_up)
            progress.committed.follow(self.flush.committed)
            progress.replicated.want = progress.confirmed.want = self.commit.want
            self.wrote = do_nothing
        elif is_sync:
            progress.replicated.want = progress.confirmed.want = self.flush.want
        # Under SYNC_FLUSH the flush dispatches, because readers see only what is flushed; with a pool, the commit does.
        put_dispatches = not is_sync and not progress.has_pool
        self.dispatch_put_by = self.reput.dispatch_put_by if put_dispatches else None
        # A slave reports first: its master waits for that, and its own consumers can wait a moment. A master answers
        # first: the step overlaps with the putters' next requests, and a read dispatches what was acknowledged before.
        dispatch_flushed = self.reput.wake if store.options.is_replica else self.reput.catch_up
        progress.flushed.follow(dispatch_flushed, after_answers=True)
        progress.confirmed.follow(dispatch_flushed, after_answers=True)
        self.appender = Appender(
            store, self.lock, fence, progress, counters, self.reput.wake if put_dispatches else do_nothing
        )
        self.local_ack = AckLevel.FLUSHED if is_sync else AckLevel.PAGE_CACHE
        self._ha = config.ha
        self._elects = config.election.is_on
        self.own = OwnPuts(store, self.lock, fence, self.wrote)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (
            *(() if self.commit is None else (self.commit.run,)),
            self.reput.run,
            self.flush.run,
            self.progress.expire,
            self.allocate.run,
            self.allocate.unlock_full_files,
            self.store_tasks.flush_queues,
            self.store_tasks.complete_index,
            self.store_tasks.write_checkpoints,
            self.store_tasks.watch_directories,
        )

    def default_ack(self) -> AckLevel:
        """Return the ack level of requests that name none."""
        if self._ha.role == "SYNC_MASTER" and self._ha.in_sync_replicas > 1:
            return AckLevel.REPLICATED
        return self.local_ack

    def ack_of_returned(self, ack: AckLevel) -> PutAck:
        """Return the level for a message that a consumer returns, if `ack` was asked or is the default.

        The consumer continues behind the message. So, in a group with an election, it is answered once no failover
        takes it back, however few members are in sync.
        """
        return Confirmed.CONFIRMED if self._elects and ack is not AckLevel.REPLICATED else ack
