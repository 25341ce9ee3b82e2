"""How many copies of the log there are, without an election: any slaves count (RocketMQ: inSyncReplicas)."""

from __future__ import annotations

from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.ha.progress import copies_among
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
