"""The part of `Admin` for consumer groups."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from reput_client.consume.offsets import timestamp_ms
from reput_client.transport.channel import Call
from reput_client.transport.client import Client
from reput_client.transport.session import raise_refusal
from reput_protocol.codes import RequestCode
from reput_protocol.commands.admin import DescribeGroupHeader, GroupDescription, GroupSummaries, GroupSummary
from reput_protocol.commands.consumers import (
    ConsumeDirectlyHeader,
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerRunningInfoHeader,
    ConsumeStats,
    ConsumeStatsHeader,
    ConsumeTimeSpan,
    ConsumeTimeSpanHeader,
)
from reput_protocol.commands.group import (
    DeleteSubscriptionGroupHeader,
    GroupList,
    SubscriptionGroupConfig,
    SubscriptionGroupHeader,
    SubscriptionGroupTable,
    TopicConsumersHeader,
)
from reput_protocol.commands.offset import (
    CloneGroupOffsetHeader,
    ResetOffsetBody,
    ResetOffsetHeader,
    ResetOffsetList,
)
from reput_protocol.names import check_group, check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType, Value

_MSGPACK = HeaderType.MSGPACK
_FORWARDED_GRACE_S = 11.0
"""The broker waits 10 s for a member's answer."""


class GroupAdmin(Client):
    """The methods of `Admin` for consumer groups; errors as there."""

    # Settings

    async def list_groups(self) -> list[GroupSummary]:
        """Return members, topics and lag of every group, sorted by name; system groups only if used."""
        call = await self._ask(RequestCode.LIST_GROUPS, {}, "list of groups")
        return GroupSummaries.from_json(call.body).groups

    async def group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups by name, including system groups."""
        call = await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, "settings of all groups")
        return SubscriptionGroupTable.from_json(call.body).groups

    async def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Return a group's settings.

        Raises:
            GroupNotFound: there is no such group.
        """
        header = SubscriptionGroupHeader(check_group(group))
        call = await self._ask(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header.to_ext(_MSGPACK), f"settings of {group}"
        )
        return SubscriptionGroupConfig.from_json(call.body)

    async def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a group or change its settings."""
        check_group(config.group_name)
        await self._ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            f"settings of {config.group_name}",
            config.to_json(),
        )

    async def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group; with `clean_offsets` its progress too. Its retry and dead-letter topics remain."""
        header = DeleteSubscriptionGroupHeader(check_group(group), clean_offsets)
        await self._ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext(_MSGPACK), f"delete {group}")

    # Members and progress

    async def describe_group(self, group: str, topic: str | None = None) -> GroupDescription:
        """Return a group's members, and its progress in all queues or in those of `topic`.

        Raises:
            GroupNotFound: there is no such group.
        """
        header = DescribeGroupHeader(check_group(group), None if topic is None else check_topic(topic))
        call = await self._ask(RequestCode.DESCRIBE_GROUP, header.to_ext(_MSGPACK), f"description of {group}")
        return GroupDescription.from_json(call.body)

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic or have an offset in it, sorted."""
        header = TopicConsumersHeader(check_topic(topic))
        call = await self._ask(
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header.to_ext(_MSGPACK), f"groups of {topic}"
        )
        return sorted(GroupList.from_json(call.body).groups)

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return a group's progress by queue in RocketMQ's form; `describe_group` returns more."""
        header = ConsumeStatsHeader(check_group(group), topic)
        call = await self._ask(RequestCode.GET_CONSUME_STATS, header.to_ext(_MSGPACK), f"progress of {group}")
        return ConsumeStats.from_json(call.body)

    async def consume_time_span(self, group: str, topic: str) -> ConsumeTimeSpan:
        """Return the times of the first and last message of each queue, and how far a group lags in time."""
        header = ConsumeTimeSpanHeader(check_topic(topic), check_group(group))
        call = await self._ask(
            RequestCode.QUERY_CONSUME_TIME_SPAN, header.to_ext(_MSGPACK), f"time span of {group} in {topic}"
        )
        return ConsumeTimeSpan.from_json(call.body)

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Ask a member what it is doing.

        Raises:
            NotFound: no such member is online.
            BrokerBusy: it does not answer.
        """
        header = ConsumerRunningInfoHeader(check_group(group), client_id)
        call = await self._ask_member(
            RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext(_MSGPACK), client_id
        )
        return ConsumerRunningInfo.from_json(call.body)

    async def consume_directly(
        self, group: str, client_id: str, offset_message_id: str
    ) -> ConsumeDirectlyResult:
        """Make a member consume one message besides its ordinary work; errors as for `running_info`."""
        header = ConsumeDirectlyHeader(check_group(group), client_id, offset_message_id)
        call = await self._ask_member(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_ext(_MSGPACK), client_id
        )
        return ConsumeDirectlyResult.from_json(call.body)

    # Setting offsets

    async def plan_reset(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | int | None = None,
        offset: int | None = None,
        shift: int | None = None,
        queue_id: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Return where a group would continue in each queue of a topic; nothing is set.

        Args:
            when: at the first message stored at or after this datetime, or ms since 1970; 0 is the oldest message, -1
                the end. Exactly one of `when`, `offset` and `shift` is required.
            offset: at this or the nearest existing offset; a negative one counts from the end.
            shift: so many messages after the committed offset, or before it if negative. Leaves out queues without a
                committed offset.
            queue_id: in this queue only.

        Raises:
            GroupNotFound, TopicNotFound: it does not exist.
            BrokerError: the topic has no such queue.
        """
        if [when, offset, shift].count(None) != 2:
            raise ValueError("name one of when, offset and shift")
        header = ResetOffsetHeader(
            check_topic(topic),
            check_group(group),
            -1 if when is None else timestamp_ms(when),
            queue_id=-1 if queue_id is None else queue_id,
            offset=offset,
            shift=shift,
            dry_run=True,
        )
        return await self._reset(header)

    async def set_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Set where a group continues, the queues of a topic on one broker at once, and notify online members.

        An offset outside its queue becomes the nearest one inside.

        Raises:
            GroupNotFound, TopicNotFound: it does not exist; topics before it, in the order of the queues, are set.
        """
        by_broker: dict[tuple[str, str], dict[MessageQueue, int]] = {}
        for queue, at in offsets.items():
            by_broker.setdefault((queue.topic, queue.broker_name), {})[queue] = at
        for (topic, _), table in by_broker.items():
            header = ResetOffsetHeader(check_topic(topic), check_group(group), -1, is_force=True)
            await self._reset(header, ResetOffsetList(table).to_json(), next(iter(table)))

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        when: datetime | int | None = None,
        offset: int | None = None,
        shift: int | None = None,
        queue_id: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Set what `plan_reset` returns, and return it."""
        plan = await self.plan_reset(group, topic, when=when, offset=offset, shift=shift, queue_id=queue_id)
        if plan:
            await self.set_offsets(group, plan)
        return plan

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """Copy the offsets of group `source`, of one topic or all, to group `target`, and return them.

        With `dry_run` nothing is set. Raises `NotFound` if the source has none.
        """
        header = CloneGroupOffsetHeader(
            check_group(source), check_group(target), topic, offline=True, dry_run=dry_run
        )
        call = await self._ask(
            RequestCode.CLONE_GROUP_OFFSET, header.to_ext(_MSGPACK), f"copy of the offsets of {source}"
        )
        return ResetOffsetBody.from_json(call.body).offset_table

    # Inside

    async def _reset(
        self, header: ResetOffsetHeader, body: bytes = b"", queue: MessageQueue | None = None
    ) -> dict[MessageQueue, int]:
        call = await self._session.ask_ok(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            header.to_ext(_MSGPACK),
            what=f"offsets of {header.group}",
            queue=queue,
            body=body,
        )
        return ResetOffsetBody.from_json(call.body).offset_table

    async def _ask(self, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes = b"") -> Call:
        return await self._session.ask_ok(code, ext, what=what, body=body)

    async def _ask_member(self, code: RequestCode, ext: Mapping[str, Value], client_id: str) -> Call:
        session = self._session
        deadline = session.runtime.now() + max(session.timeout_s, _FORWARDED_GRACE_S)
        call = await session.ask(code, ext, what=f"answer of {client_id}", deadline=deadline)
        raise_refusal(call)
        return call
