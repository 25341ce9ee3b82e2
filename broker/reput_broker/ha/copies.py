"""How many copies of the log there are, without an election: any slaves count (RocketMQ: inSyncReplicas)."""

from __future__ import annotations

from reput_broker.config.sections import HAConfig
from reput_broker.ha.progress import copies_among
from reput_broker.ha.service import HAService
from reput_broker.store.message_store import MessageStore


class Copies:
    """The copies that the slaves of one master have.

    Args:
        is_sync: whether the master's own copy counts only once it is synced.
    """

    def __init__(self, service: HAService, store: MessageStore, config: HAConfig, *, is_sync: bool) -> None:
        self._service = service
        self._store = store
        self._config = config
        self._is_sync = is_sync

    @property
    def position(self) -> int:
        """Everything before this log offset is on as many machines as are needed."""
        needed = self._config.copies_if_replicated - 1
        acked = sorted([slave.acked_offset for slave in copies_among(self._service.slaves)], reverse=True)
        if len(acked) < needed:
            return 0
        position = acked[needed - 1]
        return min(position, self._store.flushed_offset) if self._is_sync else position

    def refusal(self) -> str | None:
        """Return why a put would not be replicated now; None if it would."""
        needed, slaves = self._config.copies_if_replicated - 1, copies_among(self._service.slaves)
        low = self._store.max_physical_offset - self._config.max_gap_not_in_sync
        in_sync = sum([slave.acked_offset >= low for slave in slaves])
        if in_sync >= needed:
            return None
        text = f"slaves in sync: {in_sync}, needed: {needed}, connected: {len(slaves)}"
        return f"{text}; start them, lower ha.in_sync_replicas, or ask for flushed or page_cache"
