"""The state of each group: whether it is well, behind, stuck, empty or conflicting. Decided here, and nowhere else.

What clients, the console and the command line show, and the series that the alerts use, comes from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.consumer_groups import ConsumerGroup
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_protocol.commands.group_description import GroupHealth, HealthState
from reput_protocol.names import is_own_group
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from reput_broker.groups.group_state import GroupState

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

    def _stuck(
        self, group: str, online: ConsumerGroup, waiting: list[Waiting], now_ms: int
    ) -> Iterator[GroupHealth]:
        stuck = sorted(
            (max(one.seen_ms, online.since_ms), one)
            for one in waiting
            if one.seen_ms is not None
            and now_ms - max(one.seen_ms, online.since_ms) > 1000 * self._options.stuck_after
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
        many = self._many_since(
            group, [topic for topic in lags if lags[topic] > self._options.behind_messages], now_ms
        )
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
