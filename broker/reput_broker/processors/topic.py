"""The topic table: create 17, 18, delete 215, 316, show 351, 21, 202, 305, 700022 (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

import structlog
import trio
from msgspec.structs import replace

from reput_broker.core import Core
from reput_broker.observe.counters import topic_kind
from reput_broker.request import Handler, Refusal, Request, Response, write_in_turns
from reput_broker.tables.attributes import TOPIC_ATTRIBUTES, changed_attributes, parse_changes
from reput_broker.tables.topics import why_not_kept
from reput_protocol.codes import RequestCode
from reput_protocol.commands.table_sync import SyncTableHeader
from reput_protocol.commands.topic import (
    GENERATION_ATTRIBUTE,
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    ListTopicsHeader,
    QueueStats,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicStats,
    TopicStatsHeader,
    TopicSummaries,
    TopicSummary,
)
from reput_protocol.errors import ErrorCode
from reput_protocol.names import (
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    check_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
)
from reput_protocol.record.message import MessageQueue

log = structlog.get_logger(__name__)

QUEUES_MAX = 65_535
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_QUEUES_A_TURN = 64
"""Queues after which other tasks run."""
_TOPICS_A_TURN = 64
"""Topics of a request after which other tasks run."""


class TopicProcessor:
    """Creates, changes, shows and deletes topics."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._topics = core.tables.topics
        self._saver = core.tables.topic_saver

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.create_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_TOPIC_CONFIG: self.config,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_configs,
            RequestCode.GET_TOPIC_STATS_INFO: self.stats,
            RequestCode.LIST_TOPICS: self.list_topics,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
        }

    async def create(self, request: Request) -> Response:
        """Create or change a topic; it is on disk when this is answered."""
        header = CreateTopicHeader.from_ext(request.ext)
        config = TopicConfig(
            header.topic,
            header.read_queue_nums,
            header.write_queue_nums,
            header.perm,
            header.topic_sys_flag,
            header.order,
            parse_changes(header.attributes),
            topic_filter_type=header.topic_filter_type,
        )
        return await self._put([config])

    async def create_list(self, request: Request) -> Response:
        """Create or change several topics, all or none."""
        return await self._put(request.content(TopicConfigList).topics)

    async def _put(self, wanted: list[TopicConfig]) -> Response:
        configs = []
        for number, config in enumerate(wanted, start=1):
            if number % _TOPICS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            configs.append(self._checked(config))
        for number, config in enumerate(configs, start=1):
            if number % _TOPICS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if config != self._topics.get(config.topic_name):
                self._topics.put(config)
        await self._saver.save()
        return Response()

    def _checked(self, config: TopicConfig) -> TopicConfig:
        """Return the settings of a topic; its attributes in a request are changes."""
        topic = check_topic(config.topic_name)
        if self._topics.is_system(topic):
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{topic!r} belongs to the system; choose another name")
        for what, number in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
            if not 1 <= number <= QUEUES_MAX:
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"{number} {what} queues; a topic has 1 to {QUEUES_MAX} of them",
                )
        if not 0 <= config.perm <= 15:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT, f"permission {config.perm}; it is a sum of 1, 2, 4 and 8"
            )
        if config.topic_filter_type not in _FILTER_TYPES:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"filter type {config.topic_filter_type[:80]!r}; it is one of {', '.join(_FILTER_TYPES)}",
            )
        before = self._topics.get(topic)
        attributes = changed_attributes(
            TOPIC_ATTRIBUTES, before.attributes if before else None, config.attributes
        )
        reason = why_not_kept(topic, attributes)
        if reason is not None:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, reason)
        return replace(config, attributes=attributes)

    async def delete(self, request: Request) -> Response:
        """Delete a topic with its queues, every group's offsets in it, and its retry topics of groups that pop.

        An unknown topic counts as deleted.
        """
        topic = DeleteTopicHeader.from_ext(request.ext).topic
        if self._topics.get(topic) is None:  # RocketMQ may have created one whose name is not legal here
            check_topic(topic)
        if self._topics.is_system(topic):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT, f"{topic!r} cannot be deleted: it belongs to the system"
            )
        # The topic comes last: after a failure, its offsets still name the groups.
        topics = [*self._pop_retry_topics(topic), topic]
        deleted = {name for name in topics if self._topics.delete(name)}
        await self._saver.save()
        deleted |= {name for name, _ in self._core.store.queues()}  # left over by a failed deletion
        for name in topics:
            if name in deleted:
                self._drop(name)
        return Response()

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """Return where groups' popped messages of a topic are redelivered (RocketMQ: clearRetryTopicWhenDeleteTopic).

        A name that is also the retry topic of a group, or of another group and topic, is left out: it may have messages
        of these.
        """
        own, of_others = set[str](), set[str]()
        for group, name, _ in self._core.tables.offsets.items():
            found = own if name == topic else of_others
            found |= {pop_retry_topic(name, group), pop_retry_topic_v2(name, group)}
        return [
            name
            for name in sorted(own - of_others)
            if self._core.tables.groups.get(name.removeprefix(RETRY_PREFIX)) is None
        ]

    def _drop(self, topic: str) -> None:
        """Drop what is kept of a topic that is not in the table."""
        self._core.tables.offsets.remove_topic(topic)
        self._core.store.delete_topic(topic)
        self._core.counters.forget_topic(topic)
        self._core.groups.forget_topic(topic)
        self._core.hold.release_topic(topic)

    async def clean_unused(self, _request: Request) -> Response:
        """Delete queues and offsets of topics that no longer exist (RocketMQ: cleanUnusedTopic)."""
        for topic in sorted({name for name, _ in self._core.store.queues()}):
            await trio.lowlevel.checkpoint()
            if self._topics.get(topic) is None and not self._topics.is_system(topic):
                self._drop(topic)
                log.info("unused_topic_deleted", topic=topic)
        return Response()

    def system_topics(self, request: Request) -> Response:
        """Answer with the names of the system's topics."""
        del request
        return Response(
            0,
            body=TopicList(
                sorted({*SYSTEM_TOPICS, *filter(self._topics.is_system, self._topics.all())})
            ).to_json(),
        )

    def config(self, request: Request) -> Response:
        """Answer with a topic's settings."""
        config = self._core.topic_access.existing(GetTopicConfigHeader.from_ext(request.ext).topic)
        return Response(0, body=config.to_json())

    async def all_configs(self, request: Request) -> Response:
        """Answer with the whole table, to RocketMQ's slaves without our attribute: they would take over no topic."""
        topics = self._topics.all()
        is_reput = request.is_native or SyncTableHeader.from_ext(request.ext).table_version is not None
        if not is_reput:
            topics = {name: _without_generation(config) for name, config in topics.items()}
        table = TopicConfigTable(topics, self._topics.version.to_json())
        return Response(0, body=await write_in_turns(table))

    async def stats(self, request: Request) -> Response:
        """Answer with the bounds of every queue of a topic."""
        config = self._core.topic_access.existing(TopicStatsHeader.from_ext(request.ext).topic)
        store, topic = self._core.store, config.topic_name
        table = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            if queue_id % _QUEUES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
            last = store.store_timestamp(topic, queue_id, high - 1) if high > low else 0
            table[MessageQueue(topic, self._core.config.broker_name, queue_id)] = QueueStats(
                low, high, max(0, last)
            )
        return Response(
            0, body=await write_in_turns(TopicStats(table, self._core.statistics.topic_put_tps(topic)))
        )

    async def list_topics(self, request: Request) -> Response:
        """Answer with every topic in short, or with one."""
        wanted, topics = ListTopicsHeader.from_ext(request.ext).topic, self._topics.all()
        names = sorted(topics) if wanted is None else [self._core.topic_access.existing(wanted).topic_name]
        summaries, queues = [], 0
        for name in names:
            queues += 1 + max(topics[name].read_queue_nums, topics[name].write_queue_nums)
            if queues >= _QUEUES_A_TURN:
                await trio.lowlevel.checkpoint()
                queues = 0
            summaries.append(self._summary(topics[name]))
        return Response(0, body=await write_in_turns(TopicSummaries(summaries)))

    def _summary(self, config: TopicConfig) -> TopicSummary:
        core, topic = self._core, config.topic_name
        traffic, delays = core.counters.topics.get(topic), core.sources.delays
        summary = TopicSummary(
            topic,
            "system" if self._topics.is_system(topic) else topic_kind(topic),
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.order,
            messages_in={} if traffic is None else dict(traffic.messages_in),
            bytes_in=0 if traffic is None else traffic.bytes_in,
            delayed=0 if delays is None else max(0, delays.stats.waiting[topic]),
        )
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            end = max(0, core.store.max_offset_in_queue(topic, queue_id))
            summary.end_offsets += end
            summary.messages += max(0, end - core.store.min_offset_in_queue(topic, queue_id))
        return summary


def _without_generation(config: TopicConfig) -> TopicConfig:
    if not config.generation:
        return config
    attributes = {**config.attributes}
    del attributes[GENERATION_ATTRIBUTE]
    return replace(config, attributes=attributes)
