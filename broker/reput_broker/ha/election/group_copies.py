"""The copies of a master's log in a group with an election: those of the in-sync set, all of it."""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.config.sections import HAConfig
from reput_broker.ha.connection import HAConnection
from reput_broker.ha.election.in_sync_set import InSyncSet
from reput_broker.store.message_store import MessageStore


class GroupCopies:
    """Reports the log and its copies to the in-sync set, and the confirm offset to the store.

    Consumers see only what is confirmed, since another master may not have the rest.

    Args:
        clock: that of the elector.
        is_sync: whether this broker's own copy counts only once it is synced.
        on_confirmed: called after the confirm offset has moved.
    """

    def __init__(
        self,
        in_sync: InSyncSet,
        store: MessageStore,
        config: HAConfig,
        clock: Callable[[], float],
        *,
        is_sync: bool,
        on_confirmed: Callable[[], None],
    ) -> None:
        self._in_sync = in_sync
        self._store = store
        self._config = config
        self._clock = clock
        self._is_sync = is_sync
        self._on_confirmed = on_confirmed
        self.position = 0
        """Everything before this log offset is on all members of the set, and those were enough."""
        store.confirm_offset = in_sync.confirm

    def refusal(self) -> str | None:
        """Return why a put would not be replicated now; None if it would."""
        needed, members = self._config.copies_if_replicated, self._in_sync.recorded
        if len(members) >= needed:
            return None
        text = f"it takes {needed} members in sync, this master included, and in sync are {sorted(members)}"
        return f"{text}; start the others, lower ha.in_sync_replicas, or ask for flushed or page_cache"

    def acknowledged(self, slave: HAConnection) -> None:
        """Take a report of a slave. A slave that is no member, such as one of RocketMQ, does not count."""
        if slave.member is not None:
            self._in_sync.acknowledged(slave.member, slave.acked_offset, self._clock())
            self.moved()

    def gone(self, slave: HAConnection) -> None:
        """Note that a slave's connection has ended."""
        if slave.member is not None:
            self._in_sync.disconnected(slave.member, self._clock())

    def moved(self) -> None:
        """Note that the log has grown, was flushed, or that the set has changed."""
        store, in_sync = self._store, self._in_sync
        end = store.max_physical_offset
        in_sync.own(end, store.flushed_offset if self._is_sync else end)
        # A set that has shrunk confirms for consumers, but a put that waits for copies still needs them.
        if len(in_sync.recorded) >= self._config.copies_if_replicated:
            self.position = in_sync.confirm
        if in_sync.confirm != store.confirm_offset:
            store.confirm_offset = in_sync.confirm
            self._on_confirmed()
