"""What tests look at inside a broker and its store: the private names that they reach for are here."""

from __future__ import annotations

from typing import Any

from reput_broker import Broker
from reput_broker.compose.master import MasterParts
from reput_broker.compose.running_tenure import SlaveParts
from reput_broker.compose.storage import Storage
from reput_broker.ha.election.elector import Elector
from reput_broker.staging.committer import Committer
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.message_store import MessageStore
from reput_broker.store.queue.consume_queue import ConsumeQueue


def storage_of(broker: Broker) -> Storage:
    """The store, the tables and what belongs to them; of a broker of any role."""
    return broker._storage


def parts_of(broker: Broker) -> MasterParts:
    """What serves requests in a master."""
    return broker._parts


def slave_parts_of(broker: Broker) -> SlaveParts:
    """What serves requests in a slave."""
    assert broker._running is not None
    assert isinstance(broker._running.parts, SlaveParts)
    return broker._running.parts


def committer_of(broker: Broker) -> Committer:
    """What publishes staged batches."""
    return parts_of(broker).staging._committer


def elector_of(broker: Broker) -> Elector:
    """What decides the role of a broker with election."""
    assert broker._base.elector is not None
    return broker._base.elector


def status_of(broker: Broker, section: str) -> Any:
    """A section of the page /status, without an HTTP port."""
    return broker._status()[section]


def log_of(store: MessageStore) -> CommitLog:
    """The commit log."""
    return store._log


def queue_of(store: MessageStore, topic: str, queue_id: int) -> ConsumeQueue:
    """A consume queue that exists."""
    queue = store._queues.get((topic, queue_id))
    assert queue is not None
    return queue
