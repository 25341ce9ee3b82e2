"""The part of `Admin` for topics, their queues and messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from reput_client.admin_requests import AdminRequests
from reput_client.consume.offsets import timestamp_ms
from reput_client.consume.pull import FoundMessages, PulledMessages
from reput_client.received import ReceivedMessage
from reput_client.transport.session import route_ext
from reput_client.transport.standbys import read
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.pull import FETCH_BYTES_MAX
from reput_protocol.commands.query import QueryMessageHeader, QueryMessageResult
from reput_protocol.commands.topic import (
    MESSAGE_TYPE_ATTRIBUTE,
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
from reput_protocol.names import check_topic
from reput_protocol.wire.header import HeaderType

_MSGPACK: Final = HeaderType.MSGPACK
_QUEUES_MAX: Final = 65_536
_TIME_MAX_MS: Final = (1 << 63) - 1
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
            topic,
            read_queues=queues,
            write_queues=queues,
            perm=perm,
            message_type=message_type,
            brokers=brokers,
        )

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
        if not (1 <= read_queues <= _QUEUES_MAX and 1 <= write_queues <= _QUEUES_MAX):
            raise ValueError(f"a topic has 1 to {_QUEUES_MAX} queues")
        attributes = None if message_type is None else f"+{MESSAGE_TYPE_ATTRIBUTE}={message_type}"
        header = CreateTopicHeader(check_topic(topic), read_queues, write_queues, perm, attributes=attributes)
        ext = header.to_ext(_MSGPACK)
        await self._ask_each(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, f"create {topic}", brokers=brokers)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its queues, all groups' offsets in it, and its retry topics of groups that pop."""
        header = DeleteTopicHeader(check_topic(topic))
        ext = header.to_ext(_MSGPACK)
        await self._ask_each(
            RequestCode.DELETE_TOPIC_IN_BROKER, ext, f"delete {topic}", absent=(TopicNotFound,)
        )
        self._session.routes.forget(topic)

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
            header.to_ext(_MSGPACK),
            f"settings of {topic}",
            absent=(TopicNotFound,),
        )

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the bounds and last change of every queue of a topic."""
        header = TopicStatsHeader(check_topic(topic))
        found = await self._read_each(
            TopicStats.from_json,
            RequestCode.GET_TOPIC_STATS_INFO,
            header.to_ext(_MSGPACK),
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
        call = await self._ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, route_ext(check_topic(topic)), f"route of {topic}"
        )
        if not call.body:
            raise error_from_response(ResponseCode.TOPIC_NOT_EXIST, f"no route for topic {topic}", {})
        return TopicRoute.from_json(call.body)

    async def topic_summaries(
        self, topic: str | None = None, *, broker_name: str | None = None
    ) -> list[TopicSummary]:
        """Return a broker's topics in short, sorted, or only `topic`.

        It is the broker at the client's address, or the named broker's master.
        """
        ext = ListTopicsHeader(topic).to_ext(_MSGPACK)
        call = await self._ask_one(broker_name, RequestCode.LIST_TOPICS, ext, "topics of the broker")
        return TopicSummaries.from_json(call.body).topics

    # -- queues and messages -----------------------------------------------------------------------------------

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
            _TIME_MAX_MS if end is None else timestamp_ms(end),
        )
        answers = await self._ask_all(
            await self._brokers(),
            RequestCode.QUERY_MESSAGE,
            header.to_ext(_MSGPACK),
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
        from reput_client.consume.pull import (
            PULL_MESSAGES_MAX,
            MessageSelector,
            PulledMessages,
            pull_ext,
            pull_result,
        )

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
        ext = pull_ext(
            group, topic, queue_id, start, wanted, max_messages=count, max_bytes=max_bytes, wait_s=0.0
        )
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
