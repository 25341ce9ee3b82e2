"""What a broker knows of consumer groups besides its tables: members, locks, resets, progress, lag, health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import Requesters
from reput_broker.groups.consumer_groups import ConsumerGroups, GroupReaders
from reput_broker.groups.health import GroupFacts, GroupsHealth
from reput_broker.groups.lag import GroupPositions, GroupProgress, LagService, StoreTimes
from reput_broker.groups.membership import GroupNotifier, Membership
from reput_broker.groups.offset_updates import OffsetCommits, PendingResets
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.tables import Tables


class GroupState:
    """The current state of the consumer groups; what must survive a restart is in the tables.

    Args:
        on_commit: called after each commit of an offset.
        on_filters: called with a group whose members have another filter for one of its topics now.
        broker_name: of this broker.
        clock_ms: the time of day.
    """

    def __init__(
        self,
        options: GroupsConfig,
        counters: Counters,
        store: MessageStore,
        tables: Tables,
        *,
        on_commit: Callable[[], None],
        on_filters: Callable[[str], None],
        broker_name: str,
        clock_ms: Callable[[], int],
    ) -> None:
        self._counters = counters
        self._options = options
        self._forgetting: list[Callable[..., None]] = []
        self.online = ConsumerGroups(clock_ms)
        self.locks = QueueLocks(options, trio.current_time)
        self.notifier = GroupNotifier(self.online, tables.groups, options)
        self.membership = Membership(
            options, counters, self.online, self.notifier, self.locks, on_filters=on_filters
        )
        self.requesters = Requesters(self.membership.clients)
        self.resets = PendingResets()
        self.progress = GroupProgress()
        self.commits = OffsetCommits(
            tables.offsets, self.resets, self.progress, counters, on_commit, clock_ms
        )
        self.times = StoreTimes(store)
        self.readers = GroupReaders(clock_ms)
        self.positions = GroupPositions(tables.offsets, self.progress, self.online)
        self.lag = LagService(store, self.positions, self.times, clock_ms=clock_ms)
        self.health = GroupsHealth(
            options,
            store,
            tables.groups,
            GroupFacts(
                self.online,
                self.membership.awaited,
                self.readers,
                self.positions,
                self.progress,
                self.locks,
                self.lag.figures,
            ),
            broker_name=broker_name,
            clock_ms=clock_ms,
        )

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks, which run until the broker stops."""
        return (self.notifier.run, self.membership.run, self._look_after)

    async def _look_after(self) -> None:
        """Look up ages and decide states at intervals, until cancelled."""
        while True:
            self.readers.expire()
            await self.lag.refresh()
            await self.health.refresh()
            await trio.sleep(self._options.lag_refresh_interval)

    def client_gone(self, client: Client) -> None:
        """Forget a closed connection."""
        self.membership.gone(client)
        self.readers.gone(client.peer)

    def when_forgotten(self, call: Callable[..., None]) -> None:
        """Call `call` with `topic=` or `group=` when one was deleted."""
        self._forgetting.append(call)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic, except its offsets."""
        for call in self._forgetting:
            call(topic=topic)
        self.resets.forget_topic(topic)
        self.progress.forget_topic(topic)
        self.locks.forget_topic(topic)
        self.lag.figures.forget_topic(topic)
        self._counters.forget_topic(topic)

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        for call in self._forgetting:
            call(group=group)
        self.resets.forget_group(group)
        self.progress.forget_group(group)
        self.locks.forget_group(group)
        self.membership.awaited.forget_group(group)
        self.lag.figures.forget_group(group)
        self.online.forget_group(group)
        self.readers.forget_group(group)
        self.health.forget_group(group)
        self._counters.forget_group(group)
