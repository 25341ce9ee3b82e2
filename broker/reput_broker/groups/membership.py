"""Clients that join, leave and disappear (RocketMQ: ClientManageProcessor, ClientHousekeepingService).

A member may unregister, lose its connection or stop sending heartbeats. In each case it is removed
from its groups and the other members are notified.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog
import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import ClientChannel, ClientTable
from reput_broker.groups.consumer_groups import ENTRY_BYTES, Conflict, ConsumerGroups, size_of
from reput_broker.groups.queue_locks import QueueLocks
from reput_broker.observe.counters import Counters
from reput_broker.remoting.request import Client, Refusal
from reput_broker.tables.config_file import ConfigFile
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import ConsumerData, ConsumerIdsChangedHeader
from reput_protocol.errors import ErrorCode, ReputError
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
_PRODUCER_BYTES: Final = 512
"""Approximate size of a client's group without its name."""
AwaitedGroups = Mapping[str, Mapping[str, float]]
"""By group and client id: how long the member is awaited, in seconds."""
_RETRY_S = 1.0
_MEMBERS_A_STEP = 64
"""After so many members other tasks run."""


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
        self._check_size(count * min(ENTRY_BYTES, _PRODUCER_BYTES))

    def check_room(self, client: Client, client_id: str, consumers: list[ConsumerData], producers: list[str]) -> None:
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
            after += size_of(data) - consuming.get(name, 0)
        for name in set(producers) - producing.keys():
            after += _producer_bytes(name)
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


class _Producers:
    __slots__ = ("last_heard", "name", "next")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_heard: dict[ClientChannel, float] = {}
        self.next = 0


def _producer_bytes(group: str) -> int:
    """Return the approximate size of a client's entry for a producer group."""
    return _PRODUCER_BYTES + len(group)


class ProducerGroups:
    """The clients of each producer group, which transactions are checked with (RocketMQ: ProducerManager)."""

    def __init__(self) -> None:
        self._groups: dict[str, _Producers] = {}
        self.held_bytes = 0
        """Approximate size of all producers."""

    def register(self, group: str, channel: ClientChannel, now: float) -> None:
        """Record a heartbeat of a producer."""
        producers = self._groups.get(group)
        if producers is None:
            producers = self._groups[group] = _Producers(group)
        if channel not in producers.last_heard:
            size = channel.producer_groups[producers.name] = _producer_bytes(group)
            self.held_bytes += size
        producers.last_heard[channel] = now

    def unregister(self, group: str, channel: ClientChannel) -> None:
        """Remove a producer; it need not be registered."""
        producers = self._groups.get(group)
        if producers is not None and producers.last_heard.pop(channel, None) is not None:
            self.held_bytes -= channel.producer_groups.pop(group)
            if not producers.last_heard:
                del self._groups[group]

    def gone(self, channel: ClientChannel) -> None:
        """Remove a client whose connection has ended."""
        for group in list(channel.producer_groups):
            self.unregister(group, channel)

    def expire(self, heard_before: float) -> list[ClientChannel]:
        """Remove and return producers whose last heartbeat for a group is too old."""
        expired = []
        for group, producers in list(self._groups.items()):
            for channel in [c for c, heard in producers.last_heard.items() if heard < heard_before]:
                self.unregister(group, channel)
                expired.append(channel)
        return expired

    def producers(self, group: str) -> list[ClientChannel]:
        """Return the clients of a group."""
        producers = self._groups.get(group)
        return [] if producers is None else list(producers.last_heard)

    def pick(self, group: str) -> ClientChannel | None:
        """Return the next client of a group (round robin), by its latest connection; None if there is none."""
        producers = self._groups.get(group)
        if producers is None:
            return None
        heard, latest = producers.last_heard, dict[str, ClientChannel]()
        for channel in heard:
            before = latest.get(channel.client_id, channel)
            if not channel.client.is_closed and heard[channel] >= heard[before]:
                latest[channel.client_id] = channel
        channels = [*latest.values()]
        if not channels:
            return None
        producers.next = (producers.next + 1) % len(channels)
        return channels[producers.next]

    def items(self) -> Iterator[tuple[str, list[ClientChannel]]]:
        """Iterate over the groups and their producers."""
        for group, producers in list(self._groups.items()):
            yield group, list(producers.last_heard)

    def __len__(self) -> int:
        return len(self._groups)


class AwaitedMembers:
    """The client ids of members that a new master knows from the one before, until they have connected to it, by group.

    Each member computes its queues from the list of members. A list with only those that have come already would give
    them the queues of the others, which still consume them.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def expect(self, groups: AwaitedGroups, now: float) -> None:
        """Await these members from now on."""
        for group, members in groups.items():
            self._groups[group] = {client_id: now + wait_s for client_id, wait_s in members.items()}

    def of(self, group: str) -> list[str]:
        """Return the client ids that a group still awaits."""
        return list(self._groups.get(group, ()))

    def came(self, group: str, client_id: str) -> None:
        """Note that a member has come."""
        self._groups.get(group, {}).pop(client_id, None)

    def forget_group(self, group: str) -> None:
        """Await no member of a group."""
        self._groups.pop(group, None)

    def expired(self, now: float) -> list[str]:
        """Stop to await those whose time is over; return their groups."""
        before = {group: len(members) for group, members in self._groups.items()}
        left = {
            group: {client_id: until for client_id, until in members.items() if until > now}
            for group, members in self._groups.items()
        }
        self._groups = {group: members for group, members in left.items() if members}
        return [group for group, count in before.items() if len(left[group]) < count]


class _Members(msgspec.Struct):
    members: dict[str, dict[str, float]] = {}


class GroupMembersFile:
    """`config/groupMembers.json`: the members that the groups had at the master before. Its methods block.

    The time of the file is when that master last said so.
    """

    def __init__(self, directory: Path, clock_ms: Callable[[], int]) -> None:
        self._file = ConfigFile(directory / "groupMembers.json")
        self._clock_ms = clock_ms

    def save(self, data: bytes) -> None:
        """Replace the file's text with what the master says. Raises OSError."""
        self._file.save(data)
        self.unchanged()

    def unchanged(self) -> None:
        """Note that the master still says so."""
        now_ns = self._clock_ms() * 1_000_000
        with suppress(OSError):
            os.utime(self._file.path, ns=(now_ns, now_ns))

    def take(self, age_max_s: float) -> AwaitedGroups:
        """Return the members that a new master awaits, and remove the file: it is true only now.

        Args:
            age_max_s: members that were noted longer ago are not awaited.
        """
        try:
            loaded = self._file.load()
            if loaded.path is None:
                return {}
            age_s = self._clock_ms() / 1000 - loaded.path.stat().st_mtime
            self._file.remove()
            found = msgspec.json.decode(loaded.data, type=_Members).members
        except (ReputError, OSError, msgspec.MsgspecError) as error:
            log.warning(
                "members_not_read", detail=str(error), hint="two members may consume a queue until all are back"
            )
            return {}
        return found if age_s <= age_max_s else {}


class GroupNotifier:
    """Notifies the members of a group that it has changed, so that they rebalance (request 40).

    The first change of a group is sent immediately; further changes within `groups.notify_interval` are sent together
    at its end, so that a hundred members starting at once do not receive a hundred requests each. A member that cannot
    take a request now gets it later, and delays no other member. `changed` may be called at any time; `run` sends the
    requests.
    """

    def __init__(
        self,
        groups: ConsumerGroups,
        settings: SubscriptionGroupManager,
        options: GroupsConfig,
        *,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._options = options
        self._clock = clock
        self._due: dict[str, float] = {}
        self._quiet_until: dict[str, float] = {}
        self._late: dict[tuple[ClientChannel, str], None] = {}
        self._woken = trio.Event()
        self._looked_at = 0

    def changed(self, group: str) -> None:
        """Record that the members or the topics of a group have changed."""
        if group not in self._due:
            self._due[group] = self._quiet_until.get(group, 0.0)
            self._woken.set()

    async def run(self) -> None:
        """Notify members until cancelled."""
        while True:
            self._woken = trio.Event()
            now = self._clock()
            await self._tell_due(now)
            self._quiet_until = {group: until for group, until in self._quiet_until.items() if until > now}
            wait_s = min(self._due.values(), default=inf) - now
            if self._late:
                wait_s = min(wait_s, _RETRY_S)
            with trio.move_on_after(max(0.0, wait_s)):
                await self._woken.wait()

    async def _tell_due(self, now: float) -> None:
        late, self._late = self._late, {}
        for channel, group in late:
            await self._tell(channel, group)
        for group in [group for group, due in self._due.items() if due <= now]:
            del self._due[group]
            self._quiet_until[group] = now + self._options.notify_interval
            await self._tell_group(group)

    async def _tell_group(self, group: str) -> None:
        online, settings = self._groups.get(group), self._settings.get(group)
        if online is None or online.is_broadcasting:
            return
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        for channel in list(online.members):
            await self._tell(channel, group)

    async def _tell(self, channel: ClientChannel, group: str) -> None:
        self._looked_at += 1
        if self._looked_at % _MEMBERS_A_STEP == 0:
            await trio.lowlevel.checkpoint()
        if group not in channel.consumer_groups:
            return
        ext = ConsumerIdsChangedHeader(group).to_ext(channel.client.header_type)
        is_sent = channel.client.send_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext)
        if not is_sent and not channel.client.is_closed:
            self._late[channel, group] = None
