"""The members and subscriptions of consumer groups (RocketMQ: ConsumerManager, ConsumerGroupInfo).

A group exists here while it has a member. All members share one table of subscriptions, as in RocketMQ: a member's
heartbeat adds its topics, removes the others, and replaces an entry if its `subVersion` is larger. What each member
asks for is also kept, to detect members that differ; equal requests share one object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reput_broker.groups.client_table import ClientChannel
from reput_protocol.codes import ConsumeFromWhere, ConsumeType, ExpressionType, MessageModel
from reput_protocol.commands.group import ConsumerData, SubscriptionData
from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.tags import TagFilter
from reput_protocol.names import RETRY_PREFIX

_SILENT_MS: Final = 600_000
"""A connection that has asked for nothing for so long consumes no more. A worker that pops asks again when it has
finished a message; the connections of a proxy stay when its clients leave."""


class MemberSubscription(NamedTuple):
    """What a member asks for, comparable: message model, and (topic, expression type, expression) by subscription.

    All members of a group must ask for the same. Not compared: the version of a subscription, the order of its tags and
    the group's retry topic, which some clients subscribe to later.
    """

    message_model: MessageModel
    filters: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, data: ConsumerData) -> MemberSubscription:
        """Return what a heartbeat asks for."""
        filters = {
            subscription.topic: (subscription.topic, *_filter_of(subscription))
            for subscription in data.subscriptions
            if not subscription.topic.startswith(RETRY_PREFIX)
        }
        return cls(data.message_model, tuple(sorted(filters.values())))

    def difference(self, other: MemberSubscription) -> tuple[str, str]:
        """Return the first difference as two texts for people: this side's and the other's."""
        if self.message_model is not other.message_model:
            return self.message_model.value, other.message_model.value
        here = {topic: expression for topic, _, expression in self.filters}
        there = {topic: expression for topic, _, expression in other.filters}
        for topic in sorted({*here, *there}):
            if here.get(topic) != there.get(topic):
                return _words(topic, here), _words(topic, there)
        topic, kind, _ = next(entry for entry in self.filters if entry not in other.filters)
        other_kind = next(name for name_topic, name, _ in other.filters if name_topic == topic)
        return f"{topic} by {kind}", f"{topic} by {other_kind}"


def _filter_of(subscription: SubscriptionData) -> tuple[str, str]:
    kind, expression = subscription.expression_type, subscription.sub_string.strip()
    if kind == ExpressionType.TAG:
        try:
            tags = TagFilter.parse(expression)
        except FilterSyntaxError:
            return kind, expression
        expression = tags.expression if tags.matches_all else " || ".join(sorted(tags.tags))
    return kind, expression


def _words(topic: str, filters: dict[str, str]) -> str:
    expression = filters.get(topic)
    return f"{topic} not at all" if expression is None else f"{topic} with {expression!r}"


ENTRY_BYTES: Final = 512
"""Approximate size of a member or subscription without its texts."""
_LISTED_BYTES: Final = 64
"""Approximate size of a tag and its hash in a list."""


def size_of(data: ConsumerData) -> int:
    """Return approximately how many bytes a member with this heartbeat takes."""
    return ENTRY_BYTES + len(data.group_name) + sum(_subscription_bytes(item) for item in data.subscriptions)


def _subscription_bytes(data: SubscriptionData) -> int:
    listed = len(data.tags_set) + len(data.code_set)
    texts = len(data.topic) + len(data.sub_string) + len(data.expression_type) + sum(map(len, data.tags_set))
    return ENTRY_BYTES + texts + _LISTED_BYTES * listed


@dataclass(eq=False, repr=False, slots=True)
class _Request:
    """What several members ask for alike."""

    wanted: MemberSubscription
    members: dict[ClientChannel, None] = field(default_factory=dict, init=False)


class Member:
    """One member of one group; `last_heartbeat` is the last one that named this group."""

    __slots__ = ("last_heartbeat", "request")

    def __init__(self, request: _Request, last_heartbeat: float) -> None:
        self.request = request
        self.last_heartbeat = last_heartbeat


class Conflict(NamedTuple):
    """A member asks for something else than another one: the other, and both requests in words."""

    other: ClientChannel
    wanted: str
    other_wanted: str


class RefusedMember(NamedTuple):
    """A client that may not join because of its subscription: since when it tries, and when it tried last."""

    since_ms: int
    tried_ms: int
    client_id: str
    conflict: Conflict


class Disagreement(NamedTuple):
    """Two clients of a group that ask for different things, in words, and since when."""

    since_ms: int
    client_id: str
    wanted: str
    other_client_id: str
    other_wanted: str


_REFUSED_MS: Final = 90_000
"""A client that was refused tries again with its next heartbeat, which RocketMQ's clients send every 30 s."""


class Joined(NamedTuple):
    """What a heartbeat changed in one group."""

    is_new: bool
    topics_changed: bool
    filters_changed: bool
    conflict: Conflict | None


class ConsumerGroup:
    """One online group.

    Its consume type, message model and start position are those of the last heartbeat of any
    member. `since_ms` is when its first member joined, `conflict_since_ms` when its members began to ask for different
    things, 0 while they do not.
    """

    __slots__ = (
        "_requests",
        "conflict_since_ms",
        "consume_from_where",
        "consume_type",
        "members",
        "message_model",
        "name",
        "refused",
        "since_ms",
        "subscriptions",
        "table_bytes",
    )

    def __init__(self, name: str, since_ms: int = 0) -> None:
        self.name = name
        self.since_ms = since_ms
        self.conflict_since_ms = 0
        self.refused: RefusedMember | None = None
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.message_model = MessageModel.CLUSTERING
        self.consume_from_where = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        self.members: dict[ClientChannel, Member] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.table_bytes = 0
        self._requests: dict[MemberSubscription, _Request] = {}

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def has_conflict(self) -> bool:
        """Whether members ask for different things."""
        return len(self._requests) > 1

    def disagreement(self, now_ms: int) -> Disagreement | None:
        """Return two clients that ask for different things: members, or a member and a client that was refused."""
        if self.has_conflict:
            (one, member), (other, other_member) = [
                (request.wanted, next(iter(request.members))) for request in [*self._requests.values()][:2]
            ]
            wanted, other_wanted = one.difference(other)
            return Disagreement(self.conflict_since_ms, member.client_id, wanted, other_member.client_id, other_wanted)
        refused = self.refused
        if refused is None or now_ms - refused.tried_ms > _REFUSED_MS:
            return None
        conflict = refused.conflict
        return Disagreement(
            refused.since_ms, refused.client_id, conflict.wanted, conflict.other.client_id, conflict.other_wanted
        )

    def note_refused(self, channel: ClientChannel, conflict: Conflict, now_ms: int) -> None:
        """Record that a client may not join because of its subscription."""
        before = self.refused
        is_new = before is None or now_ms - before.tried_ms > _REFUSED_MS
        since_ms = now_ms if before is None or is_new else before.since_ms
        self.refused = RefusedMember(since_ms, now_ms, channel.client_id, conflict)

    def client_ids(self) -> list[str]:
        """Return the members' ids, without duplicates."""
        return list(dict.fromkeys(channel.client_id for channel in self.members))

    def conflict_of(self, wanted: MemberSubscription, channel: ClientChannel) -> Conflict | None:
        """Return how what a client asks for differs from another member; None if it does not."""
        if not self.has_conflict and wanted in self._requests:
            return None
        for request in self._requests.values():
            if request.wanted != wanted:
                other = next((member for member in request.members if member is not channel), None)
                if other is not None:
                    return Conflict(other, *wanted.difference(request.wanted))
        return None

    def earlier_connections(self, channel: ClientChannel, wanted: MemberSubscription) -> list[ClientChannel]:
        """Return the other connections of a client that ask for something else than it does now."""
        return [
            member
            for request in self._requests.values()
            if request.wanted != wanted
            for member in request.members
            if member is not channel and member.client_id == channel.client_id
        ]

    def record_request(self, channel: ClientChannel, wanted: MemberSubscription, now: float) -> None:
        """Record what a member asks for; adds the member if it is new."""
        member = self.members.get(channel)
        if member is not None and member.request.wanted == wanted:
            member.last_heartbeat = now
            return
        request = self._requests.get(wanted)
        if request is None:
            request = self._requests[wanted] = _Request(wanted)
        request.members[channel] = None
        if member is None:
            self.members[channel] = Member(request, now)
        else:
            self._forget_request(member.request, channel)
            member.request, member.last_heartbeat = request, now

    def drop(self, channel: ClientChannel) -> bool:
        """Remove a member; return whether it was one."""
        member = self.members.pop(channel, None)
        if member is None:
            return False
        self._forget_request(member.request, channel)
        return True

    def subscribe(self, subscriptions: list[SubscriptionData]) -> tuple[bool, bool]:
        """Apply one member's subscriptions to the table.

        Returns:
            Whether the set of topics changed, and whether the filter of one that stays did.
        """
        before, table, filters_changed = set(self.subscriptions), self.subscriptions, False
        for subscription in subscriptions:
            current = table.get(subscription.topic)
            if current is None or subscription.sub_version > current.sub_version:
                table[subscription.topic] = subscription
                filters_changed |= current is not None and _filter(current) != _filter(subscription)
        wanted = {subscription.topic for subscription in subscriptions}
        for topic in before - wanted:
            del table[topic]
        return before != wanted, filters_changed

    def _forget_request(self, request: _Request, channel: ClientChannel) -> None:
        del request.members[channel]
        if not request.members:
            del self._requests[request.wanted]


def _filter(subscription: SubscriptionData) -> tuple[str, str]:
    return subscription.expression_type, subscription.sub_string


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


class ConsumerGroups:
    """The online groups.

    Args:
        clock_ms: the time of day.
    """

    def __init__(self, clock_ms: Callable[[], int] = _clock_ms) -> None:
        self._clock_ms = clock_ms
        self._groups: dict[str, ConsumerGroup] = {}
        self.offline_since_ms: dict[str, int] = {}
        """When the last member of a group left that has none now, in ms since 1970."""
        self.held_bytes = 0
        """Approximate size of all members and subscription tables."""
        self.changes = 0
        """How often members have joined or left, or a group's message model has changed."""

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))

    # Reading

    def get(self, group: str) -> ConsumerGroup | None:
        """Return an online group, or None."""
        return self._groups.get(group)

    def members(self, group: str) -> list[ClientChannel]:
        """Return the members of a group, one for each connection."""
        found = self._groups.get(group)
        return [] if found is None else list(found.members)

    def find(self, group: str, client_id: str) -> ClientChannel | None:
        """Return the member with this id, of several connections the latest; None if there is none."""
        found = [channel for channel in self.members(group) if channel.client_id == client_id]
        return max(found, key=lambda channel: channel.last_heartbeat, default=None)

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return a group's subscription to a topic; None if it is not online or not subscribed."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def of_topic(self, topic: str) -> list[str]:
        """Return the groups that are subscribed to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    # Changing

    def register(
        self, channel: ClientChannel, data: ConsumerData, now: float, *, refuse_conflicts: bool = False
    ) -> Joined:
        """Record a heartbeat for one group.

        With `refuse_conflicts` a client that asks for something else than another member is not
        registered, and removed if it was a member. Earlier connections of the client itself that ask for something
        else, such as one whose machine lost power, are members no longer.
        """
        group = self._groups.get(data.group_name)
        wanted = MemberSubscription.of(data)
        for earlier in () if group is None else group.earlier_connections(channel, wanted):
            self.unregister(data.group_name, earlier)
        group = self._groups.get(data.group_name)
        conflict = None if group is None else group.conflict_of(wanted, channel)
        if group is not None and conflict is not None and refuse_conflicts:
            self.unregister(data.group_name, channel)
            group.note_refused(channel, conflict, self._clock_ms())
            return Joined(False, False, False, conflict)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name, self._clock_ms())
            self.offline_since_ms.pop(data.group_name, None)
        is_new = channel not in group.members
        self.changes += is_new or data.message_model is not group.message_model
        group.record_request(channel, wanted, now)
        self._note_conflict(group)
        size = size_of(data)
        self.held_bytes += size - channel.consumer_groups.get(group.name, 0)
        channel.consumer_groups[group.name] = size
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        topics_changed, filters_changed = group.subscribe(data.subscriptions)
        self._note_table(group)
        return Joined(is_new, topics_changed, filters_changed, conflict)

    def _note_table(self, group: ConsumerGroup) -> None:
        """Count a group's subscription table, whose entries may outlive the members that sent them."""
        self.held_bytes -= group.table_bytes
        group.table_bytes = sum(map(_subscription_bytes, group.subscriptions.values()))
        self.held_bytes += group.table_bytes

    def unregister(self, group: str, channel: ClientChannel) -> bool:
        """Remove a member; return whether it was one. A group without members goes offline."""
        found = self._groups.get(group)
        if found is None or not found.drop(channel):
            return False
        self.changes += 1
        self.held_bytes -= channel.consumer_groups.pop(group)
        self._note_conflict(found)
        if not found.members:
            self.held_bytes -= found.table_bytes
            del self._groups[group]
            self.offline_since_ms[group] = self._clock_ms()
        return True

    def _note_conflict(self, group: ConsumerGroup) -> None:
        if not group.has_conflict:
            group.conflict_since_ms = 0
        elif not group.conflict_since_ms:
            group.conflict_since_ms = self._clock_ms()

    def forget_group(self, group: str) -> None:
        """Forget when a deleted group had its last member."""
        self.offline_since_ms.pop(group, None)

    def expired(self, heard_before: float) -> list[tuple[str, ClientChannel]]:
        """Return the members, with their groups, whose last heartbeat for the group is too old."""
        return [
            (group.name, channel)
            for group in self._groups.values()
            for channel, member in group.members.items()
            if member.last_heartbeat < heard_before
        ]


class GroupReaders:
    """Open connections that have pulled, popped, acknowledged or committed, by group. Those of members are among them;
    the others belong to clients that send no heartbeats.

    Args:
        clock_ms: the time of day.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._asked_ms: dict[str, dict[str, int]] = {}
        self._groups: dict[str, set[str]] = {}
        self.last_asked_ms: dict[str, int] = {}
        """Of a group without an open connection: when the last one asked last, in ms since 1970."""

    def asked(self, group: str, peer: str) -> None:
        """Note a request of the connection of `peer` for an existing group."""
        peers = self._asked_ms.get(group)
        if peers is None:
            peers = self._asked_ms[group] = {}
            self.last_asked_ms.pop(group, None)
        if peer not in peers:
            self._groups.setdefault(peer, set()).add(group)
        peers[peer] = self._clock_ms()

    def gone(self, peer: str) -> None:
        """Forget a closed connection."""
        for group in self._groups.pop(peer, ()):
            self._drop(group, peer)

    def is_read(self, group: str, after_ms: int) -> bool:
        """Whether a connection consumes for a group: it has asked for something after a time in ms since 1970."""
        return any(asked_ms > after_ms for asked_ms in self._asked_ms.get(group, {}).values())

    def expire(self) -> None:
        """Forget connections that have been silent for too long."""
        since_ms = self._clock_ms() - _SILENT_MS
        for group, peers in [*self._asked_ms.items()]:
            for peer in [peer for peer, asked_ms in peers.items() if asked_ms < since_ms]:
                self._drop(group, peer)
                self._leave(group, peer)

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        for peer in self._asked_ms.pop(group, {}):
            self._leave(group, peer)
        self.last_asked_ms.pop(group, None)

    def _drop(self, group: str, peer: str) -> None:
        peers = self._asked_ms[group]
        asked_ms = peers.pop(peer)
        if not peers:
            del self._asked_ms[group]
            self.last_asked_ms[group] = asked_ms

    def _leave(self, group: str, peer: str) -> None:
        groups = self._groups[peer]
        groups.discard(group)
        if not groups:
            del self._groups[peer]
