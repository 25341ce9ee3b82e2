"""How many copies of the log there are: without an election any slaves count (RocketMQ: inSyncReplicas), in a group
with an election those of the in-sync set, all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.ha.election.in_sync_set import InSyncSet
from reput_broker.ha.replication_lag import copies_among
from reput_broker.ha.service import HAService
from reput_broker.put.progress import LogProgress, Replica, Replicas


class Copies(Replicas):
    """The copies that the slaves of one master have."""

    def __init__(self, service: HAService, progress: LogProgress, config: BrokerConfig) -> None:
        self._service = service
        self._progress = progress
        self._config = config.ha
        self._is_sync = config.store.flush == "sync"

    @override
    def moved(self) -> None:
        needed, progress = self._config.copies_if_replicated - 1, self._progress
        acked = sorted([slave.acked_offset for slave in copies_among(self._service.slaves)], reverse=True)
        if len(acked) < needed:
            return
        position = acked[needed - 1]
        progress.replicated.advance(min(position, progress.flushed.offset) if self._is_sync else position)

    @override
    def acknowledged(self, slave: Replica) -> None:
        self.moved()

    @override
    def refusal(self) -> str | None:
        needed, slaves = self._config.copies_if_replicated - 1, copies_among(self._service.slaves)
        low = self._progress.committed.offset - self._config.max_gap_not_in_sync
        in_sync = sum([slave.acked_offset >= low for slave in slaves])
        if in_sync >= needed:
            return None
        text = f"slaves in sync: {in_sync}, needed: {needed}, connected: {len(slaves)}"
        return f"{text}; start them, lower ha.in_sync_replicas, or ask for flushed or page_cache"


class GroupCopies(Replicas):
    """Reports the log and its copies to the in-sync set, and how far they are replicated and confirmed.

    Consumers see only what is confirmed, since another master may not have the rest.

    Args:
        clock: that of the elector.
    """

    def __init__(
        self, in_sync: InSyncSet, progress: LogProgress, config: BrokerConfig, clock: Callable[[], float]
    ) -> None:
        self._in_sync = in_sync
        self._progress = progress
        self._config = config.ha
        self._clock = clock
        self._own = progress.flushed if config.store.flush == "sync" else progress.committed
        progress.confirm(in_sync.confirm)
        progress.committed.follow(self.moved)

    @override
    def refusal(self) -> str | None:
        needed, members = self._config.copies_if_replicated, self._in_sync.recorded
        if len(members) >= needed:
            return None
        text = f"it takes {needed} members in sync, this master included, and in sync are {sorted(members)}"
        return f"{text}; start the others, lower ha.in_sync_replicas, or ask for flushed or page_cache"

    @override
    def acknowledged(self, slave: Replica) -> None:
        if slave.member is not None:  # one of RocketMQ is no member, and does not count
            self._in_sync.acknowledged(slave.member, slave.acked_offset, self._clock())
            self.moved()

    @override
    def gone(self, slave: Replica) -> None:
        if slave.member is not None:
            self._in_sync.disconnected(slave.member, self._clock())

    @override
    def moved(self) -> None:
        """Note that the log was committed or flushed further, or that the set has changed."""
        progress, in_sync = self._progress, self._in_sync
        in_sync.own(progress.committed.offset, self._own.offset)
        progress.confirm(in_sync.confirm)
        # A set that has shrunk confirms for consumers, but a put that waits for copies still needs them.
        if len(in_sync.recorded) >= self._config.copies_if_replicated:
            progress.replicated.advance(in_sync.confirm)
