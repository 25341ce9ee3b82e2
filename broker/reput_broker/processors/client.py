"""Clients and the members of groups.

Clients register, heartbeat and leave: 34, 35, 38 (RocketMQ: ClientManageProcessor, ConsumerManageProcessor). Members
lock queues, to consume in order: 41, 42 (RocketMQ: AdminBrokerProcessor.lockBatchMQ). Members of groups, and requests
to them: 203, 204, 328, 300, 345, 307, 309 (RocketMQ: AdminBrokerProcessor). Groups in overview: all of them in short,
or one with members, queues and lag (both are Reput's own).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final

import trio

from reput_broker.groups.client_table import ClientChannel
from reput_broker.groups.consumer_groups import ConsumerGroup
from reput_broker.groups.group_state import Waiting, check_not_brokers, no_group
from reput_broker.groups.membership import MemberConflict
from reput_broker.remoting.request import (
    ClientBusy,
    ClientGone,
    ClientSilent,
    Processor,
    Refusal,
    Request,
    Response,
    serves,
    write_in_turns,
)
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands import group_description as commands
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.consumers import ConsumeDirectlyHeader, ConsumerRunningInfoHeader
from reput_protocol.commands.group import (
    ConsumerData,
    ConsumerList,
    ConsumerListHeader,
    ConsumerSubscriptionHeader,
    GroupList,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    QuerySubscriptionBody,
    TopicConsumersHeader,
    UnregisterClientHeader,
)
from reput_protocol.errors import ErrorCode, InvalidMessage, InvalidName
from reput_protocol.names import check_label, is_system_group
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.record import RecordView

_JOINS_A_TURN = 64
"""Groups of a heartbeat after which other tasks run."""


class ClientProcessor(Processor):
    """Maintains the register of clients."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._membership = core.groups.membership

    @serves(RequestCode.HEART_BEAT)
    async def heartbeat(self, request: Request) -> Response:
        """Register a client with all groups that it names; the groups list it once this is answered.

        A group that cannot be joined is refused after the others were joined. If all together exceed a limit, it joins
        none.
        """
        data = self._read(request)
        request.client.note_role("consumer" if data.consumers else "producer")
        groups: list[ConsumerData | str] = [*data.producer_groups, *data.consumers]
        refused: Refusal | InvalidName | None = None
        for start in range(0, max(1, len(groups)), _JOINS_A_TURN):
            if start:
                await trio.lowlevel.checkpoint()
                if request.client.is_closed:
                    break
            problem = self._join(request, data.client_id, groups[start : start + _JOINS_A_TURN])
            refused = refused or problem
        if refused is not None:
            raise refused
        return Response()

    def _join(self, request: Request, client_id: str, groups: list[ConsumerData | str]) -> Refusal | InvalidName | None:
        consumers: list[ConsumerData] = []
        producers: list[str] = []
        refused: Refusal | InvalidName | None = None
        for group in groups:
            try:
                if isinstance(group, str):
                    check_label("producer group", group)
                    producers.append(group)
                    continue
                for subscription in group.subscriptions:
                    check_label("topic", subscription.topic)
                config = self._core.group_access.find_or_create(group.group_name)
            except (Refusal, InvalidName) as error:
                refused = error
                continue
            consumers.append(group)
            if not self._core.store.options.is_replica:  # whose topics are its master's
                self._core.tables.make_retry_topic(config)
        conflicts = self._membership.heard(
            request.client,
            client_id,
            request.header.language,
            request.header.version,
            consumers=consumers,
            producer_groups=producers,
        )
        if refused is None and conflicts:
            refused = _conflict(conflicts[0])
        return refused

    def _read(self, request: Request) -> HeartbeatData:
        data = request.content(HeartbeatData)
        self._membership.check_entries(data.entries)
        check_label("client id", data.client_id)
        self._membership.clients.check_owner(request.client, data.client_id)
        if data.without_sub:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT, "heartbeats without subscriptions are not offered; send whole ones"
            )
        self._membership.check_room(request.client, data.client_id, data.consumers, data.producer_groups)
        return data

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, request: Request) -> Response:
        """Remove a client from groups; nothing happens if it is in none of them."""
        header = UnregisterClientHeader.from_ext(request.ext)
        self._membership.left(
            request.client, consumer_group=header.consumer_group, producer_group=header.producer_group
        )
        if header.consumer_group:
            self._core.hold.member_left(request.client, header.consumer_group)
        return Response()

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, request: Request) -> Response:
        """Answer with the ids of a group's members, from which each computes its queues."""
        group = ConsumerListHeader.from_ext(request.ext).consumer_group
        online = self._membership.online.get(group)
        if online is None:
            if request.is_native:
                raise Refusal(ErrorCode.NOT_FOUND, f"group {group!r} has no member", response_code=1)
            # RocketMQ's wording: its clients and tools show it as it is.
            return Response(1, remark=f"no consumer for this group, {group}")
        return Response(0, body=ConsumerList(self._membership.client_ids(group)).to_json())


def _conflict(refused: MemberConflict) -> Refusal:
    conflict = refused.conflict
    return Refusal(
        ErrorCode.SUBSCRIPTION_CONFLICT,
        f"group {refused.group!r}: this client wants {conflict.wanted}, member {conflict.other.client_id!r} wants "
        f"{conflict.other_wanted}; give all members the same subscription, or this one its own group",
    )


_LOCKS_A_TURN: Final = 256


class LockProcessor(Processor):
    """Grants and releases locks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._locks = core.groups.locks
        self._clients = core.groups.membership.clients

    @serves(RequestCode.LOCK_BATCH_MQ)
    async def lock(self, request: Request) -> Response:
        """Answer with the requested queues that are locked by the member now; the others belong to other members."""
        asked = self._read(request)
        self._core.group_access.find_or_create(asked.consumer_group)
        locked: list[MessageQueue] = []
        async for queues in _in_turns(asked.queues):
            wanted = {(queue.topic, queue.queue_id): queue for queue in queues}
            existing = [place for place in wanted if self._has_queue(*place)]
            try:
                locked += [wanted[place] for place in self._locks.lock(asked.consumer_group, asked.client_id, existing)]
            except Refusal:
                if not locked:
                    raise
                break
        return Response(0, body=await write_in_turns(LockBatchResult(locked)))

    @serves(RequestCode.UNLOCK_BATCH_MQ)
    async def unlock(self, request: Request) -> Response:
        """Release the member's locks; those of other members stay."""
        asked = self._read(request)
        async for queues in _in_turns(asked.queues):
            places = [(queue.topic, queue.queue_id) for queue in queues]
            self._locks.unlock(asked.consumer_group, asked.client_id, places)
        return Response()

    def _read(self, request: Request) -> LockBatchBody:
        body = request.content(LockBatchBody)
        check_label("client id", body.client_id)
        self._clients.check_owner(request.client, body.client_id)
        check_not_brokers(body.consumer_group)
        return body

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        config = self._core.tables.topics.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)


async def _in_turns(queues: list[MessageQueue]) -> AsyncIterator[list[MessageQueue]]:
    for start in range(0, len(queues), _LOCKS_A_TURN):
        if start:
            await trio.lowlevel.checkpoint()
        yield queues[start : start + _LOCKS_A_TURN]


_ANSWER_TIMEOUT_S = 10.0
"""How long the broker waits for a member. RocketMQ's value; its tools wait longer."""

_PRODUCERS_A_TURN = 256


class GroupMembersProcessor(Processor):
    """Reports who is connected, and passes requests on to members."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._membership = core.groups.membership

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    async def consumers(self, request: Request) -> Response:
        """Answer with a group's members and subscriptions."""
        group = commands.ConsumerConnectionHeader.from_ext(request.ext).consumer_group
        online = self._core.groups.online.get(group)
        if online is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"group {group!r} has no member online",
                response_code=int(ResponseCode.CONSUMER_NOT_ONLINE),
            )
        body = commands.ConsumerConnection(
            [_connection(channel) for channel in online.members],
            dict(online.subscriptions),
            online.consume_type,
            online.message_model,
            online.consume_from_where,
        )
        return Response(0, body=await write_in_turns(body))

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    async def producers(self, request: Request) -> Response:
        """Answer with the clients of a producer group."""
        group = commands.ProducerConnectionHeader.from_ext(request.ext).producer_group
        channels = self._membership.producers.producers(group)
        if not channels:
            raise Refusal(ErrorCode.NOT_FOUND, f"producer group {group!r} has no client online", response_code=1)
        body = commands.ProducerConnection([_connection(channel) for channel in channels])
        return Response(0, body=await write_in_turns(body))

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    async def all_producers(self, request: Request) -> Response:
        """Answer with all clients that send, by producer group."""
        del request
        now_ms, now = self._core.clock_ms(), trio.current_time()
        groups: dict[str, list[commands.ProducerInfo]] = {}
        shown = 0
        for group, channels in self._membership.producers.items():
            for channel in channels:
                if shown % _PRODUCERS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                shown += 1
                info = commands.ProducerInfo(
                    channel.client_id,
                    f"/{channel.client.peer}",
                    channel.language_name,
                    channel.version,
                    now_ms - int(1000 * (now - channel.last_heartbeat)),
                )
                groups.setdefault(group, []).append(info)
        return Response(0, body=await write_in_turns(commands.ProducerTable(groups)))

    @serves(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def groups_of_topic(self, request: Request) -> Response:
        """Answer with the groups that subscribe to a topic now, or have offsets in it."""
        topic = TopicConsumersHeader.from_ext(request.ext).topic
        groups = {*self._core.groups.online.of_topic(topic), *self._core.tables.offsets.for_topic(topic)}
        return Response(0, body=GroupList(sorted(groups)).to_json())

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, request: Request) -> Response:
        """Answer with the subscription of an online group to a topic."""
        header = ConsumerSubscriptionHeader.from_ext(request.ext)
        topic = header.topic or ""
        found = self._core.groups.online.subscription(header.group, topic)
        return Response(0, body=QuerySubscriptionBody(header.group, topic, found).to_json())

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, request: Request) -> None:
        """Request the state of a member, and pass its code, remark and body on."""
        header = ConsumerRunningInfoHeader.from_ext(request.ext)
        channel = self._member(header.consumer_group, header.client_id)
        # In a task of its own: otherwise a member that asks about itself would not be read meanwhile.
        request.client.spawn(self._pass_on, request, channel, header, b"")

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, request: Request) -> None:
        """Have a member consume one message, and pass its code, remark and body on."""
        header = ConsumeDirectlyHeader.from_ext(request.ext)
        channel = self._member(header.consumer_group, header.client_id)
        record = self._record(header.msg_id)
        topic = self._core.tables.topics.get(header.topic or RecordView(record, 0).topic)
        group = self._core.tables.groups.get(header.consumer_group)
        header.broker_name = self._core.config.broker_name
        header.topic_sys_flag = 0 if topic is None else topic.topic_sys_flag
        header.group_sys_flag = 0 if group is None else group.group_sys_flag
        request.client.spawn(self._pass_on, request, channel, header, record)

    def _member(self, group: str, client_id: str | None) -> ClientChannel:
        channel = self._core.groups.online.find(group, client_id or "")
        if channel is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"group {group!r} has no member {client_id!r} online; see the list of its members",
                response_code=1,
            )
        return channel

    def _record(self, message_id: str | None) -> bytes:
        try:
            _, physical_offset = decode_offset_message_id(message_id or "")
        except InvalidMessage as error:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, str(error)) from None
        record = self._core.store.message_at(physical_offset)
        if record is None:
            raise Refusal(
                ErrorCode.NOT_FOUND, f"there is no message {message_id}; it may have been deleted", response_code=1
            )
        return record

    async def _pass_on(self, request: Request, channel: ClientChannel, header: CommandHeader, body: bytes) -> None:
        """Request the same of a member, with the fields of the header only: not with the administrator's signature."""
        try:
            answer = await channel.client.call(
                request.header.code, header.to_ext(channel.client.header_type), body, timeout_s=_ANSWER_TIMEOUT_S
            )
        except ClientSilent as error:
            text = f"member {channel.client_id!r}: {error}; it may be stuck, or a client that responds to no requests"
            code = int(ResponseCode.CONSUME_MSG_TIMEOUT)
            response = Refusal(ErrorCode.TIMEOUT, text, response_code=code).response()
        except ClientGone as error:
            response = Refusal(ErrorCode.NOT_FOUND, str(error), response_code=1).response()
        except ClientBusy as error:
            response = Refusal(ErrorCode.BUSY, str(error)).response()
        else:
            response = Response(answer.code, body=answer.body, remark=answer.remark)
        request.reply(response)


def _connection(channel: ClientChannel) -> commands.ClientConnection:
    return commands.ClientConnection(channel.client_id, channel.client.peer, channel.language_name, channel.version)


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
        return Response(0, body=await write_in_turns(commands.GroupSummaries(summaries)))

    def _summary(
        self, group: str, offsets: dict[str, dict[int, int]], waiting: list[Waiting], health: commands.GroupHealth
    ) -> commands.GroupSummary:
        settings, online = self._core.tables.groups.get(group), self._groups.online.get(group)
        age_s = max((self._groups.lag.figures.seconds.get((group, topic), 0.0) for topic in offsets), default=0.0)
        return commands.GroupSummary(
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
        header = commands.DescribeGroupHeader.from_ext(request.ext)
        group, topic = header.group, header.topic
        offsets, online = self._positions.for_group(group), self._groups.online.get(group)
        if self._core.tables.groups.get(group) is None and online is None and not offsets:
            raise no_group(group)
        waiting = self._health.waiting(group, offsets)
        found = self._health.of(group, waiting)
        summary = self._summary(group, offsets, waiting, found[0])
        holder = self._health.holders(group)
        queues: list[commands.GroupQueue] = []
        for each in [topic] if topic else summary.topics:
            for queue_id in self._queue_ids(each, offsets.get(each, {})):
                if len(queues) % _QUEUES_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
                queues.append(await self._queue(group, each, queue_id, holder))
        counts = self._core.counters.retry
        body = commands.GroupDescription(
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
    ) -> commands.GroupQueue:
        store = self._core.store
        low, high = store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        committed = self._offsets.query(group, topic, queue_id)
        progress = self._groups.progress.get(group, topic, queue_id)
        queue = commands.GroupQueue(topic, queue_id, low, high, -1 if committed is None else committed)
        if committed is not None and queue.lag:
            stored_ms = await self._groups.times.at(topic, queue_id, max(committed, low))
            queue.lag_age_millis = max(0, self._core.clock_ms() - stored_ms) if stored_ms >= 0 else 0
        if progress is not None:
            if self._groups.online.get(group) is not None:  # what a member that left had pulled is delivered again
                queue.in_flight = max(0, progress.pull_offset - max(0, queue.committed_offset))
            queue.last_commit_timestamp = progress.committed_at_ms or -1
        queue.client_id = holder(topic, queue_id)
        return queue

    def _members(
        self, group: str, online: ConsumerGroup | None, queues: list[commands.GroupQueue]
    ) -> list[commands.GroupMember]:
        now = trio.current_time()

        def member(channel: ClientChannel) -> commands.GroupMember:
            own = [queue for queue in queues if queue.client_id == channel.client_id]
            owners = (self._groups.locks.owner(group, (queue.topic, queue.queue_id)) for queue in own)
            return commands.GroupMember(
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
