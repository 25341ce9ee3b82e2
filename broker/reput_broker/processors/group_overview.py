"""Groups in overview: all of them in short, or one with members, queues and lag. Both requests are Reput's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import trio

from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroup
from reput_broker.groups.group_access import no_group
from reput_broker.groups.health import Waiting
from reput_broker.request import Processor, Request, Response, serves, write_in_turns
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group_description import (
    DescribeGroupHeader,
    GroupDescription,
    GroupHealth,
    GroupMember,
    GroupQueue,
    GroupSummaries,
    GroupSummary,
)
from reput_protocol.names import is_system_group

_GROUPS_A_TURN = 32
_QUEUES_A_TURN = 64


class GroupOverviewProcessor(Processor):
    """Combines the tables and states of groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._groups = core.groups
        self._topics = core.tables.topics
        self._offsets = core.tables.offsets
        self._positions = core.groups.positions
        self._health = core.groups.health

    @serves(RequestCode.LIST_GROUPS)
    async def list_groups(self, request: Request) -> Response:
        """Answer with every group with settings, a member or an offset; the system's only with one of the last two."""
        del request
        of_group: dict[str, dict[str, dict[int, int]]] = {}
        for position, (group, topic, queues) in enumerate(self._positions.items()):
            if position % _QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            of_group.setdefault(group, {})[topic] = dict(queues)
        names = {name for name in self._core.tables.groups.all() if not is_system_group(name)}
        names |= {*of_group, *(group.name for group in self._groups.online)}
        summaries = []
        for position, name in enumerate(sorted(names)):
            if position % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            offsets = of_group.get(name, {})
            waiting = self._health.waiting(name, offsets)
            summaries.append(self._summary(name, offsets, waiting, self._health.of(name, waiting)[0]))
        return Response(0, body=await write_in_turns(GroupSummaries(summaries)))

    def _summary(
        self,
        group: str,
        offsets: dict[str, dict[int, int]],
        waiting: list[Waiting],
        health: GroupHealth,
    ) -> GroupSummary:
        settings, online = self._core.tables.groups.get(group), self._groups.online.get(group)
        age_s = max(
            (self._groups.lag.figures.seconds.get((group, topic), 0.0) for topic in offsets), default=0.0
        )
        return GroupSummary(
            group,
            settings is not None,
            settings is None or settings.consume_enable,
            0 if online is None else len(online.client_ids()),
            sorted({*offsets, *(() if online is None else online.subscriptions)}),
            sum(one.lag for one in waiting),
            int(1000 * age_s),
            health,
        )

    @serves(RequestCode.DESCRIBE_GROUP)
    async def describe(self, request: Request) -> Response:
        """Answer with a group's members, and its progress in all of its queues or in those of one topic."""
        header = DescribeGroupHeader.from_ext(request.ext)
        group, topic = header.group, header.topic
        offsets, online = self._positions.for_group(group), self._groups.online.get(group)
        if self._core.tables.groups.get(group) is None and online is None and not offsets:
            raise no_group(group)
        waiting = self._health.waiting(group, offsets)
        found = self._health.of(group, waiting)
        summary = self._summary(group, offsets, waiting, found[0])
        holder = self._health.holders(group)
        queues: list[GroupQueue] = []
        for each in [topic] if topic else summary.topics:
            for queue_id in self._queue_ids(each, offsets.get(each, {})):
                if len(queues) % _QUEUES_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                queues.append(await self._queue(group, each, queue_id, holder))
        counts = self._core.counters.retry
        body = GroupDescription(
            summary,
            self._members(group, online, queues),
            queues,
            retries=_of_group(counts.retries, group),
            dead_letters=_of_group(counts.dead_letters, group),
            problems=[health for health in found if health.is_fault],
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

    async def _queue(
        self, group: str, topic: str, queue_id: int, holder: Callable[[str, int], str]
    ) -> GroupQueue:
        store = self._core.store
        low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        committed = self._offsets.query(group, topic, queue_id)
        progress = self._groups.progress.get(group, topic, queue_id)
        queue = GroupQueue(topic, queue_id, low, high, -1 if committed is None else committed)
        if committed is not None and queue.lag:
            stored_ms = await self._groups.times.at(topic, queue_id, max(committed, low))
            queue.lag_age_millis = max(0, self._core.clock_ms() - stored_ms) if stored_ms >= 0 else 0
        if progress is not None:
            if (
                self._groups.online.get(group) is not None
            ):  # what a member that left had pulled is delivered again
                queue.in_flight = max(0, progress.pull_offset - max(0, queue.committed_offset))
            queue.last_commit_timestamp = progress.committed_at_ms or -1
        queue.client_id = holder(topic, queue_id)
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
