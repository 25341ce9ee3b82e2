"""The admin client; its methods for groups are in `admin_groups.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from reput_client.admin_groups import GroupAdmin
from reput_client.consume.offsets import OffsetRequests, timestamp_ms
from reput_client.consume.pull import FoundMessages, PulledMessages
from reput_client.received import ReceivedMessage
from reput_client.transport.backoff import Backoff
from reput_client.transport.session import (
    CONNECT_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    raise_refusal,
    route_ext,
)
from reput_protocol.codes import BoundaryType, Perm, RequestCode, ResponseCode
from reput_protocol.commands.delay import (
    CancelDelayedHeader,
    CancelledMessage,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
    ListDelayedHeader,
)
from reput_protocol.commands.election import PromoteBrokerHeader, Promotion
from reput_protocol.commands.query import QueryMessageHeader, QueryMessageResult, ViewMessageHeader
from reput_protocol.commands.topic import (
    ClusterInfo,
    CreateTopicHeader,
    DeleteTopicHeader,
    GetTopicConfigHeader,
    KVTable,
    TopicConfig,
    TopicList,
    TopicRoute,
    TopicStats,
    TopicStatsHeader,
)
from reput_protocol.errors import ErrorCode, NotFound, error_from_response
from reput_protocol.names import check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.record import decode_record
from reput_protocol.wire.header import HeaderType

_MSGPACK = HeaderType.MSGPACK
_QUEUES_MAX = 65_536
_TIME_MAX_MS = (1 << 63) - 1


class Admin(GroupAdmin):
    """Manages one broker; an async context manager for trio and asyncio.

    Methods raise a subclass of `BrokerError` if the broker refuses, and `RequestTimeout`, `ConnectFailed` or
    `ConnectionLost` if no answer comes in time.

    Args:
        address: `host:port` of the broker; of several, the first that answers is used.
        timeout_s: seconds a request may take, including connecting.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        super().__init__(
            address, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s, new_backoff=new_backoff
        )
        self._offsets = OffsetRequests(self._session)

    # -- topics ------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, *, queues: int = 4, perm: int = Perm.READ_WRITE) -> None:
        """Create a topic, or change an existing one.

        Args:
            queues: for writing and for reading.
            perm: bits of `Perm`: 4 read, 2 write, 6 both.
        """
        await self.alter_topic(topic, read_queues=queues, write_queues=queues, perm=perm)

    async def alter_topic(
        self, topic: str, *, read_queues: int, write_queues: int, perm: int = Perm.READ_WRITE
    ) -> None:
        """Set the numbers of queues for reading and writing separately, as needed to shrink a topic."""
        if not (1 <= read_queues <= _QUEUES_MAX and 1 <= write_queues <= _QUEUES_MAX):
            raise ValueError(f"a topic has 1 to {_QUEUES_MAX} queues")
        header = CreateTopicHeader(check_topic(topic), read_queues, write_queues, perm)
        await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext(_MSGPACK), f"create {topic}")

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic, its queues, and all groups' offsets in it."""
        header = DeleteTopicHeader(check_topic(topic))
        await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, header.to_ext(_MSGPACK), f"delete {topic}")
        self._session.routes.forget(topic)

    async def list_topics(self) -> list[str]:
        """Return all topics, including system topics, sorted."""
        call = await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "list of topics")
        return sorted(TopicList.from_json(call.body).topics)

    async def topic_config(self, topic: str) -> TopicConfig:
        """Return a topic's settings.

        Raises:
            TopicNotFound: there is no such topic.
        """
        header = GetTopicConfigHeader(check_topic(topic))
        call = await self._ask(RequestCode.GET_TOPIC_CONFIG, header.to_ext(_MSGPACK), f"settings of {topic}")
        return TopicConfig.from_json(call.body)

    async def topic_stats(self, topic: str) -> TopicStats:
        """Return the bounds and last change of every queue of a topic."""
        header = TopicStatsHeader(check_topic(topic))
        call = await self._ask(
            RequestCode.GET_TOPIC_STATS_INFO, header.to_ext(_MSGPACK), f"figures of {topic}"
        )
        return TopicStats.from_json(call.body)

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

    # -- the broker --------------------------------------------------------------------------------------------

    async def broker_status(self) -> dict[str, str]:
        """Return the broker's statistics by name, as text (RocketMQ: BrokerRuntimeInfo)."""
        call = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}, "status of the broker")
        return dict(KVTable.from_json(call.body).table)

    async def cluster_info(self) -> ClusterInfo:
        """Return the cluster's brokers and their addresses."""
        call = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, "brokers of the cluster")
        return ClusterInfo.from_json(call.body)

    async def promote_broker(self, broker_id: int, *, force: bool = False) -> Promotion:
        """Make another member the master of the broker's group, which an engine elects otherwise.

        Args:
            broker_id: the member's own number, as configured.
            force: even a member that is not in sync. What it does not have is lost.

        Raises:
            NotMaster: this broker is not the master; `ext` has the master's address if it is known.
            BrokerError: it was refused, and nothing has changed. The remark says what would be lost by force.
        """
        header = PromoteBrokerHeader(broker_id, force)
        call = await self._ask(
            RequestCode.PROMOTE_BROKER, header.to_ext(_MSGPACK), f"promotion of broker {broker_id}"
        )
        return Promotion.from_json(call.body)

    # -- queues and messages -----------------------------------------------------------------------------------

    async def min_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset of the first message still in the queue.

        Args:
            broker_name: required if several brokers have a queue of that number.
        """
        return await self._offsets.min_offset(await self._queue(topic, queue_id, broker_name))

    async def max_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset that the queue's next message will get."""
        return await self._offsets.max_offset(await self._queue(topic, queue_id, broker_name))

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        when: datetime | int,
        boundary: str = BoundaryType.LOWER,
        *,
        broker_name: str | None = None,
    ) -> int:
        """Return the offset of the first message stored at or after `when` (datetime, or ms since 1970)."""
        queue = await self._queue(topic, queue_id, broker_name)
        return await self._offsets.offset_by_time(queue, when, boundary)

    async def earliest_message_time_ms(
        self, topic: str, queue_id: int, *, broker_name: str | None = None
    ) -> int | None:
        """Return when the first message of the queue was stored, in ms since 1970, or None if it is empty."""
        return await self._offsets.earliest_time_ms(await self._queue(topic, queue_id, broker_name))

    async def _queue(self, topic: str, queue_id: int, broker_name: str | None) -> MessageQueue:
        return await self._session.queue(check_topic(topic), queue_id, broker_name)

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """Return a message by its offset message id; its checksums are verified.

        Raises:
            InvalidMessage: not an offset message id.
            NotFound: the broker has no message there.
        """
        _, physical_offset = decode_offset_message_id(offset_message_id)
        call = await self._ask(
            RequestCode.VIEW_MESSAGE_BY_ID,
            ViewMessageHeader(physical_offset).to_ext(_MSGPACK),
            f"message {offset_message_id}",
        )
        if not call.body:
            raise NotFound(ErrorCode.NOT_FOUND, f"no message {offset_message_id}")
        record = bytes(call.body)
        decode_record(record)  # with its checksums
        return ReceivedMessage.of_record(record)

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
    ) -> FoundMessages:
        """Return messages of `topic` with this unique id or key, newest first.

        Args:
            max_messages: upper bound; the broker returns at most 64.
            begin, end: earliest and latest store time: a datetime, or milliseconds since 1970.
        """
        header = QueryMessageHeader(
            check_topic(topic),
            key,
            max_messages,
            0 if begin is None else timestamp_ms(begin),
            _TIME_MAX_MS if end is None else timestamp_ms(end),
        )
        call = await self._session.ask(
            RequestCode.QUERY_MESSAGE, header.to_ext(_MSGPACK), what=f"key {key} of {topic}"
        )
        if call.answer.code != ResponseCode.QUERY_NOT_FOUND:
            raise_refusal(call)
        result = QueryMessageResult.from_ext(call.answer.ext)
        return FoundMessages(PulledMessages(topic, call.body), result.index_complete is not False)

    # -- delayed messages --------------------------------------------------------------------------------------

    async def list_delayed(
        self, *, topic: str | None = None, key: str | None = None, max_messages: int = 1000
    ) -> list[DelayedMessage]:
        """Return delayed messages that are not delivered yet, the earliest first.

        Args:
            topic: only those for this topic.
            key: only those with this unique id or key.
            max_messages: upper bound.
        """
        header = ListDelayedHeader(None if topic is None else check_topic(topic), key, max_messages)
        messages: list[DelayedMessage] = []
        while True:
            header.max_num = max_messages - len(messages)
            ext = header.to_ext(_MSGPACK)
            call = await self._ask(RequestCode.LIST_DELAYED_MESSAGES, ext, "list of delayed messages")
            page = DelayedMessageList.from_json(call.body)
            messages += page.messages
            header.cursor = page.cursor
            if page.cursor is None or len(messages) >= max_messages:
                return messages

    async def cancel_delayed(self, topic: str, key: str) -> list[CancelledMessage]:
        """Cancel the delayed messages for `topic` with this unique id or key; return the outcome for each.

        `CANCELLED` and `ALREADY_CANCELLED` are durable: the message is never delivered. `DELIVERED`: it was too late.

        Raises:
            NotFound: the broker knows no such message, in any state.
        """
        header = CancelDelayedHeader(check_topic(topic), key)
        call = await self._ask(
            RequestCode.CANCEL_DELAYED_MESSAGE, header.to_ext(_MSGPACK), f"cancel {key} of {topic}"
        )
        return CancelResult.from_json(call.body).messages
