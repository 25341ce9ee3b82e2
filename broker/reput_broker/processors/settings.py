"""The settings of topics and of groups, and their attributes (RocketMQ: AdminBrokerProcessor, TopicAttributes,
AttributeUtil).

Topics: create 17, 18, delete 215, 316, show 351, 21, 202, 305, 700022. Groups: 200, 225, 201, 352, 207, 353, and their
quotas for reading old messages from the disk: 2001 to 2003.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
import trio
from msgspec.structs import replace

from reput_broker.config.properties import read_properties
from reput_broker.observe.counters import topic_kind
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.tables.topics import why_not_kept
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import encode_json
from reput_protocol.commands.group import (
    DEAD_LETTER,
    EXPIRED_ATTRIBUTE,
    PRIORITY_FACTOR_ATTRIBUTE,
    DeleteSubscriptionGroupHeader,
    GroupForbidden,
    GroupForbiddenHeader,
    SubscriptionGroupConfig,
    SubscriptionGroupHeader,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    SubscriptionGroupTableHeader,
    SubscriptionGroupTableResult,
)
from reput_protocol.commands.replica import SyncTableHeader
from reput_protocol.commands.topic import (
    EXPIRING_ATTRIBUTE,
    GENERATION_ATTRIBUTE,
    QUEUES_MAX,
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
    check_group,
    check_topic,
    is_system_group,
    pop_retry_topic,
    pop_retry_topic_v2,
)
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Kind, Right


class _Attribute(NamedTuple):
    values: tuple[str, ...]
    is_changeable: bool = True
    """False: it is chosen when the topic is created."""


TOPIC_ATTRIBUTES: Mapping[str, _Attribute] = {
    "cleanup.policy": _Attribute(("DELETE", "COMPACTION"), is_changeable=False),
    "message.type": _Attribute(("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "UNSPECIFIED")),
    "queue.type": _Attribute(("SimpleCQ", "BatchCQ"), is_changeable=False),
    # -1: as long as the others. All topics are in one log, of which only whole files are deleted.
    "reserve.time": _Attribute(("-1",)),
    EXPIRING_ATTRIBUTE: _Attribute(("true",)),
}
"""What a topic may have, and the values that are served or refused for another reason (`why_not_kept`)."""
GROUP_ATTRIBUTES: Mapping[str, _Attribute] = {
    PRIORITY_FACTOR_ATTRIBUTE: _Attribute(tuple(map(str, range(101)))),
    EXPIRED_ATTRIBUTE: _Attribute(("drop", DEAD_LETTER)),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Return the values of `+name=value,-name` by name with sign (RocketMQ: AttributeParser). Raises Refusal."""
    changes: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.partition("=")
        if name[0] not in "+-" or (name[0] == "+") != bool(equals) or name in changes:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"attribute {part!r} is not understood; write +name=value or -name, and each name once",
            )
        changes[name] = value
    return changes


def changed_attributes(
    known: Mapping[str, _Attribute], before: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return attributes after changes: `+name` sets, `-name` removes; a name without sign must be there already.

    Args:
        before: None if the topic or group is created.

    Raises:
        Refusal: an attribute or value is not known, or cannot be changed.
    """
    attributes, seen = dict(before or {}), set[str]()
    for signed, value in changes.items():
        name = signed[1:] if signed[:1] in ("+", "-") else signed
        if name in seen:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} is named twice; name it once")
        seen.add(name)
        if signed == name:
            # A tool that has read the settings writes them back so.
            if attributes.get(name) != value:
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} has no sign; write +{name}=value or -{name}"
                )
        elif signed.startswith("-"):
            _check_removal(known, attributes, name)
            del attributes[name]
        elif attributes.get(name) != value:
            _check_value(known, before, name, value)
            attributes[name] = value
    return attributes


def _check_removal(known: Mapping[str, _Attribute], attributes: Mapping[str, str], name: str) -> None:
    if name not in attributes or name == GENERATION_ATTRIBUTE:
        raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} cannot be removed, because it is not set")
    if name in known and not known[name].is_changeable:
        raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} cannot be removed: it is chosen at creation")


def _check_value(known: Mapping[str, _Attribute], before: Mapping[str, str] | None, name: str, value: str) -> None:
    if name not in known:
        names = ", ".join(known) or "none at all"
        raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} is not served; served here: {names}")
    values, is_changeable = known[name]
    if value not in values:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT, f"attribute {name}={value} is not served; values: {', '.join(values)}"
        )
    if before is not None and not is_changeable:
        raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} cannot be changed: it is chosen at creation")


log = structlog.get_logger(__name__)

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_OWN_ATTRIBUTES = frozenset({EXPIRING_ATTRIBUTE, GENERATION_ATTRIBUTE})
_QUEUES_A_TURN = 64
"""Queues after which other tasks run."""
_DELETED_AT_ONCE = 4
"""Topics that are deleted in one step, whose marks and directories are synced on the event loop."""
_TOPICS_A_TURN = 64
"""Topics of a request after which other tasks run."""


@dataclass(slots=True)
class _Deletions:
    """Topics that are deleted together."""

    topics: list[str] = field(default_factory=list)
    has_begun: bool = False
    is_done: bool = False
    error: Exception | None = None
    """Why they could not be deleted; the table does not have them any more."""


class TopicProcessor(Processor):
    """Creates, changes, shows and deletes topics."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._topics = core.tables.topics
        self._saver = core.tables.topic_saver
        self._delete_lock = trio.Lock()
        self._deletions = _Deletions()

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC)
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

    @serves(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    async def create_list(self, request: Request) -> Response:
        """Create or change several topics, all or none."""
        return await self._put(request.content(TopicConfigList).topics)

    async def _put(self, wanted: list[TopicConfig]) -> Response:
        configs = []
        for number, config in enumerate(wanted, start=1):
            if number % _TOPICS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            await self._topics.left(config.topic_name)
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
                    ErrorCode.INVALID_ARGUMENT, f"{number} {what} queues; a topic has 1 to {QUEUES_MAX} of them"
                )
        if not 0 <= config.perm <= 15:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"permission {config.perm}; it is a sum of 1, 2, 4 and 8")
        if config.topic_filter_type not in _FILTER_TYPES:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"filter type {config.topic_filter_type[:80]!r}; it is one of {', '.join(_FILTER_TYPES)}",
            )
        before = self._topics.get(topic)
        attributes = changed_attributes(TOPIC_ATTRIBUTES, before.attributes if before else None, config.attributes)
        reason = why_not_kept(topic, attributes)
        if reason is not None:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, reason)
        return replace(config, attributes=attributes)

    @serves(RequestCode.DELETE_TOPIC_IN_BROKER)
    async def delete(self, request: Request) -> Response:
        """Delete a topic with its queues, every group's offsets in it, and its retry topics of groups that pop.

        An unknown topic counts as deleted.
        """
        topic = DeleteTopicHeader.from_ext(request.ext).topic
        if self._topics.get(topic) is None:  # RocketMQ may have created one whose name is not legal here
            check_topic(topic)
        if self._topics.is_system(topic):
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{topic!r} cannot be deleted: it belongs to the system")
        batch = self._deletions
        batch.topics.append(topic)
        if len(batch.topics) == _DELETED_AT_ONCE:
            self._deletions = _Deletions()
        try:
            async with self._delete_lock:  # requests that wait here share a batch, and its syncs
                await self._delete(batch)
        except trio.Cancelled:
            if not batch.has_begun:
                batch.topics.remove(topic)  # its client has been told that it failed
            raise
        return Response()

    async def _delete(self, batch: _Deletions) -> None:
        """Delete the topics of a batch, unless another request of it has done so. Raises what that raised."""
        if batch.error is not None:
            raise batch.error
        if batch.is_done:
            return
        batch.has_begun = True
        if batch is self._deletions:
            self._deletions = _Deletions()
        gone: set[str] = set()
        for name in (*self._pop_retry_topics(set(batch.topics)), *batch.topics):
            # A failed deletion may have left queues over.
            if self._topics.delete(name) or self._core.store.has_queues(name):
                gone.add(name)
        try:
            with self._topics.leaving(gone):
                # First the table: after a crash between both, messages without a topic are found and kept.
                await self._saver.save()
                if gone:
                    self._drop(gone)
        except Exception as error:
            batch.error = error
            raise
        batch.is_done = True

    def _pop_retry_topics(self, topics: Collection[str]) -> list[str]:
        """Return where groups' popped messages of topics are redelivered (RocketMQ: clearRetryTopicWhenDeleteTopic).

        A name that is also the retry topic of a group, or of another group and topic, is left out: it may have messages
        of these.
        """
        own, of_others = set[str](), set[str]()
        for group, name, _ in self._core.tables.offsets.items():
            found = own if name in topics else of_others
            found |= {pop_retry_topic(name, group), pop_retry_topic_v2(name, group)}
        return [
            name
            for name in sorted(own - of_others)
            if self._core.tables.groups.get(name.removeprefix(RETRY_PREFIX)) is None
        ]

    def _drop(self, topics: Collection[str]) -> None:
        """Drop what is kept of topics that are not in the table."""
        for topic in topics:
            self._core.tables.offsets.remove_topic(topic)
        if stored := self._core.store.topics_with_records(topics):
            self._core.store.delete_topics(stored)
        for topic in topics:
            self._core.groups.forget_topic(topic)
            self._core.hold.release_topic(topic)

    @serves(RequestCode.CLEAN_UNUSED_TOPIC)
    async def clean_unused(self, _request: Request) -> Response:
        """Delete queues and offsets of topics that no longer exist (RocketMQ: cleanUnusedTopic)."""
        for topic in sorted({name for name, _ in self._core.store.queues()}):
            await trio.lowlevel.checkpoint()
            if self._topics.get(topic) is None and not self._topics.is_system(topic):
                self._drop({topic})
                log.info("unused_topic_deleted", topic=topic)
        return Response()

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, request: Request) -> Response:
        """Answer with the names of the system's topics."""
        del request
        return Response(
            0, body=TopicList(sorted({*SYSTEM_TOPICS, *filter(self._topics.is_system, self._topics.all())})).to_json()
        )

    @serves(RequestCode.GET_TOPIC_CONFIG)
    def config(self, request: Request) -> Response:
        """Answer with a topic's settings."""
        config = self._core.topic_access.existing(GetTopicConfigHeader.from_ext(request.ext).topic)
        return Response(0, body=config.to_json())

    @serves(RequestCode.GET_ALL_TOPIC_CONFIG)
    async def all_configs(self, request: Request) -> Response:
        """Answer with the whole table, to RocketMQ's slaves without our attributes: they would take over no topic."""
        topics = self._topics.all()
        is_reput = request.is_native or SyncTableHeader.from_ext(request.ext).table_version is not None
        if not is_reput:
            topics = {name: _without_own_attributes(config) for name, config in topics.items()}
        table = TopicConfigTable(topics, self._topics.version.to_json())
        return Response(0, body=await write_in_turns(table))

    @serves(RequestCode.GET_TOPIC_STATS_INFO)
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
            table[MessageQueue(topic, self._core.config.broker_name, queue_id)] = QueueStats(low, high, max(0, last))
        return Response(0, body=await write_in_turns(TopicStats(table, self._core.statistics.topic_put_tps(topic))))

    @serves(RequestCode.LIST_TOPICS)
    async def list_topics(self, request: Request) -> Response:
        """Answer with every topic in short, or with one."""
        header, topics = ListTopicsHeader.from_ext(request.ext), self._topics.all()
        if header.topic is not None:
            names = [self._core.topic_access.existing(header.topic).topic_name]
        else:
            names = sorted(name for name in topics if not header.permitted or request.may(Right.DESCRIBE, name))
        summaries, queues, get_tps = [], 0, self._core.statistics.get_tps_by_topic()
        for name in names:
            queues += 1 + max(topics[name].read_queue_nums, topics[name].write_queue_nums)
            if queues >= _QUEUES_A_TURN:
                await trio.lowlevel.checkpoint()
                queues = 0
            summaries.append(self._summary(topics[name], get_tps.get(name, 0.0)))
        return Response(0, body=await write_in_turns(TopicSummaries(summaries)))

    def _summary(self, config: TopicConfig, get_tps: float) -> TopicSummary:
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
            put_tps=core.statistics.topic_put_tps(topic),
            get_tps=get_tps,
        )
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            end = max(0, core.store.max_offset_in_queue(topic, queue_id))
            summary.end_offsets += end
            messages = max(0, end - core.store.min_offset_in_queue(topic, queue_id))
            if messages:
                summary.messages += messages
                summary.size_bytes += core.store.estimated_bytes(topic, queue_id)
        return summary


def _without_own_attributes(config: TopicConfig) -> TopicConfig:
    if _OWN_ATTRIBUTES.isdisjoint(config.attributes):
        return config
    attributes = {name: value for name, value in config.attributes.items() if name not in _OWN_ATTRIBUTES}
    return replace(config, attributes=attributes)


_CONFIG_BYTES_MAX = 4096
_GROUPS_A_TURN = 64
"""Groups of a request after which other tasks run."""


class GroupSettingsProcessor(Processor):
    """Creates, changes, shows and deletes groups."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._settings = core.tables.groups
        self._saver = core.tables.group_saver

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    async def create(self, request: Request) -> Response:
        """Create or change a group; it is on disk when this is answered."""
        return await self._put([request.content(SubscriptionGroupConfig)])

    @serves(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    async def create_list(self, request: Request) -> Response:
        """Create or change several groups, all or none."""
        return await self._put(request.content(SubscriptionGroupList).groups)

    async def _put(self, configs: list[SubscriptionGroupConfig]) -> Response:
        changed = []
        for number, config in enumerate(configs, start=1):
            if number % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            before = self._settings.get(check_group(config.group_name))
            attributes = changed_attributes(GROUP_ATTRIBUTES, before.attributes if before else None, config.attributes)
            changed.append(replace(config, attributes=attributes))
            size = len(changed[-1].to_json())
            if size > _CONFIG_BYTES_MAX and changed[-1] != before:
                raise Refusal(
                    ErrorCode.TOO_LARGE,
                    f"the settings of group {config.group_name!r} have {size} bytes, and at most {_CONFIG_BYTES_MAX} "
                    "are kept; leave out groupRetryPolicy and subscriptionDataSet, which nothing here uses",
                )
            if not 0 <= config.retry_queue_nums <= QUEUES_MAX:
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"{config.retry_queue_nums} retry queues; a group has 0 to {QUEUES_MAX} of them",
                )
        self._settings.check_room(config.group_name for config in configs)
        for number, config in enumerate(changed, start=1):
            if number % _GROUPS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if config != self._settings.get(config.group_name):
                self._settings.put(config)
                if not config.consume_enable:
                    self._core.hold.release_group(config.group_name)
        await self._saver.save()
        return Response()

    @serves(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    async def all(self, request: Request) -> Response:
        """Answer with the whole table, whichever page was requested, and the true total."""
        SubscriptionGroupTableHeader.from_ext(request.ext)
        groups, version = self._settings.all(), self._settings.version
        if not request.is_native and SyncTableHeader.from_ext(request.ext).table_version is None:
            # RocketMQ's slaves and tools know no attribute of ours.
            groups = {name: _without_own_attribute(config) for name, config in groups.items()}
        ext = SubscriptionGroupTableResult(len(groups)).to_ext(request.header_type)
        table = SubscriptionGroupTable(groups, version.to_json(), self._settings.forbidden())
        return Response(0, ext, await write_in_turns(table))

    @serves(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def one(self, request: Request) -> Response:
        """Answer with a group's settings. For RocketMQ's tools, which rely on it, a missing group is created if its
        user may be a member of it, which would create it too.
        """
        group = SubscriptionGroupHeader.from_ext(request.ext).group
        found = self._core.group_access.settings_of(group)
        if found is None:
            user = request.principal
            creates = not request.is_native and (user is None or user.permits(Right.READ, Kind.GROUP, group))
            found = (self._core.group_access.find_or_create if creates else self._core.group_access.existing)(group)
        return Response(0, body=found.to_json())

    @serves(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    async def delete(self, request: Request) -> Response:
        """Delete a group, with its offsets if the request says so. An unknown group counts as deleted."""
        header = DeleteSubscriptionGroupHeader.from_ext(request.ext)
        group = header.group_name
        if is_system_group(group):
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{group!r} cannot be deleted: it belongs to the system")
        if self._settings.get(group) is None and not self._core.tables.offsets.for_group(group):
            check_group(group)
        if header.clean_offset:
            self._core.tables.offsets.remove_group(group)
        self._settings.delete(group)
        await self._saver.save()
        self._core.groups.forget_group(group)
        self._core.hold.release_group(group)
        return Response()

    @serves(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    async def forbid(self, request: Request) -> Response:
        """Forbid a group to read a topic, permit it again, or only report the state."""
        header = GroupForbiddenHeader.from_ext(request.ext)
        group, topic = check_group(header.group), check_topic(header.topic)
        if header.readable is not None:
            self._core.group_access.existing(group)
            self._settings.set_readable(group, topic, header.readable)
            if not header.readable:
                self._core.hold.release_group(group)
            await self._saver.save()
        return Response(0, body=GroupForbidden(group, topic, self._settings.may_read(group, topic)).to_json())


class ColdQuotaProcessor(Processor):
    """Sets, removes and shows the quotas of groups."""

    def __init__(self, core: Core) -> None:
        self._quotas = core.cold_quotas
        self._group_access = core.group_access

    @serves(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG)
    def put(self, request: Request) -> Response:
        """Set quotas, all that are named or none."""
        try:
            wanted = read_properties(bytes(request.body))
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{error}; nothing was changed") from None
        for group, text in wanted.items():
            self._group_access.existing(group)
            if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"the quota of group {group!r} is {text!r:.80}, and not a number of bytes; nothing was changed",
                )
        for group, text in wanted.items():
            self._quotas.set(group, int(text))
        return Response()

    @serves(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG)
    def remove(self, request: Request) -> Response:
        """Remove the quota of a group; there need not be one."""
        self._quotas.remove(bytes(request.body).decode("utf-8", "replace").strip())
        return Response()

    @serves(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    def show(self, _request: Request) -> Response:
        """Answer with the quotas, and with what groups have read from the disk in this window."""
        return Response(0, body=encode_json(self._quotas.described()))


def _without_own_attribute(config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    if EXPIRED_ATTRIBUTE not in config.attributes:
        return config
    attributes = {name: value for name, value in config.attributes.items() if name != EXPIRED_ATTRIBUTE}
    return replace(config, attributes=attributes)
