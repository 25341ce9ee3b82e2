"""Notify the members of a group that it has changed, so that they rebalance (request 40).

The first change of a group is sent immediately; further changes within `groups.notify_interval` are sent together at
its end, so that a hundred members starting at once do not receive a hundred requests each. A member that cannot take a
request now gets it later, and delays no other member.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import trio

from reput_broker.config.sections import GroupsConfig
from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import ConsumerIdsChangedHeader

_RETRY_S = 1.0
_MEMBERS_A_STEP = 64
"""After so many members other tasks run."""


class GroupNotifier:
    """Notifies members. `changed` may be called at any time; `run` sends the requests."""

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
