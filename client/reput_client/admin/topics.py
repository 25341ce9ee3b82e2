"""The part of `Admin` for topics, their queues and messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from reput_client.admin.requests import AdminRequests
from reput_client.consume.offsets import timestamp_ms
from reput_client.consume.pull import FoundMessages, PulledMessages
from reput_client.preview import Preview
from reput_client.received import ReceivedMessage
from reput_client.transport.session import route_ext
from reput_client.transport.standbys import read
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.pull import FETCH_BYTES_MAX
from reput_protocol.commands.query import TIME_MAX_MS, QueryMessageHeader, QueryMessageResult
from reput_protocol.commands.topic import (
    MESSAGE_TYPE_ATTRIBUTE,
    PERMISSION_NAMES,
    QUEUES_MAX,
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    ListTopicsHeader,
    TopicConfig,
    TopicRoute,
    TopicStats,
    TopicStatsHeader,
    TopicSummaries,
    TopicSummary,
)
from reput_protocol.errors import RequestNotSupported, TopicNotFound, error_from_response
from reput_protocol.names import check_topic, is_system_topic
from reput_protocol.printable import counted
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import Value

_NOT_FOUND: Final = (ResponseCode.QUERY_NOT_FOUND.value,)


class FetchedMessages(NamedTuple):
    """Messages of a range; all of it before `next_offset` are among them. `max_offset` is the end on disk."""

    messages: PulledMessages
    next_offset: int
    max_offset: int


class TopicAdmin(AdminRequests):
    """The methods of `Admin` for topics, queues and messages; errors as there."""

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        perm: int = Perm.READ_WRITE,
        message_type: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic, or change an existing one.

        Args:
            queues: for writing and for reading, on each broker.
            perm: bits of `Perm`: 4 read, 2 write, 6 both.
            message_type: what it is for: `NORMAL`, `FIFO`, `DELAY`, `TRANSACTION`, `PRIORITY` or `MIXED`; None: as
                it is.
            brokers: names of brokers; without them, all.
        """
        await self.alter_topic(
            topic, read_queues=queues, write_queues=queues, perm=perm, message_type=message_type, brokers=brokers
        )

    async def preview_create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        perm: int = Perm.READ_WRITE,
        message_type: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> Preview:
        """Return what `create_topic` would do. One that exists with other settings is an obstacle."""
        refused = _of_the_broker(check_topic(topic), await self._own_names())
        if refused is not None:
            return refused
        missing, other = await self._lacking(topic, queues, perm, message_type, brokers)
        if other is not None:
            return other
        if not missing:
            return Preview(f"topic {topic} already exists with these settings", is_change=False)
        each = f" on each of {', '.join(missing)}" if len(missing) > 1 else ""
        kind = "" if message_type is None else f", type {message_type}"
        return Preview(
            f"topic {topic} is created with {counted(queues, 'queue')}{each}, permission {PERMISSION_NAMES[perm & 6]}"
            f"{kind}"
        )

    async def create_topic_where_missing(
        self,
        topic: str,
        *,
        queues: int = 4,
        perm: int = Perm.READ_WRITE,
        message_type: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> list[str]:
        """Create a topic on those of the brokers that lack it, and return them; the others keep their settings."""
        missing, _ = await self._lacking(topic, queues, perm, message_type, brokers)
        if missing:
            await self.create_topic(topic, queues=queues, perm=perm, message_type=message_type, brokers=missing)
        return missing

    async def _lacking(
        self, topic: str, queues: int, perm: int, message_type: str | None, brokers: Iterable[str] | None
    ) -> tuple[list[str], Preview | None]:
        """Return the brokers that lack a topic, and the obstacle if one has it with other settings."""
        wanted = {*(brokers or await self._masters())}
        try:
            there = {name: c for name, c in (await self.topic_configs(topic)).items() if name in wanted}
        except TopicNotFound:
            there = {}
        for name, config in there.items():
            same = (config.read_queue_nums, config.perm & 6) == (queues, perm & 6)
            if same and message_type in (None, config.message_type):
                continue
            where = f" on broker {name}" if len(wanted) > 1 else ""
            kind = "" if message_type is None else f" --type {message_type}"
            other = Preview(
                f"topic {topic} exists with other settings{where}",
                (
                    f"{counted(config.read_queue_nums, 'queue')}, permission {PERMISSION_NAMES[config.perm & 6]}, "
                    f"type {config.message_type or 'not set'}",
                ),
                is_change=False,
                obstacle=f"topic {topic} exists with other settings{where}",
                remedy=f"reput topic alter {topic} --queues {queues} --permission {PERMISSION_NAMES[perm & 6]}{kind}",
            )
            return sorted(wanted - set(there)), other
        return sorted(wanted - set(there)), None

    async def preview_change_topic(
        self, topic: str, *, queues: int | None = None, perm: int | None = None, message_type: str | None = None
    ) -> Preview:
        """Return what `change_topic` would do. Raises `TopicNotFound`."""
        refused = _of_the_broker(topic, await self._own_names())
        if refused is not None:
            return refused
        changes: list[str] = []
        notes: list[str] = []
        read_queues = queues or 0
        for config in (await self.topic_configs(topic)).values():
            if queues is not None and (queues, queues) != (config.read_queue_nums, config.write_queue_nums):
                changes.append(f"{counted(config.read_queue_nums, 'queue')} become {queues}")
                read_queues = max(read_queues, config.read_queue_nums)
            if perm is not None and perm & 6 != config.perm & 6:
                changes.append(f"permission {PERMISSION_NAMES[config.perm & 6]} becomes {PERMISSION_NAMES[perm & 6]}")
                notes += [] if perm & 4 else ["consumers get no messages of it any more"]
                notes += [] if perm & 2 else ["producers can send nothing to it any more"]
            if message_type not in (None, config.message_type):
                changes.append(f"type {config.message_type or 'not set'} becomes {message_type}")
        changes, notes = [*dict.fromkeys(changes)], [*dict.fromkeys(notes)]  # of several brokers
        loses = None
        if queues is not None and queues < read_queues:
            loses = f"queues {queues} to {read_queues - 1} of {topic} can then no longer be read"
        if not changes:
            return Preview(f"topic {topic} has these settings already", is_change=False)
        return Preview(f"topic {topic}: {', '.join(changes)}", notes, loses=loses)

    async def change_topic(
        self, topic: str, *, queues: int | None = None, perm: int | None = None, message_type: str | None = None
    ) -> TopicConfig:
        """Change settings of a topic on each broker that has it; what is None stays as it is there.

        Return the settings on the first of them.

        Raises `TopicNotFound`.
        """
        if queues is not None:
            _check_queues(queues)
        brokers_by_fields: dict[tuple[tuple[str, Value], ...], list[str]] = {}
        for broker, config in (await self.topic_configs(topic)).items():
            header = CreateTopicHeader(
                topic,
                config.read_queue_nums if queues is None else queues,
                config.write_queue_nums if queues is None else queues,
                config.perm if perm is None else perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
                attributes=_of_type(message_type),
            )
            brokers_by_fields.setdefault(tuple(header.to_ext().items()), []).append(broker)
        for fields, brokers in brokers_by_fields.items():
            await self._ask_each(RequestCode.UPDATE_AND_CREATE_TOPIC, dict(fields), f"change {topic}", brokers=brokers)
        return await self.topic_config(topic)

    async def ensure_topic(self, topic: str, *, queues: int = 4, message_type: str | None = None) -> None:
        """Create a topic unless it exists; one that exists keeps its settings.

        Raises:
            PermissionDenied: it does not exist, and the user may not create it.
        """
        try:
            await self.topic_configs(topic)
        except TopicNotFound:
            await self.create_topic(topic, queues=queues, message_type=message_type)

    async def alter_topic(
        self,
        topic: str,
        *,
        read_queues: int,
        write_queues: int,
        perm: int = Perm.READ_WRITE,
        message_type: str | None = None,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Set the numbers of queues for reading and writing separately, as needed to shrink a topic.

        Raises `BrokerNotFound` for a name in `brokers` without a master.
        """
        _check_queues(read_queues, write_queues)
        attributes = _of_type(message_type)
        header = CreateTopicHeader(check_topic(topic), read_queues, write_queues, perm, attributes=attributes)
        ext = header.to_ext()
        await self._ask_each(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, f"create {topic}", brokers=brokers)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its queues, all groups' offsets in it, and its retry topics of groups that pop."""
        header = DeleteTopicHeader(check_topic(topic))
        ext = header.to_ext()
        await self._ask_each(RequestCode.DELETE_TOPIC_IN_BROKER, ext, f"delete {topic}", absent=(TopicNotFound,))
        self._session.routes.forget(topic)

    async def preview_delete_topic(self, topic: str) -> Preview:
        """Return what `delete_topic` would do. Raises `TopicNotFound`."""
        refused = _of_the_broker(check_topic(topic), await self._own_names())
        if refused is not None:
            return refused
        table = (await self.topic_stats(topic)).offset_table
        messages = sum(queue.max_offset - queue.min_offset for queue in table.values())
        return Preview(
            f"topic {topic}: {counted(len(table), 'queue')} with {counted(messages, 'message')}",
            ("its queues and the offsets of its groups are deleted; that cannot be undone",),
        )

    async def _own_names(self) -> set[str]:
        return (await self._session.cluster(self._session.deadline(None))).own_names

    async def list_topics(self) -> list[str]:
        """Return all topics, including system topics, sorted."""
        return await self._session.topic_names(self._session.deadline(None))

    async def topic_config(self, topic: str) -> TopicConfig:
        """Return a topic's settings on the first broker that has it; `topic_configs` returns all.

        Raises:
            TopicNotFound: there is no such topic.
        """
        return next(iter((await self.topic_configs(topic)).values()))

    async def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        """Return a topic's settings by broker; raises `TopicNotFound` if there is no such topic."""
        header = GetTopicConfigHeader(check_topic(topic))
        return await self._read_each(
            TopicConfig.from_json,
            RequestCode.GET_TOPIC_CONFIG,
            header.to_ext(),
            f"settings of {topic}",
            absent=(TopicNotFound,),
        )

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the bounds and last change of every queue of a topic."""
        header = TopicStatsHeader(check_topic(topic))
        found = await self._read_each(
            TopicStats.from_json,
            RequestCode.GET_TOPIC_STATS_INFO,
            header.to_ext(),
            f"figures of {topic}",
            absent=(TopicNotFound,),
        )
        table = {queue: stats for each in found.values() for queue, stats in each.offset_table.items()}
        return TopicStats(table, sum(each.topic_put_tps for each in found.values()))

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers of a topic, with their announced addresses and numbers of queues.

        Raises:
            TopicNotFound: there is no such topic.
        """
        call = await self._ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route_ext(check_topic(topic)), f"route of {topic}")
        if not call.body:
            raise error_from_response(ResponseCode.TOPIC_NOT_EXIST, f"no route for topic {topic}", {})
        return TopicRoute.from_json(call.body)

    async def topic_summaries(
        self, topic: str | None = None, *, broker_name: str | None = None, permitted: bool = False
    ) -> list[TopicSummary]:
        """Return a broker's topics in short, sorted, or only `topic`.

        It is the broker at the client's address, or the named broker's master.

        Args:
            permitted: only topics on which the user has the right 'describe'. Otherwise all: a user with that right on
                the cluster may know them.
        """
        ext = ListTopicsHeader(topic, permitted or None).to_ext()
        call = await self._ask_one(broker_name, RequestCode.LIST_TOPICS, ext, "topics of the broker")
        return TopicSummaries.from_json(call.body).topics

    # -- queues and messages -----------------------------------------------------------------------------------

    async def queue_bounds(
        self, topics: Sequence[str], *, broker_name: str | None = None
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return the first and the next offset of what is on disk of each readable queue of topics of a broker.

        Topics that it does not have are left out. It is the broker at the client's address, or the named broker.
        """
        found = await self._offsets.queue_bounds([check_topic(topic) for topic in topics], broker_name)
        return {
            MessageQueue(topic, found.broker_name, queue.queue_id): (queue.min_offset, queue.max_offset)
            for topic, queues in found.topics.items()
            for queue in queues
        }

    async def earliest_message_time_ms(
        self, topic: str, queue_id: int, *, broker_name: str | None = None
    ) -> int | None:
        """Return when the first message of the queue was stored, in ms since 1970, or None if it is empty."""
        return await self._offsets.earliest_time_ms(await self._queue(topic, queue_id, broker_name))

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """Return a message by its offset message id; its checksums are verified.

        Raises:
            InvalidMessage: not an offset message id.
            NotFound: no broker has that message.
        """
        return (await self._find_message(offset_message_id))[1]

    async def find_messages(
        self,
        topic: str,
        key: str = "",
        *,
        max_messages: int = 32,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
    ) -> FoundMessages:
        """Return messages of `topic` with this unique id or key, newest first.

        Args:
            key: empty: any message that has one of them.
            max_messages: upper bound; a broker returns at most 64.
            begin, end: earliest and latest store time: a datetime, or milliseconds since 1970.
        """
        header = QueryMessageHeader(
            check_topic(topic),
            key,
            max_messages,
            0 if begin is None else timestamp_ms(begin),
            TIME_MAX_MS if end is None else timestamp_ms(end),
        )
        answers = await self._ask_all(
            await self._brokers(),
            RequestCode.QUERY_MESSAGE,
            header.to_ext(),
            f"key {key} of {topic}",
            accepted=_NOT_FOUND,
            or_slave=True,
        )
        found: list[ReceivedMessage] = []
        complete = True
        for name, call in answers.items():
            found += PulledMessages(topic, call.body, broker_name=name)
            complete &= QueryMessageResult.from_ext(call.answer.ext).index_complete is not False
        if len(answers) > 1:
            found.sort(key=lambda message: message.store_timestamp_ms, reverse=True)
        return FoundMessages(found[:max_messages], complete)

    async def fetch_messages(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        max_bytes: int = FETCH_BYTES_MAX,
        broker_name: str | None = None,
        group: str | None = None,
    ) -> FetchedMessages:
        """Return messages at offsets `[start, end)` of a queue that are on disk, as many as one answer holds.

        Args:
            broker_name: required if several brokers have a queue of that number.
            group: pull for it if none is on disk yet, or if the broker is one of RocketMQ's, which only have pulls.
        """
        from reput_client.consume.fetch_records import fetch_ext, fetched_block
        from reput_client.consume.pull import PULL_MESSAGES_MAX, MessageSelector, PulledMessages, pull_ext, pull_result

        queue = await self._queue(topic, queue_id, broker_name)
        ext = fetch_ext(topic, queue_id, start, end, max_bytes, "*")
        what, deadline = f"fetch from {topic}/{queue_id}", self._session.deadline(None)
        try:
            code = RequestCode.FETCH_RECORDS
            call = await read(self._session, code, ext, what=what, queue=queue, deadline=deadline)
            block = fetched_block(call)
        except RequestNotSupported:
            if group is None:
                raise
        else:
            if group is None or block.next_offset > start:
                messages = PulledMessages(topic, block.records, broker_name=queue.broker_name)
                return FetchedMessages(messages, block.next_offset, block.max_offset)
        wanted, count = MessageSelector.of("*", None), min(PULL_MESSAGES_MAX, end - start)
        ext = pull_ext(group, topic, queue_id, start, wanted, max_messages=count, max_bytes=max_bytes, wait_s=0.0)
        code = RequestCode.PULL_MESSAGE
        call = await read(self._session, code, ext, what=what, queue=queue, deadline=deadline)
        pulled = pull_result(queue, start, call, wanted)
        return FetchedMessages(pulled.messages, pulled.next_begin_offset, pulled.max_offset)

    # -- offsets of groups ---------------------------------------------------------------------------------------

    async def committed_offset(
        self, group: str, topic: str, queue_id: int, *, broker_name: str | None = None
    ) -> int | None:
        """Return the offset that a group has committed in a queue, or None."""
        queue = await self._queue(topic, queue_id, broker_name)
        return await self._offsets.committed(group, queue, or_slave=True)

    async def commit_offset(
        self, group: str, topic: str, queue_id: int, offset: int, *, broker_name: str | None = None
    ) -> None:
        """Commit that a group continues at `offset` of a queue."""
        queue = await self._queue(topic, queue_id, broker_name)
        await self._offsets.commit(group, queue, offset)


def _check_queues(*numbers: int) -> None:
    if not all(1 <= number <= QUEUES_MAX for number in numbers):
        raise ValueError(f"a topic has 1 to {QUEUES_MAX} queues")


def _of_type(message_type: str | None) -> str | None:
    """Return the change of a topic's attributes that sets its type; None for no change."""
    return None if message_type is None else f"+{MESSAGE_TYPE_ATTRIBUTE}={message_type}"


def _of_the_broker(topic: str, own_names: set[str]) -> Preview | None:
    """Return the obstacle to a change of a system topic; None for other topics."""
    if not is_system_topic(topic, own_names):
        return None
    return Preview(
        f"topic {topic} belongs to the broker",
        ("the broker creates it with the settings that it needs",),
        is_change=False,
        obstacle=f"topic {topic} belongs to the broker",
        remedy="use a topic of another name: reput topic list",
    )
