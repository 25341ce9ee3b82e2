"""Groups in overview: all of them in short, or one with members, queues and lag. Both requests are Reput's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import trio

from reput_broker.core import Core
from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroup
from reput_broker.groups.group_access import no_group
from reput_broker.request import Handler, Request, Response, write_in_turns
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group_description import (
    DescribeGroupHeader,
    GroupDescription,
    GroupMember,
    GroupQueue,
    GroupSummaries,
    GroupSummary,
)
from reput_protocol.names import is_system_group

_GROUPS_A_TURN = 32
_QUEUES_A_TURN = 64


class GroupOverviewProcessor:
    """Combines the tables and states of groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._groups = core.groups
        self._topics = core.tables.topics
        self._offsets = core.tables.offsets

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.LIST_GROUPS: self.list_groups, RequestCode.DESCRIBE_GROUP: self.describe}

    async def list_groups(self, request: Request) -> Response:
        """Answer with every group with settings, a member or an offset; the system's only with one of the last two."""
        del request
        of_group: dict[str, dict[str, dict[int, int]]] = {}
        for position, (group, topic, queues) in enumerate(self._offsets.items()):
            if position % _QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            of_group.setdefault(group, {})[topic] = dict(queues)
        names = {name for name in self._core.tables.groups.all() if not is_system_group(name)}
        names |= {*of_group, *(group.name for group in self._groups.membership.consumers)}
        summaries = []
        for position, name in enumerate(sorted(names)):
            if position % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            summaries.append(self._summary(name, of_group.get(name, {})))
        return Response(0, body=await write_in_turns(GroupSummaries(summaries)))

    def _summary(self, group: str, offsets: dict[str, dict[int, int]]) -> GroupSummary:
        settings, online = self._core.tables.groups.get(group), self._groups.membership.consumers.get(group)
        lag = sum(
            self._waiting(topic, queue_id, committed)
            for topic, queues in offsets.items()
            for queue_id, committed in queues.items()
        )
        age_s = max(
            (self._groups.lag.figures.seconds.get((group, topic), 0.0) for topic in offsets), default=0.0
        )
        return GroupSummary(
            group,
            settings is not None,
            settings is None or settings.consume_enable,
            0 if online is None else len(online.client_ids()),
            sorted({*offsets, *(() if online is None else online.subscriptions)}),
            lag,
            int(1000 * age_s),
            online is not None and online.has_conflict,
        )

    def _waiting(self, topic: str, queue_id: int, committed: int) -> int:
        start = max(committed, self._core.store.min_offset_in_queue(topic, queue_id))
        return max(0, self._core.store.max_offset_in_queue(topic, queue_id) - start)

    async def describe(self, request: Request) -> Response:
        """Answer with a group's members, and its progress in all of its queues or in those of one topic."""
        header = DescribeGroupHeader.from_ext(request.ext)
        group, topic = header.group, header.topic
        offsets, online = self._offsets.for_group(group), self._groups.membership.consumers.get(group)
        if self._core.tables.groups.get(group) is None and online is None and not offsets:
            raise no_group(group)
        summary = self._summary(group, offsets)
        peers = {
            channel.client.peer: channel.client_id
            for channel in self._groups.membership.consumers.members(group)
        }
        queues: list[GroupQueue] = []
        for each in [topic] if topic else summary.topics:
            for queue_id in self._queue_ids(each, offsets.get(each, {})):
                if len(queues) % _QUEUES_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                queues.append(await self._queue(group, each, queue_id, peers))
        counts = self._core.counters.retry
        body = GroupDescription(
            summary,
            self._members(group, online, queues),
            queues,
            retries=_of_group(counts.retries, group),
            dead_letters=_of_group(counts.dead_letters, group),
        )
        if online is not None:
            body.subscriptions = sorted(online.subscriptions.values(), key=lambda data: data.topic)
            body.consume_type = online.consume_type
            body.message_model = online.message_model
            body.consume_from_where = online.consume_from_where
        return Response(0, body=await write_in_turns(body))

    def _queue_ids(self, topic: str, offsets: Iterable[int]) -> list[int]:
        config = self._topics.get(topic)
        return sorted({*offsets, *range(0 if config is None else config.read_queue_nums)})

    async def _queue(self, group: str, topic: str, queue_id: int, peers: dict[str, str]) -> GroupQueue:
        store = self._core.store
        low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        committed = self._offsets.query(group, topic, queue_id)
        progress = self._groups.progress.get(group, topic, queue_id)
        queue = GroupQueue(topic, queue_id, low, high, -1 if committed is None else committed)
        if committed is not None and queue.lag:
            stored_ms = await self._groups.times.at(topic, queue_id, max(committed, low))
            queue.lag_age_millis = max(0, self._core.clock_ms() - stored_ms) if stored_ms >= 0 else 0
        if progress is not None:
            queue.in_flight = max(0, progress.pull_offset - max(0, queue.committed_offset))
            queue.last_commit_timestamp = progress.committed_at_ms or -1
            queue.client_id = peers.get(progress.peer, "")
        queue.client_id = self._groups.locks.owner(group, (topic, queue_id)) or queue.client_id
        return queue

    def _members(
        self, group: str, online: ConsumerGroup | None, queues: list[GroupQueue]
    ) -> list[GroupMember]:
        now = trio.current_time()

        def member(channel: ClientChannel) -> GroupMember:
            own = [queue for queue in queues if queue.client_id == channel.client_id]
            owners = (self._groups.locks.owner(group, (queue.topic, queue.queue_id)) for queue in own)
            return GroupMember(
                channel.client_id,
                channel.client.peer,
                channel.language_name,
                channel.version,
                int(1000 * (now - channel.last_heartbeat)),
                len(own),
                sum(owner == channel.client_id for owner in owners),
            )

        channels = () if online is None else online.members
        return sorted((member(channel) for channel in channels), key=lambda found: found.client_id)


def _of_group(counts: Mapping[tuple[str, str], int], group: str) -> int:
    return sum(count for (name, _), count in counts.items() if name == group)
