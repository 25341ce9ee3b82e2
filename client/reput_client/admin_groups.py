"""The part of `Admin` for consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from reput_client.admin_requests import AdminRequests
from reput_client.consume.offsets import timestamp_ms
from reput_protocol.codes import RequestCode
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
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupHeader,
    SubscriptionGroupTable,
    TopicConsumersHeader,
)
from reput_protocol.commands.group_description import (
    DescribeGroupHeader,
    GroupDescription,
    GroupMember,
    GroupSummaries,
    GroupSummary,
)
from reput_protocol.commands.offset import (
    CloneGroupOffsetHeader,
    ResetOffsetBody,
    ResetOffsetHeader,
    ResetOffsetList,
)
from reput_protocol.errors import BrokerError, GroupNotFound, NotFound, ReputError, TopicNotFound
from reput_protocol.names import check_group, check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import HeaderType, Value

_MSGPACK = HeaderType.MSGPACK
_NO_GROUP = (GroupNotFound,)
_NOT_THERE = (GroupNotFound, TopicNotFound)
_FORWARDED_GRACE_S = 11.0
"""The broker waits 10 s for a member's answer."""


class GroupAdmin(AdminRequests):
    """The methods of `Admin` for consumer groups; errors as there.

    The members of a group are known to every broker of its topics, its progress to the broker of each queue.
    """

    # Settings

    async def list_groups(self) -> list[GroupSummary]:
        """Return members, topics and lag of every group, sorted by name; system groups only if used."""
        found = await self._read_each(GroupSummaries.from_json, RequestCode.LIST_GROUPS, {}, "list of groups")
        by_name: dict[str, list[GroupSummary]] = {}
        for each in found.values():
            for summary in each.groups:
                by_name.setdefault(summary.group, []).append(summary)
        return [_summary(by_name[group]) for group in sorted(by_name)]

    async def group_configs(self) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups by name, including system groups."""
        found = await self._read_each(
            SubscriptionGroupTable.from_json,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            {},
            "settings of all groups",
        )
        return {group: config for each in found.values() for group, config in each.groups.items()}

    async def group_config(self, group: str) -> SubscriptionGroupConfig:
        """Return a group's settings, on the first broker that has it.

        Raises:
            GroupNotFound: there is no such group.
        """
        header = SubscriptionGroupHeader(check_group(group))
        found = await self._read_each(
            SubscriptionGroupConfig.from_json,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            header.to_ext(_MSGPACK),
            f"settings of {group}",
            absent=_NO_GROUP,
        )
        return next(iter(found.values()))

    async def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a group or change its settings."""
        check_group(config.group_name)
        await self._ask_each(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            f"settings of {config.group_name}",
            config.to_json(),
        )

    async def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group; with `clean_offsets` its progress too. Its retry and dead-letter topics remain."""
        header = DeleteSubscriptionGroupHeader(check_group(group), clean_offsets)
        ext = header.to_ext(_MSGPACK)
        await self._ask_each(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, f"delete {group}", absent=_NO_GROUP)

    # Members and progress

    async def describe_group(self, group: str, topic: str | None = None) -> GroupDescription:
        """Return a group's members, and its progress in all queues or in those of `topic`.

        Raises:
            GroupNotFound: there is no such group.
        """
        header = DescribeGroupHeader(check_group(group), None if topic is None else check_topic(topic))
        found = await self._read_each(
            GroupDescription.from_json,
            RequestCode.DESCRIBE_GROUP,
            header.to_ext(_MSGPACK),
            f"description of {group}",
            absent=_NO_GROUP,
        )
        return _description(found)

    async def topic_groups(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic or have an offset in it, sorted."""
        header = TopicConsumersHeader(check_topic(topic))
        found = await self._read_each(
            GroupList.from_json,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
            header.to_ext(_MSGPACK),
            f"groups of {topic}",
            absent=(TopicNotFound,),
        )
        return sorted({group for each in found.values() for group in each.groups})

    async def consume_stats(self, group: str, topic: str | None = None) -> ConsumeStats:
        """Return a group's progress by queue in RocketMQ's form; `describe_group` returns more."""
        header = ConsumeStatsHeader(check_group(group), topic)
        found = await self._read_each(
            ConsumeStats.from_json,
            RequestCode.GET_CONSUME_STATS,
            header.to_ext(_MSGPACK),
            f"progress of {group}",
            absent=_NOT_THERE,
        )
        table = {queue: one for each in found.values() for queue, one in each.offset_table.items()}
        return ConsumeStats(table, sum(each.consume_tps for each in found.values()))

    async def consume_time_span(self, group: str, topic: str) -> ConsumeTimeSpan:
        """Return the times of the first and last message of each queue, and how far a group lags in time."""
        header = ConsumeTimeSpanHeader(check_topic(topic), check_group(group))
        found = await self._read_each(
            ConsumeTimeSpan.from_json,
            RequestCode.QUERY_CONSUME_TIME_SPAN,
            header.to_ext(_MSGPACK),
            f"time span of {group} in {topic}",
            absent=_NOT_THERE,
        )
        return ConsumeTimeSpan([span for each in found.values() for span in each.spans])

    async def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Ask a member what it is doing.

        Raises:
            NotFound: no such member is online.
            BrokerBusy: it does not answer.
        """
        header = ConsumerRunningInfoHeader(check_group(group), client_id)
        call = await self._ask_member(
            RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext(_MSGPACK), client_id, await self._masters()
        )
        return ConsumerRunningInfo.from_json(call.body)

    async def consume_directly(
        self, group: str, client_id: str, offset_message_id: str
    ) -> ConsumeDirectlyResult:
        """Make a member consume one message besides its ordinary work; errors as for `running_info`."""
        header = ConsumeDirectlyHeader(check_group(group), client_id, offset_message_id)
        brokers = list(await self._masters())
        if len(brokers) > 1:
            brokers = [(await self._find_message(offset_message_id))[0]]
        call = await self._ask_member(
            RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_ext(_MSGPACK), client_id, brokers
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
            queue_id: in this queue only, of each broker that has it.

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
        answers = await self._ask_each(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            header.to_ext(_MSGPACK),
            f"offsets of {group}",
            # A broker may have fewer queues of the topic than another.
            absent=_NOT_THERE if queue_id is None else (BrokerError,),
        )
        return _offsets(answers)

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
            await self._session.ask_ok(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                header.to_ext(_MSGPACK),
                what=f"offsets of {header.group}",
                queue=next(iter(table)),
                body=ResetOffsetList(table).to_json(),
            )

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
        answers = await self._ask_each(
            RequestCode.CLONE_GROUP_OFFSET,
            header.to_ext(_MSGPACK),
            f"copy of the offsets of {source}",
            absent=(NotFound, GroupNotFound, TopicNotFound),
        )
        return _offsets(answers)

    # Inside

    async def _ask_member(
        self, code: RequestCode, ext: Mapping[str, Value], client_id: str, brokers: Iterable[str]
    ) -> Call:
        """Ask a member through the first broker that it is connected to."""
        timeout_s = max(self._session.timeout_s, _FORWARDED_GRACE_S)
        failure: ReputError | None = None
        for name in brokers:
            try:
                answers = await self._ask_each(
                    code, ext, f"answer of {client_id}", brokers=[name], timeout_s=timeout_s
                )
                return answers[name]
            except ReputError as error:
                self._session.check_open()
                if failure is None or isinstance(failure, NotFound | GroupNotFound):
                    failure = error
        assert failure is not None, "there is a broker"
        raise failure


def _offsets(answers: Mapping[str, Call]) -> dict[MessageQueue, int]:
    found = [ResetOffsetBody.from_json(call.body) for call in answers.values()]
    return {queue: at for each in found for queue, at in each.offset_table.items()}


def _summary(summaries: Sequence[GroupSummary]) -> GroupSummary:
    """Return one group's summary of all brokers; a member is known to each of them."""
    if len(summaries) == 1:
        return summaries[0]
    return GroupSummary(
        summaries[0].group,
        exists=any(each.exists for each in summaries),
        consume_enable=all(each.consume_enable for each in summaries),
        members=max(each.members for each in summaries),
        topics=sorted({topic for each in summaries for topic in each.topics}),
        lag=sum(each.lag for each in summaries),
        lag_age_millis=max(each.lag_age_millis for each in summaries),
        has_conflict=any(each.has_conflict for each in summaries),
    )


def _description(found: Mapping[str, GroupDescription]) -> GroupDescription:
    """Return one group's description of all brokers."""
    members: dict[str, GroupMember] = {}
    subscriptions: dict[str, SubscriptionData] = {}
    for each in found.values():
        for member in each.members:
            known = members.get(member.client_id)
            if known is not None:
                member = replace(
                    known,
                    silent_millis=min(known.silent_millis, member.silent_millis),
                    queues=known.queues + member.queues,
                    locks=known.locks + member.locks,
                )
            members[member.client_id] = member
        for data in each.subscriptions:
            subscriptions.setdefault(data.topic, data)
    with_members = next((each for each in found.values() if each.members), next(iter(found.values())))
    return replace(
        with_members,
        summary=replace(_summary([each.summary for each in found.values()]), members=len(members)),
        members=list(members.values()),
        queues=[replace(queue, broker_name=name) for name, each in found.items() for queue in each.queues],
        subscriptions=list(subscriptions.values()),
    )
