"""What a broker knows of consumer groups besides its tables: members, locks, resets, progress, lag, health.

`GroupAccess` finds the consumer group that a request names, and refuses what it may not do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import Requesters
from reput_broker.groups.consumer_groups import ConsumerGroups, GroupReaders
from reput_broker.groups.health import GroupsHealth
from reput_broker.groups.lag import GroupPositions, GroupProgress, LagService, StoreTimes
from reput_broker.groups.membership import GroupNotifier, Membership
from reput_broker.groups.offset_updates import OffsetCommits, PendingResets
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client, Refusal
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.tables import Tables
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.group import SubscriptionData, SubscriptionGroupConfig
from reput_protocol.errors import ErrorCode
from reput_protocol.names import BROKERS_GROUPS

_NOT_SUBSCRIBED = int(ResponseCode.SUBSCRIPTION_NOT_EXIST)


class GroupAccess:
    """Checks the groups of requests that consume."""

    def __init__(self, tables: Tables, groups: ConsumerGroups) -> None:
        self._tables = tables
        self._settings = tables.groups
        self._groups = groups
        self._created: set[str] = set()
        """Groups created at first use that may not be on disk yet."""

    def find_or_create(self, group: str) -> SubscriptionGroupConfig:
        """Return a group, created at first use if that is allowed. A new one is saved in the background.

        Raises:
            Refusal: NO_GROUP; NO_PERMISSION for a group of the broker.
            InvalidName: the name is not legal.
        """
        check_not_brokers(group)
        config = self._settings.get(group)
        if config is None:
            config = self._settings.find_or_create(group)
            if config is None:
                raise no_group(group)
            self._created.add(group)
            self._tables.groups_soon.changed()
        return config

    async def save_if_new(self, group: str) -> None:
        """Return once a group that was created at first use is on disk.

        Raises:
            OSError, ReputError: it cannot be saved.
        """
        if group in self._created:
            saved = set(self._created)
            await self._tables.group_saver.save()
            self._created -= saved

    def settings_of(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group, or None if it does not exist."""
        return self._settings.get(group)

    def consuming(self, group: str) -> SubscriptionGroupConfig:
        """Return a group that may consume; see `find_or_create`.

        Raises:
            Refusal: NO_GROUP, or NO_PERMISSION if consuming is disabled for it.
        """
        config = self.find_or_create(group)
        if not config.consume_enable:
            raise _disabled(group)
        return config

    def check_still_consuming(self, group: str) -> None:
        """Refuse as `consuming`, but create nothing: for a request that the group made earlier."""
        if not self.existing(group).consume_enable:
            raise _disabled(group)

    def existing(self, group: str) -> SubscriptionGroupConfig:
        """Return the group, or refuse with NO_GROUP; a group of the broker with NO_PERMISSION."""
        check_not_brokers(group)
        config = self._settings.get(group)
        if config is None:
            raise no_group(group)
        return config

    def check_readable(self, group: str, topic: str) -> None:
        """Refuse with NO_PERMISSION if an administrator has forbidden the group to read the topic."""
        if not self._settings.may_read(group, topic):
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                f"group {group!r} is forbidden to read topic {topic!r}; ask an administrator to allow it",
            )

    def subscribed(self, group: str, topic: str) -> SubscriptionData | None:
        """Return a group's subscription to a topic, None if it is not online or does not subscribe to it."""
        return self._groups.subscription(group, topic)

    def subscription(self, config: SubscriptionGroupConfig, topic: str, sub_version: int) -> SubscriptionData:
        """Return the subscription of an online group to a topic, for a pull without a filter.

        Raises:
            Refusal: the group is not online, may not broadcast, or does not subscribe to the topic; or its subscription
                is older than the pull. A heartbeat fixes each of these but the ban on broadcasting.
        """
        group = config.group_name
        online = self._groups.get(group)
        if online is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"group {group!r} has no member here; send a heartbeat first, or a filter with each pull",
                response_code=_NOT_SUBSCRIBED,
            )
        if online.is_broadcasting and not config.consume_broadcast_enable:
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                f"group {group!r} may not broadcast (consumeBroadcastEnable); consume it as a cluster",
            )
        found = online.subscriptions.get(topic)
        if found is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"group {group!r} does not subscribe to topic {topic!r}; subscribe to it in all of its members",
                response_code=_NOT_SUBSCRIBED,
            )
        if found.sub_version < sub_version:
            raise Refusal(
                ErrorCode.SUBSCRIPTION_CONFLICT,
                f"the subscription of group {group!r} to topic {topic!r} has version {found.sub_version}, the pull "
                f"{sub_version}; send a heartbeat",
            )
        return found


def _disabled(group: str) -> Refusal:
    return Refusal(
        ErrorCode.NO_PERMISSION,
        f"group {group!r} may not consume: an administrator has disabled it (consumeEnable)",
    )


def check_not_brokers(group: str) -> None:
    """Refuse with NO_PERMISSION if the offsets of `group` are the broker's own progress."""
    if group in BROKERS_GROUPS:
        raise Refusal(
            ErrorCode.NO_PERMISSION,
            f"the offsets of group {group!r} are the broker's own progress, which no client may change; use another "
            "group",
        )


def no_group(group: str) -> Refusal:
    """Return the refusal for a group that does not exist."""
    return Refusal(ErrorCode.NO_GROUP, f"group {group!r} does not exist; create it first")


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
            self, options, store, tables.groups, broker_name=broker_name, clock_ms=clock_ms
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
