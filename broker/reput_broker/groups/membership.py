"""Clients that join, leave and disappear (RocketMQ: ClientManageProcessor, ClientHousekeepingService).

A member may unregister, lose its connection or stop sending heartbeats. In each case it is removed
from its groups and the other members are notified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog
import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups import consumer_groups, producer_groups
from reput_broker.groups.awaited_members import AwaitedGroups, AwaitedMembers
from reput_broker.groups.client_table import ClientChannel, ClientTable
from reput_broker.groups.consumer_groups import Conflict, ConsumerGroups
from reput_broker.groups.notifications import GroupNotifier
from reput_broker.groups.producer_groups import ProducerGroups
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client, Refusal
from reput_protocol.commands.group import ConsumerData
from reput_protocol.errors import ErrorCode
from reput_protocol.wire.header import HeaderType

log = structlog.get_logger(__name__)

_SCAN_S = 10.0
"""RocketMQ's interval."""
_AWAITED_SCAN_S = 1.0
"""The same while members are awaited."""
_AWAITED_S = 30.0
"""How long a new master awaits a member: RocketMQ's clients send their heartbeats so often."""
_AWAITED_OWN_S = 6.0
"""The same for Reput's client, which connects as soon as it knows the new master."""


class MemberConflict(NamedTuple):
    """A conflict with another member, and its group."""

    group: str
    conflict: Conflict


class Membership:
    """Keeps the tables of connected clients in step with each other.

    Args:
        on_filters: called with a group whose members have another filter for one of its topics now.
    """

    def __init__(
        self,
        options: GroupsConfig,
        counters: Counters,
        groups: ConsumerGroups,
        notifier: GroupNotifier,
        locks: QueueLocks,
        *,
        on_filters: Callable[[str], None],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.clients = ClientTable()
        self.producers = ProducerGroups()
        self.online = groups
        self.awaited = AwaitedMembers()
        self._options = options
        self._counters = counters
        self._notifier = notifier
        self._locks = locks
        self._on_filters = on_filters
        self._clock = clock

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of a group's members, with those that are awaited from the master before; none if no member
        has come.
        """
        found = self.online.get(group)
        return [] if found is None else sorted({*found.client_ids(), *self.awaited.of(group)})

    def to_await(self) -> dict[str, dict[str, float]]:
        """Return the members that another master would have to await, without those of groups that broadcast, which
        share no queues.
        """
        return {
            group.name: {channel.client_id: _awaited_s(channel) for channel in group.members}
            for group in self.online
            if not group.is_broadcasting
        }

    def expect(self, groups: AwaitedGroups) -> None:
        """Await the members that the master before had."""
        self.awaited.expect(groups, self._clock())

    def check_entries(self, count: int) -> None:
        """Refuse a heartbeat with too many groups and subscriptions before it is decoded."""
        self._check_size(count * min(consumer_groups.ENTRY_BYTES, producer_groups.ENTRY_BYTES))

    def check_room(
        self, client: Client, client_id: str, consumers: list[ConsumerData], producers: list[str]
    ) -> None:
        """Refuse a heartbeat that would exceed the memory for one client, or for all.

        A heartbeat that adds nothing is never refused: a member stays a member.
        """
        channel = self.clients.get(client)
        before = 0
        consuming: Mapping[str, int] = {}
        producing: Mapping[str, int] = {}
        if channel is not None and channel.client_id == client_id:
            before = channel.held_bytes
            consuming, producing = channel.consumer_groups, channel.producer_groups
        after = before
        for name, data in {data.group_name: data for data in consumers}.items():
            after += consumer_groups.size_of(data) - consuming.get(name, 0)
        for name in set(producers) - producing.keys():
            after += producer_groups.size_of(name)
        if after <= before:
            return
        self._check_size(after)
        held, most = self.online.held_bytes + self.producers.held_bytes, self._options.memory_max
        if held + after - before > most:
            raise Refusal(
                ErrorCode.BUSY,
                f"the groups and subscriptions of all clients take {held} bytes, and at most {most} are held "
                "(groups.memory_max); close clients that are not needed, or raise the option",
            )

    def _check_size(self, size: int) -> None:
        most = self._options.client_memory_max
        if size > most:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"the groups and subscriptions of this client would take {size} bytes, and at most {most} are held of "
                "one (groups.client_memory_max); spread them over several clients",
            )

    def heard(
        self,
        client: Client,
        client_id: str,
        language: int,
        version: int,
        *,
        consumers: list[ConsumerData],
        producer_groups: list[str],
    ) -> list[MemberConflict]:
        """Record a heartbeat; return the groups that the client may not join because of its
        subscriptions."""
        now = self._clock()
        before = self.clients.get(client)
        if before is not None and before.client_id != client_id:
            log.warning("client_id_changed", peer=client.peer, before=before.client_id, after=client_id)
            self.gone(client)
        channel = self.clients.heard(client, client_id, language, version, now)
        for group in producer_groups:
            self.producers.register(group, channel, now)
        refused = []
        for data in consumers:
            conflict = self._join(channel, data, now)
            if conflict is not None and self._options.refuse_subscription_conflicts:
                refused.append(MemberConflict(data.group_name, conflict))
        return refused

    def _join(self, channel: ClientChannel, data: ConsumerData, now: float) -> Conflict | None:
        group, refuse = data.group_name, self._options.refuse_subscription_conflicts
        self.awaited.came(group, channel.client_id)
        was_member = refuse and group in channel.consumer_groups
        joined = self.online.register(channel, data, now, refuse_conflicts=refuse)
        if joined.conflict is not None:
            self._counters.note_subscription_conflict(group)
            log.warning(
                "subscription_conflict",
                group=group,
                client_id=channel.client_id,
                wants=joined.conflict.wanted,
                other_client_id=joined.conflict.other.client_id,
                other_wants=joined.conflict.other_wanted,
                refused=refuse,
                hint="give all members of the group the same subscription, or the others a group of their own",
            )
            if refuse:
                if was_member:
                    self._changed(group, "leave")
                return joined.conflict
        if joined.is_new:
            self._changed(group, "join")
        elif joined.topics_changed:
            self._changed(group, "topic_change")
        if joined.filters_changed:
            self._on_filters(group)
        return joined.conflict

    def left(self, client: Client, *, consumer_group: str | None, producer_group: str | None) -> None:
        """Record that a client leaves groups; it need not be in them."""
        channel = self.clients.get(client)
        if channel is None:
            return
        if producer_group:
            self.producers.unregister(producer_group, channel)
        if consumer_group and self.online.unregister(consumer_group, channel):
            if self._options.free_locks_on_unregister:
                self._free_locks(consumer_group, channel.client_id)
            self._changed(consumer_group, "leave")

    def gone(self, client: Client) -> None:
        """Record that a connection has ended."""
        channel = self.clients.gone(client)
        if channel is None:
            return
        self.producers.gone(channel)
        for group in list(channel.consumer_groups):
            self.online.unregister(group, channel)
            self._changed(group, "leave")

    def expire(self) -> None:
        """Remove members without heartbeats; disconnect clients that are then in no group. Await no more in vain."""
        for group in self.awaited.expired(self._clock()):
            self._changed(group, "timeout")
        heard_before = self._clock() - self._options.heartbeat_timeout
        expired = dict.fromkeys(self.producers.expire(heard_before))
        for group, channel in self.online.expired(heard_before):
            log.info("member_expired", group=group, client_id=channel.client_id, peer=channel.client.peer)
            self.online.unregister(group, channel)
            self._changed(group, "timeout")
            expired[channel] = None
        for channel in expired:
            if not channel.consumer_groups and not channel.producer_groups:
                channel.client.close("idle")
        self._locks.expire()

    async def run(self) -> None:
        """Check for missing heartbeats until cancelled."""
        while True:
            await trio.sleep(_AWAITED_SCAN_S if self.awaited else _SCAN_S)
            self.expire()

    def _free_locks(self, group: str, client_id: str) -> None:
        if self.online.find(group, client_id) is None:  # unless another connection of the member is there
            self._locks.unlock_all(group, client_id)

    def _changed(self, group: str, reason: str) -> None:
        self._counters.note_rebalance(group, reason)
        self._notifier.changed(group)


def _awaited_s(channel: ClientChannel) -> float:
    return _AWAITED_OWN_S if channel.client.header_type == HeaderType.MSGPACK else _AWAITED_S
