"""The parts of a store that is not open yet."""

from __future__ import annotations

from typing import NamedTuple

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.deleted_topics import DeletedTopics
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.opening.abort_marker import AbortMarker
from reput_broker.store.opening.lock import DirectoryLock
from reput_broker.store.queue.table import ConsumeQueueTable


class StoreParts(NamedTuple):
    """Built before the recovery, which reads and repairs them; an open store keeps them."""

    options: StoreOptions
    lock: DirectoryLock
    """Reserved; acquired before anything is changed."""
    log: CommitLog
    queues: ConsumeQueueTable
    checkpoint: StoreCheckpoint
    deleted: DeletedTopics
    abort: AbortMarker
    key_index: IndexService | None
    """None if no index is kept: files in its directory are left alone."""
