"""What a broker knows of consumer groups besides its tables: members, locks, resets, progress, lag, health.

`GroupAccess` finds the consumer group that a request names, and refuses what it may not do. `GroupsHealth` says whether
groups consume as they should.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final, NamedTuple

import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import Requesters
from reput_broker.groups.consumer_groups import ConsumerGroup, ConsumerGroups, GroupReaders
from reput_broker.groups.lag import GroupPositions, GroupProgress, LagService, StoreTimes
from reput_broker.groups.membership import GroupNotifier, Membership
from reput_broker.groups.offset_updates import OffsetCommits, PendingResets
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client, Refusal
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.tables import Tables
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.group import SubscriptionData, SubscriptionGroupConfig
from reput_protocol.commands.group_description import GroupHealth, HealthState
from reput_protocol.errors import ErrorCode
from reput_protocol.names import BROKERS_GROUPS, is_own_group
from reput_protocol.printable import counted

_GROUPS_A_TURN: Final = 32

Offsets = Mapping[str, Mapping[int, int]]
"""Topic -> queue id -> offset of the next message."""


class Waiting(NamedTuple):
    """Messages that a group has not finished in a queue.

    `stored_ms` is the store time of the oldest, `seen_ms` since when it is the oldest as far as is known; None before
    it was looked up.
    """

    topic: str
    queue_id: int
    position: int
    lag: int
    stored_ms: int | None
    seen_ms: int | None


class GroupsHealth:
    """Decides the states.

    Args:
        state: what is known of the groups: their members, where they are, and who has which queue.
        options: the limits; they may change.
        settings: of the groups.
        broker_name: of this broker.
        clock_ms: the time of day.
    """

    def __init__(
        self,
        state: GroupState,
        options: GroupsConfig,
        store: MessageStore,
        settings: SubscriptionGroupManager,
        *,
        broker_name: str,
        clock_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._options = options
        self._store = store
        self._settings = settings
        self._broker_name = broker_name
        self._clock_ms = clock_ms
        self._began_ms = clock_ms()
        self._many_since_ms: dict[str, dict[str, int]] = {}
        """By group and topic: since when more messages wait than `behind_messages`."""
        self.is_slave = False
        """Whether the broker is a slave: consumers are connected to its master, which decides."""
        self.states: dict[str, HealthState] = {}
        """The states of the groups with offsets or members at the last refresh."""

    async def refresh(self) -> None:
        """Decide the state of every group with an offset or a member."""
        groups: dict[str, dict[str, Mapping[int, int]]] = {group.name: {} for group in self._state.online}
        for group, topic, queues in self._state.positions.items():
            groups.setdefault(group, {})[topic] = queues
        states = {}
        for number, (group, offsets) in enumerate(groups.items()):
            if number % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            states[group] = self.of(group, self.waiting(group, offsets))[0].state
        self.states = states

    def of(self, group: str, waiting: list[Waiting]) -> list[GroupHealth]:
        """Return all that is wrong with a group, the gravest first; if nothing is, only that.

        Args:
            group: its name.
            waiting: what `waiting` returns of it.
        """
        if self.is_slave:
            return [self._health(HealthState.UNKNOWN, "this broker is a slave; its master decides", -1)]
        found = [] if is_own_group(group) else list(self._problems(group, waiting))
        return found or [self._health(HealthState.OK, self._why_well(group), -1)]

    def holders(self, group: str) -> Callable[[str, int], str]:
        """Return a function of topic and queue id: the client id of the member that has the queue's lock, or pulled
        from it last; "" if there is none.
        """
        members = {member.client.peer: member.client_id for member in self._state.online.members(group)}

        def holder(topic: str, queue_id: int) -> str:
            progress = self._state.progress.get(group, topic, queue_id)
            pulled = "" if progress is None else members.get(progress.peer, "")
            return self._state.locks.owner(group, (topic, queue_id)) or pulled

        return holder

    def waiting(self, group: str, offsets: Offsets) -> list[Waiting]:
        """Return the queues with messages that a group has not finished."""
        store, oldest = self._store, self._state.lag.figures.oldest
        found = []
        for topic, queues in offsets.items():
            for queue_id, offset in queues.items():
                position = max(offset, store.min_offset_in_queue(topic, queue_id))
                lag = store.max_offset_in_queue(topic, queue_id) - position
                if lag <= 0:
                    continue
                known = oldest.get((group, topic, queue_id))
                if known is None or known.offset != position:
                    found.append(Waiting(topic, queue_id, position, lag, None, None))
                else:
                    stored_ms, seen_ms = known.store_timestamp_ms, known.seen_ms
                    found.append(Waiting(topic, queue_id, position, lag, stored_ms, seen_ms))
        return found

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        self.states.pop(group, None)
        self._many_since_ms.pop(group, None)

    # The states

    def _problems(self, group: str, waiting: list[Waiting]) -> Iterator[GroupHealth]:
        now_ms, online = self._clock_ms(), self._state.online.get(group)
        disagreement = None if online is None else online.disagreement(now_ms)
        if disagreement is not None:
            one, other = disagreement.client_id, disagreement.other_client_id
            yield self._health(
                HealthState.CONFLICTING,
                f"member {one} wants {disagreement.wanted}, and {other} wants {disagreement.other_wanted}",
                disagreement.since_ms,
                client_id=one,
            )
        if online is not None:
            yield from self._stuck(group, online, waiting, now_ms)
        elif waiting and not self._is_consumed(group):
            yield self._empty(group, waiting)
            return
        yield from self._behind(group, waiting, now_ms)

    def _is_consumed(self, group: str) -> bool:
        """Whether a group without members is consumed nevertheless, or its members are still coming."""
        # The connection of a member that has left may be open for a while.
        left_ms = self._state.online.offline_since_ms.get(group, 0)
        return bool(self._state.membership.awaited.of(group)) or self._state.readers.is_read(group, left_ms)

    def _empty(self, group: str, waiting: list[Waiting]) -> GroupHealth:
        left_ms = max(
            self._began_ms,
            self._state.online.offline_since_ms.get(group, 0),
            self._state.readers.last_asked_ms.get(group, 0),
        )
        stored_ms = min((one.stored_ms for one in waiting if one.stored_ms is not None), default=0)
        lag = sum(one.lag for one in waiting)
        return self._health(
            HealthState.EMPTY,
            f"{_wait(lag)}, and no member is online" + self._if_disabled(group),
            max(left_ms, stored_ms),
        )

    def _stuck(self, group: str, online: ConsumerGroup, waiting: list[Waiting], now_ms: int) -> Iterator[GroupHealth]:
        stuck = sorted(
            (max(one.seen_ms, online.since_ms), one)
            for one in waiting
            if one.seen_ms is not None and now_ms - max(one.seen_ms, online.since_ms) > 1000 * self._options.stuck_after
        )
        if not stuck:
            return
        since_ms, first = stuck[0]
        holder = self.holders(group)(first.topic, first.queue_id)
        place = f"{first.topic}-{first.queue_id}"
        if holder:
            progress = self._state.progress.get(group, first.topic, first.queue_id)
            in_flight = 0 if progress is None else max(0, progress.pull_offset - first.position)
            reason = (
                f"member {holder} does not finish offset {first.position} of queue {place}: {_wait(first.lag)}, "
                f"{in_flight} in flight"
            )
        else:
            reason = f"no member has queue {place}, where {_wait(first.lag)}"
        if len(stuck) > 1:
            reason += f"; {counted(len(stuck) - 1, 'more queue')} likewise"
        yield self._health(
            HealthState.STUCK,
            reason + self._if_disabled(group),
            since_ms,
            client_id=holder,
            topic=first.topic,
            queue_id=first.queue_id,
        )

    def _behind(self, group: str, waiting: list[Waiting], now_ms: int) -> Iterator[GroupHealth]:
        by_topic: dict[str, list[Waiting]] = {}
        for one in waiting:
            by_topic.setdefault(one.topic, []).append(one)
        lags = {topic: sum(one.lag for one in queues) for topic, queues in by_topic.items()}
        many = self._many_since(group, [topic for topic in lags if lags[topic] > self._options.behind_messages], now_ms)
        found = []
        for topic, queues in by_topic.items():
            since_ms = [many[topic]] if topic in many else []
            oldest = min((one for one in queues if one.stored_ms is not None), key=_stored, default=None)
            late_ms = 0 if oldest is None else _stored(oldest) + round(1000 * self._options.behind_age)
            if oldest is not None and now_ms > late_ms:
                since_ms.append(late_ms)
            if since_ms:
                most = max(queues, key=lambda one: one.lag)
                found.append((lags[topic], topic, min(since_ms), oldest or most))
        if not found:
            return
        lag, topic, begun_ms, queue = max(found, key=lambda one: one[0])
        more = f"; {counted(len(found) - 1, 'more topic')} likewise" if len(found) > 1 else ""
        yield self._health(
            HealthState.BEHIND,
            f"{_wait(lag)} in {topic}, the oldest in queue {queue.queue_id}{more}" + self._if_disabled(group),
            begun_ms,
            client_id=self.holders(group)(topic, queue.queue_id),
            topic=topic,
            queue_id=queue.queue_id,
        )

    def _many_since(self, group: str, topics: list[str], now_ms: int) -> Mapping[str, int]:
        """Return since when more messages wait in these topics than may; in the group's others it is so no more."""
        before = self._many_since_ms.pop(group, {})
        found = {topic: before.get(topic, now_ms) for topic in topics}
        if found:
            self._many_since_ms[group] = found
        return found

    def _why_well(self, group: str) -> str:
        """Return what is particular about a group that is well."""
        if is_own_group(group):
            return "a group of Reput's tools or the system, which is never a fault"
        if self._settings.get(group) is None:
            return "the group has no settings, only offsets or members"
        return self._if_disabled(group).removeprefix("; ")

    def _if_disabled(self, group: str) -> str:
        settings = self._settings.get(group)
        return "" if settings is None or settings.consume_enable else "; the group may not consume"

    def _health(
        self,
        state: HealthState,
        reason: str,
        since_ms: int,
        *,
        client_id: str = "",
        topic: str = "",
        queue_id: int = -1,
    ) -> GroupHealth:
        return GroupHealth(state, reason, since_ms, client_id, topic, queue_id, self._broker_name)


def _stored(one: Waiting) -> int:
    return one.stored_ms or 0


def _wait(lag: int) -> str:
    return f"{counted(lag, 'message')} {'waits' if lag == 1 else 'wait'}"


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
        ErrorCode.NO_PERMISSION, f"group {group!r} may not consume: an administrator has disabled it (consumeEnable)"
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
        self.membership = Membership(options, counters, self.online, self.notifier, self.locks, on_filters=on_filters)
        self.requesters = Requesters(self.membership.clients)
        self.resets = PendingResets()
        self.progress = GroupProgress()
        self.commits = OffsetCommits(tables.offsets, self.resets, self.progress, counters, on_commit, clock_ms)
        self.times = StoreTimes(store)
        self.readers = GroupReaders(clock_ms)
        self.positions = GroupPositions(tables.offsets, self.progress, self.online)
        self.lag = LagService(store, self.positions, self.times, clock_ms=clock_ms)
        self.health = GroupsHealth(self, options, store, tables.groups, broker_name=broker_name, clock_ms=clock_ms)

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
