"""Offsets: of consumer groups (14, 15), and in a queue: its bounds and offsets by time (29, 30, 31, 32); the progress
of groups: show it (208, 303, 308, 317, 343), set it (222, 314).

(RocketMQ: ConsumerManageProcessor, AdminBrokerProcessor.)
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from reput_broker.groups.offset_updates import OffsetSetting
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands import offset as commands
from reput_protocol.commands.consumers import (
    ConsumeStats,
    ConsumeStatsHeader,
    ConsumeTimeSpan,
    ConsumeTimeSpanHeader,
    OffsetWrapper,
    QueueTimeSpan,
)
from reput_protocol.commands.group import ConsumerTopicsHeader
from reput_protocol.commands.statistics import BrokerConsumeStatsHeader, ConsumeStatsList
from reput_protocol.commands.topic import TopicList
from reput_protocol.errors import ErrorCode
from reput_protocol.names import check_group
from reput_protocol.record.message import MessageQueue


class OffsetProcessor(Processor):
    """Reads and commits offsets."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store

    # Of consumer groups

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, request: Request) -> Response:
        """Answer with the committed offset; else 0 for a queue whose first message is still in memory; else
        QUERY_NOT_FOUND.
        """
        header = commands.QueryConsumerOffsetHeader.from_ext(request.ext)
        topic, queue_id = header.topic, header.queue_id
        offset = self._core.tables.offsets.query(header.consumer_group, topic, queue_id)
        if offset is None:
            if header.set_zero_if_not_found is False or not self._starts_at_zero(topic, queue_id):
                raise Refusal(
                    ErrorCode.NOT_FOUND,
                    f"group {header.consumer_group!r} has no offset in queue {queue_id} of topic {topic!r}; "
                    "choose where to start",
                )
            offset = 0
        return _offset(request, offset)

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Tell whether nothing was deleted and message 0 is near the end of the log, so that a new group may start
        there."""
        store = self._store
        if store.min_offset_in_queue(topic, queue_id) > 0:
            return False
        return store.max_offset_in_queue(topic, queue_id) == 0 or store.is_in_memory(topic, queue_id, 0)

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request) -> Response:
        """Commit an offset; it survives `kill -9` once this is answered. Negative offsets mean that there is none yet.

        Groups of RocketMQ's clients exist since their heartbeat; the bundled client may commit without being a member.
        An offset that may only increase and does not is answered as committed.
        """
        header = commands.UpdateConsumerOffsetHeader.from_ext(request.ext)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if request.is_native:
            self._core.group_access.find_or_create(group)
        else:
            self._core.group_access.existing(group)
        self._core.topic_access.check_queue(topic, queue_id)
        self._core.groups.readers.asked(group, request.client.peer)
        self._core.groups.commits.commit(
            group, topic, queue_id, header.commit_offset, increase_only=bool(header.increase_only)
        )
        return Response()

    # In a queue

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, request: Request) -> Response:
        """Answer with the offset that the next message of the queue gets."""
        header = self._known_queue(request)
        return _offset(request, self._store.max_offset_in_queue(header.topic, header.queue_id))

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, request: Request) -> Response:
        """Answer with the offset of the first message that the queue still has."""
        header = self._known_queue(request)
        return _offset(request, self._store.min_offset_in_queue(header.topic, header.queue_id))

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_time(self, request: Request) -> Response:
        """Answer with the store time of the queue's first message; -1 if it is empty."""
        header = self._known_queue(request)
        timestamp = self._store.earliest_message_time(header.topic, header.queue_id)
        return Response(0, commands.EarliestTimeResult(timestamp).to_ext(request.header_type))

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, request: Request) -> Response:
        """Answer with the first offset stored at or after a time (LOWER), or the last one at or before it (UPPER)."""
        header = commands.SearchOffsetHeader.from_ext(request.ext)
        self._check(request, header.topic, header.queue_id)
        found = self._store.offset_by_timestamp(header.topic, header.queue_id, header.timestamp, header.boundary_type)
        return _offset(request, found)

    def _known_queue(self, request: Request) -> commands.QueueHeader:
        header = commands.QueueHeader.from_ext(request.ext)
        self._check(request, header.topic, header.queue_id)
        return header

    def _check(self, request: Request, topic: str, queue_id: int) -> None:
        """Refuse unknown queues to the bundled client. RocketMQ answers 0, on which its clients rely."""
        if request.is_native:
            self._core.topic_access.check_queue(topic, queue_id)


def _offset(request: Request, offset: int) -> Response:
    return Response(0, commands.OffsetResult(offset).to_ext(request.header_type))


_QUEUES_A_TURN = 64
"""Queues after which other tasks run."""
_NO_CORRECTION = (1 << 63) - 1
"""What RocketMQ answers for a queue in which the compared group is behind all others."""


class GroupOffsetsProcessor(Processor):
    """Shows and sets the progress of groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._topics = core.tables.topics
        self._offsets = core.tables.offsets
        self._online = core.groups.online
        self._setting = OffsetSetting(
            core.tables.offsets,
            core.groups.resets,
            core.groups.progress,
            core.groups.online,
            core.config.groups,
            core.hold.release_group,
        )

    # Reading

    @serves(RequestCode.GET_CONSUME_STATS)
    async def stats(self, request: Request) -> Response:
        """Answer with a group's progress in the queues of the named topics, or of all in which it has offsets."""
        header = ConsumeStatsHeader.from_ext(request.ext)
        group = header.consumer_group
        topics = header.topics()
        stats = await self._stats_of(group, topics or self._subscribed(group, self._offsets.for_group(group)))
        return Response(0, body=await write_in_turns(stats))

    @serves(RequestCode.GET_BROKER_CONSUME_STATS)
    async def all_stats(self, request: Request) -> Response:
        """Answer with the progress of every group in each topic in which it has offsets."""
        header = BrokerConsumeStatsHeader.from_ext(request.ext)
        body = ConsumeStatsList(broker_addr=request.client.dialled_address)
        consumed: dict[str, list[str]] = {}  # looking each group up would read the whole table each time
        for group, topic, _ in self._offsets.items():
            consumed.setdefault(group, []).append(topic)
        for group in sorted(self._core.tables.groups.all()):
            await trio.lowlevel.checkpoint()
            found = []
            for topic in self._subscribed(group, consumed.get(group, ())):
                config = self._topics.get(topic)
                if config is None or (header.is_order and not config.order):
                    continue
                stats = await self._stats_of(group, [topic])
                body.total_diff += stats.lag
                body.total_inflight_diff += stats.in_flight
                found.append(stats)
            body.groups.append({group: found})
        return Response(0, body=await write_in_turns(body))

    def _subscribed(self, group: str, topics: Iterable[str]) -> list[str]:
        """Return those of the topics to which a group subscribes; all if it has no members."""
        online = self._online.get(group)
        return [topic for topic in topics if online is None or topic in online.subscriptions]

    async def _stats_of(self, group: str, topics: Iterable[str]) -> ConsumeStats:
        stats = ConsumeStats({})
        table = stats.offset_table
        for topic in topics:
            for queue in self._queues_of(topic):
                if len(table) % _QUEUES_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                table[queue] = await self._progress_in(group, queue)
            stats.consume_tps += self._core.statistics.group_get_tps(topic, group)
        return stats

    @serves(RequestCode.QUERY_CORRECTION_OFFSET)
    def correction(self, request: Request) -> Response:
        """Answer with the lowest offset of any group in each queue of a topic."""
        header = commands.CorrectionOffsetHeader.from_ext(request.ext)
        left_out = {*filter(None, (header.filter_groups or "").split(","))}
        lowest: dict[int, int] = {}
        for group, offsets in self._offsets.for_topic(header.topic).items():
            if group not in left_out:
                for queue_id, offset in offsets.items():
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in self._offsets.for_group(header.compare_group).get(header.topic, {}).items():
            if lowest.get(queue_id, offset) > offset:
                lowest[queue_id] = _NO_CORRECTION
        return Response(
            0, body=commands.CorrectionOffsets({str(queue_id): offset for queue_id, offset in lowest.items()}).to_json()
        )

    async def _progress_in(self, group: str, queue: MessageQueue) -> OffsetWrapper:
        topic, queue_id = queue.topic, queue.queue_id
        committed = self._offsets.query(group, topic, queue_id) or 0
        progress = self._core.groups.progress.get(group, topic, queue_id)
        last_ms = await self._core.groups.times.at(topic, queue_id, committed - 1) if committed else 0
        return OffsetWrapper(
            self._core.store.max_offset_in_queue(topic, queue_id),
            committed,
            0 if progress is None else max(0, progress.pull_offset),
            max(0, last_ms),
        )

    @serves(RequestCode.QUERY_CONSUME_TIME_SPAN)
    async def time_span(self, request: Request) -> Response:
        """Answer with the store times of the first and last message of each queue, and how far behind a group is."""
        header = ConsumeTimeSpanHeader.from_ext(request.ext)
        self._core.topic_access.existing(header.topic)
        store, times, topic = self._core.store, self._core.groups.times, header.topic
        spans: list[QueueTimeSpan] = []
        for queue in self._queues_of(topic):
            if len(spans) % _QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            queue_id = queue.queue_id
            low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
            first_ms = await times.at(topic, queue_id, low)
            last_ms = await times.at(topic, queue_id, high - 1)
            committed = self._offsets.query(header.group, topic, queue_id) or 0
            consumed_ms = await times.at(topic, queue_id, committed - 1) if committed else first_ms
            delay_ms = 0
            if committed < high:
                next_ms = await times.at(topic, queue_id, max(committed, low))
                delay_ms = max(0, self._core.clock_ms() - next_ms) if next_ms >= 0 else 0
            spans.append(QueueTimeSpan(queue, first_ms, last_ms, consumed_ms, delay_ms))
        return Response(0, body=await write_in_turns(ConsumeTimeSpan(spans)))

    @serves(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def topics_of_group(self, request: Request) -> Response:
        """Answer with the topics in which a group has offsets."""
        group = ConsumerTopicsHeader.from_ext(request.ext).group
        return Response(0, body=TopicList(sorted(self._offsets.for_group(group))).to_json())

    # Changing

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    async def reset(self, request: Request) -> Response:
        """Set a group's offsets in a topic as the header says, and answer with the new ones.

        `isForce` makes no difference, as in RocketMQ's resets by the server: offsets move forward and back. A body,
        from Reput's clients only, names an offset for each queue and replaces the fields of the header.
        """
        header = commands.ResetOffsetHeader.from_ext(request.ext)
        group = self._core.group_access.existing(header.group).group_name
        generations = {header.topic: self._core.topic_access.existing(header.topic).generation}
        if request.body:
            body = commands.ResetOffsetBody.from_json(request.body, is_trusted=False)
            targets = await self._named(header.topic, body.offset_table)
            return await self._set(group, targets, generations, header.timestamp, dry_run=header.dry_run is True)
        queues = self._queues_of(header.topic)
        if header.queue_id >= 0:
            self._core.topic_access.check_queue(header.topic, header.queue_id)
            queues = [MessageQueue(header.topic, self._core.config.broker_name, header.queue_id)]
        targets = {}
        for number, queue in enumerate(queues):
            if number % _QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            offset = self._target(header, group, queue, native=request.is_native)
            if offset is not None:
                targets[queue] = offset
        return await self._set(group, targets, generations, header.timestamp, dry_run=header.dry_run is True)

    async def _named(self, topic: str, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the offsets named per queue, each moved to the nearest valid one."""
        targets = {}
        for number, (queue, offset) in enumerate(offsets.items()):
            if number % _QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if queue.topic != topic:
                raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{queue.topic!r} is not the topic of the header, {topic!r}")
            self._core.topic_access.check_queue(topic, queue.queue_id)
            low = self._core.store.min_offset_in_queue(topic, queue.queue_id)
            high = self._core.store.max_offset_in_queue(topic, queue.queue_id)
            targets[MessageQueue(topic, self._core.config.broker_name, queue.queue_id)] = _within(offset, low, high)
        return targets

    def _target(
        self, header: commands.ResetOffsetHeader, group: str, queue: MessageQueue, *, native: bool
    ) -> int | None:
        """Return the new offset of a group in one queue; None if it is relative to an offset that the group does not
        have.

        RocketMQ's tools send an offset of -1 for none, and name a queue with any other.
        """
        topic, queue_id = queue.topic, queue.queue_id
        low = self._core.store.min_offset_in_queue(topic, queue_id)
        high = self._core.store.max_offset_in_queue(topic, queue_id)
        if header.shift is not None:
            committed = self._offsets.query(group, topic, queue_id)
            return None if committed is None else _within(committed + header.shift, low, high)
        if header.offset is not None and native:
            return _within(header.offset if header.offset >= 0 else high + header.offset, low, high)
        if header.offset is not None and header.queue_id >= 0 and header.offset != -1:
            if not low <= header.offset <= high + 1:
                raise Refusal(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {header.offset} is not in queue {queue_id} of topic {topic!r}, which has {low} to {high}",
                    response_code=1,
                )
            return min(header.offset, high)
        if header.timestamp < 0:
            return high
        return self._core.store.offset_by_timestamp(topic, queue_id, header.timestamp)

    @serves(RequestCode.CLONE_GROUP_OFFSET)
    async def clone(self, request: Request) -> Response:
        """Give a group the offsets of another."""
        header = commands.CloneGroupOffsetHeader.from_ext(request.ext)
        check_group(header.dest_group)
        source = self._offsets.for_group(header.src_group)
        online = None if header.offline else self._online.get(header.src_group)
        topics = [header.topic] if header.topic else sorted(source)
        targets = {
            MessageQueue(topic, self._core.config.broker_name, queue_id): offset
            for topic in topics
            if self._topics.get(topic) is not None and (online is None or topic in online.subscriptions)
            for queue_id, offset in sorted(source.get(topic, {}).items())
        }
        if not targets and request.is_native:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"group {header.src_group!r} has no offsets to copy" + (f" in {header.topic}" if header.topic else ""),
            )
        dry_run = header.dry_run is True
        if not dry_run:
            self._core.group_access.find_or_create(header.dest_group)
        access = self._core.topic_access
        generations = {topic: access.existing(topic).generation for topic in {q.topic for q in targets}}
        return await self._set(header.dest_group, targets, generations, -1, dry_run=dry_run)

    async def _set(
        self,
        group: str,
        targets: dict[MessageQueue, int],
        generations: dict[str, str],
        timestamp_ms: int,
        *,
        dry_run: bool,
    ) -> Response:
        def check() -> None:
            self._core.group_access.existing(group)
            for topic, generation in generations.items():
                if self._core.topic_access.existing(topic).generation != generation:
                    raise Refusal(
                        ErrorCode.NO_TOPIC,
                        f"topic {topic!r} was deleted and created again meanwhile, and no offset was set; repeat the "
                        "request",
                    )

        if not dry_run:
            await self._setting.set(group, targets, timestamp_ms, check=check)
        return Response(0, body=await write_in_turns(commands.ResetOffsetBody(targets)))

    def _queues_of(self, topic: str) -> list[MessageQueue]:
        config = self._topics.get(topic)
        ids: Iterable[int] = () if config is None else range(config.read_queue_nums)
        return [MessageQueue(topic, self._core.config.broker_name, queue_id) for queue_id in ids]


def _within(offset: int, low: int, high: int) -> int:
    return min(max(offset, low), high)
