"""The part of `Admin` for consumer groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from reput_client.admin.topics import TopicAdmin
from reput_client.consume.offsets import timestamp_ms
from reput_client.preview import Preview
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
    DEAD_LETTER,
    EXPIRED_ATTRIBUTE,
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
from reput_protocol.commands.offset import CloneGroupOffsetHeader, ResetOffsetBody, ResetOffsetHeader, ResetOffsetList
from reput_protocol.errors import BrokerError, GroupNotFound, InvalidMessage, NotFound, ReputError, TopicNotFound
from reput_protocol.names import check_group, check_topic, dlq_topic, retry_topic
from reput_protocol.printable import counted
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

_NO_GROUP = (GroupNotFound,)
_NOT_THERE = (GroupNotFound, TopicNotFound)
_FORWARDED_GRACE_S = 11.0
"""The broker waits 10 s for a member's answer."""


class GroupAdmin(TopicAdmin):
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
            SubscriptionGroupTable.from_json, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, "settings of all groups"
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
            header.to_ext(),
            f"settings of {group}",
            absent=_NO_GROUP,
        )
        return next(iter(found.values()))

    async def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Create a group, or replace all its settings.

        For a change of some, `changed_group` returns the new settings; `group_config` has those that apply.
        """
        check_group(config.group_name)
        await self._ask_each(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, f"settings of {config.group_name}", config.to_json()
        )

    async def preview_create_group(self, config: SubscriptionGroupConfig) -> Preview:
        """Return what `put_group` would do for a new group; one that exists keeps its settings."""
        group = check_group(config.group_name)
        try:
            await self.group_config(group)
        except GroupNotFound:
            return Preview(f"group {group} is created: {_settings(config)}")
        return Preview(f"group {group} already exists", is_change=False)

    async def changed_group(
        self,
        group: str,
        *,
        retry_max: int | None = None,
        consume: bool | None = None,
        broadcast: bool | None = None,
        orderly: bool | None = None,
        expired: str | None = None,
    ) -> tuple[Preview, SubscriptionGroupConfig]:
        """Return what a change of a group's settings would do, and the settings for `put_group`; None: it stays.

        Args:
            retry_max: how often a message is redelivered before it is a dead letter.
            consume: whether the group may consume.
            broadcast: whether its members may consume by broadcasting.
            orderly: whether members that consume by POP get the messages of a queue in order.
            expired: what happens to messages whose time to live is over: `drop` or `dead-letter`.

        Raises:
            GroupNotFound: there is no such group.
        """
        config = await self.group_config(group)
        changed = replace(
            config,
            retry_max_times=config.retry_max_times if retry_max is None else retry_max,
            consume_enable=config.consume_enable if consume is None else consume,
            consume_broadcast_enable=config.consume_broadcast_enable if broadcast is None else broadcast,
            consume_message_orderly=config.consume_message_orderly if orderly is None else orderly,
        )
        before, after = _settings(config), _settings(changed)
        keeps_expired = config.keeps_expired if expired is None else expired == DEAD_LETTER
        notes = []
        if keeps_expired != config.keeps_expired:
            notes.append(f"expired messages are {'dead letters' if keeps_expired else 'dropped'} from now on")
        if config.consume_enable and not changed.consume_enable:
            notes.append("its members get no more messages, and stay connected")
        if config.consume_message_orderly != changed.consume_message_orderly:
            how = "in order" if changed.consume_message_orderly else "in any order"
            notes.append(f"messages of a queue are delivered {how} to members that consume by POP from now on")
        if before == after and not notes:
            return Preview(f"group {group} has these settings already: {before}", is_change=False), config
        if expired is not None:
            attributes = {**config.attributes}
            attributes.pop(EXPIRED_ATTRIBUTE, None)
            changed = replace(changed, attributes={**attributes, f"+{EXPIRED_ATTRIBUTE}": expired})
        return Preview(f"group {group}: {after}; before: {before}", notes), changed

    async def preview_delete_group(self, group: str, *, clean_offsets: bool = True) -> Preview:
        """Return what `delete_group_whole` would do. Members that are online are an obstacle.

        Raises:
            GroupNotFound: there is no such group.
        """
        found = await self.describe_group(group)
        waiting = await self._messages_in(retry_topic(group))
        members = counted(found.summary.members, "member")
        text = f"group {group}: {members} online, lag {found.summary.lag}; progress in " + (
            f"{counted(len(found.summary.topics), 'topic')} {'is deleted' if clean_offsets else 'stays'}"
        )
        if waiting is not None:
            text += f"; retry topic with {counted(waiting, 'message')} is deleted"
        notes = []
        if await self._messages_in(dlq_topic(group)) is not None:
            notes.append(f"dead letters stay: reput topic delete {dlq_topic(group)}")
        return Preview(
            text,
            notes,
            obstacle=f"{members} online" if found.members else None,
            remedy="stop them, or --force" if found.members else None,
            can_force=True,
        )

    async def delete_group_whole(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group and its retry topic; with `clean_offsets` its progress too. Its dead letters remain."""
        await self.delete_group(group, clean_offsets=clean_offsets)
        if await self._messages_in(retry_topic(group)) is not None:
            await self.delete_topic(retry_topic(group))

    async def _messages_in(self, topic: str) -> int | None:
        try:
            stats = await self.topic_stats(topic)
        except TopicNotFound:
            return None
        return sum(queue.max_offset - queue.min_offset for queue in stats.offset_table.values())

    async def delete_group(self, group: str, *, clean_offsets: bool = True) -> None:
        """Delete a group; with `clean_offsets` its progress too. Its retry and dead-letter topics remain."""
        header = DeleteSubscriptionGroupHeader(check_group(group), clean_offsets)
        ext = header.to_ext()
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
            header.to_ext(),
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
            header.to_ext(),
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
            header.to_ext(),
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
            header.to_ext(),
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
            RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext(), client_id, await self._masters()
        )
        return ConsumerRunningInfo.from_json(call.body)

    async def consume_directly(self, group: str, client_id: str, offset_message_id: str) -> ConsumeDirectlyResult:
        """Make a member consume one message besides its ordinary work; errors as for `running_info`."""
        header = ConsumeDirectlyHeader(check_group(group), client_id, offset_message_id)
        brokers = list(await self._masters())
        if len(brokers) > 1:
            brokers = [(await self._find_message(offset_message_id))[0]]
        call = await self._ask_member(RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_ext(), client_id, brokers)
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
        message: str | None = None,
        queue_id: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Return where a group would continue in each queue of a topic; nothing is set.

        Args:
            when: at the first message stored at or after this datetime, or ms since 1970; 0 is the oldest message, -1
                the end. Exactly one of `when`, `offset`, `shift` and `message` is required.
            offset: at this or the nearest existing offset; a negative one counts from the end.
            shift: so many messages after the committed offset, or before it if negative. Leaves out queues without a
                committed offset.
            message: at the message with this offset message id, in its queue only.
            queue_id: in this queue only, of each broker that has it.

        Raises:
            GroupNotFound, TopicNotFound: it does not exist.
            NotFound, InvalidMessage: there is no such message, or it is in another topic.
            BrokerError: the topic has no such queue.
        """
        if [when, offset, shift, message].count(None) != 3:
            raise ValueError("name one of when, offset, shift and message")
        if message is not None:
            return await self._plan_to_message(check_group(group), check_topic(topic), message)
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
            header.to_ext(),
            f"offsets of {group}",
            # A broker may have fewer queues of the topic than another.
            absent=_NOT_THERE if queue_id is None else (BrokerError,),
        )
        return _offsets(answers)

    async def _plan_to_message(self, group: str, topic: str, message_id: str) -> dict[MessageQueue, int]:
        broker_name, found = await self._find_message(message_id)
        if found.topic != topic:
            raise InvalidMessage(f"message {message_id} is in topic {found.topic}, not in {topic}")
        plan = await self.plan_reset(group, topic, offset=found.queue_offset, queue_id=found.queue_id)
        return {queue: at for queue, at in plan.items() if queue.broker_name == broker_name}

    async def preview_set_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> Preview:
        """Return what `set_offsets` would do, with a row for each queue. Members that are online are an obstacle."""
        try:
            found: GroupDescription | None = await self.describe_group(group)
        except GroupNotFound:
            found = None  # the target of a clone, which the clone creates
        before = {
            MessageQueue(queue.topic, queue.broker_name, queue.queue_id): queue.committed_offset
            for queue in (found.queues if found else ())
        }
        rows: list[tuple[str, int, int | None, int, int | None]] = []
        for queue, offset in sorted(offsets.items()):
            committed: int | None = before.get(queue, -1)
            committed = None if committed is None or committed < 0 else committed
            move = None if committed is None else offset - committed
            rows.append((queue.topic, queue.queue_id, committed, offset, move))
        moves = [move for *_, move in rows if move != 0]
        skipped = sum(move for move in moves if move is not None and move > 0)
        repeated = -sum(move for move in moves if move is not None and move < 0)
        what = [
            f"{counted(skipped, 'message')} skipped" if skipped else "",
            f"{counted(repeated, 'message')} delivered again" if repeated else "",
        ]
        text = f"group {group} continues at another offset in {counted(len(moves), 'queue')}"
        if not moves:
            text = f"group {group} is there already" if rows else f"group {group} has no offset to start from"
        members = found.summary.members if found is not None and found.members else 0
        return Preview(
            ": ".join(filter(None, (text, ", ".join(filter(None, what))))),
            (),
            ("topic", "queue", "committed", "new", "move"),
            rows,
            [queue.broker_name for queue in sorted(offsets)],
            is_change=bool(moves),
            obstacle=(
                f"{counted(members, 'member')} online, which would continue from their own offsets" if members else None
            ),
            remedy="stop them, or --force, which makes them jump to the new offsets" if members else None,
            can_force=True,
        )

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
                header.to_ext(),
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
        message: str | None = None,
        queue_id: int | None = None,
    ) -> dict[MessageQueue, int]:
        """Set what `plan_reset` returns, and return it."""
        plan = await self.plan_reset(
            group, topic, when=when, offset=offset, shift=shift, message=message, queue_id=queue_id
        )
        if plan:
            await self.set_offsets(group, plan)
        return plan

    async def clone_offsets(
        self, source: str, target: str, topic: str | None = None, *, dry_run: bool = False
    ) -> dict[MessageQueue, int]:
        """Copy the offsets of group `source`, of one topic or all, to group `target`, and return them.

        With `dry_run` nothing is set. Raises `NotFound` if the source has none.
        """
        header = CloneGroupOffsetHeader(check_group(source), check_group(target), topic, offline=True, dry_run=dry_run)
        answers = await self._ask_each(
            RequestCode.CLONE_GROUP_OFFSET,
            header.to_ext(),
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
                answers = await self._ask_each(code, ext, f"answer of {client_id}", brokers=[name], timeout_s=timeout_s)
                return answers[name]
            except ReputError as error:
                self._session.check_open()
                if failure is None or isinstance(failure, NotFound | GroupNotFound):
                    failure = error
        assert failure is not None, "there is a broker"
        raise failure


def _settings(config: SubscriptionGroupConfig) -> str:
    return (
        f"{'enabled' if config.consume_enable else 'disabled'}, "
        f"at most {counted(config.retry_max_times, 'retry', 'retries')}, "
        f"broadcasting {'allowed' if config.consume_broadcast_enable else 'not allowed'}"
    )


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
        health=max((each.health for each in summaries), key=lambda health: health.gravity),
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
        problems=sorted(
            (problem for each in found.values() for problem in each.problems), key=lambda problem: -problem.gravity
        ),
    )
