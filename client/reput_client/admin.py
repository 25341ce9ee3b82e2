"""The admin client; its methods for groups are in `admin_groups.py`, those for users in `admin_users.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from reput_client.admin_groups import GroupAdmin
from reput_client.admin_users import UserAdmin
from reput_client.cluster_members import ClusterMember, cluster_members
from reput_client.consume.offsets import OffsetRequests, timestamp_ms
from reput_client.consume.pull import FoundMessages, PulledMessages
from reput_client.received import ReceivedMessage
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import (
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
from reput_protocol.commands.operation import (
    BrokerDescription,
    ClientDescription,
    ClientDescriptions,
    ConfigChanged,
    ConfigChanges,
    ConfigOption,
    ConfigOptions,
    FlushedBody,
    Intake,
    SetConfigBody,
    SetIntakeHeader,
)
from reput_protocol.commands.query import QueryMessageHeader, QueryMessageResult
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
from reput_protocol.errors import NotFound, TopicNotFound, error_from_response
from reput_protocol.names import check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType

_MSGPACK = HeaderType.MSGPACK
_QUEUES_MAX = 65_536
_TIME_MAX_MS = (1 << 63) - 1
_NOT_FOUND = (ResponseCode.QUERY_NOT_FOUND.value,)


class Admin(GroupAdmin, UserAdmin):
    """Manages the brokers of a cluster; an async context manager for trio and asyncio.

    Changes are made at the master of every broker, and results of all of them are combined. Methods raise a subclass of
    `BrokerError` if the broker refuses, and `RequestTimeout` or `ConnectFailed` if no answer comes in
    time; if some of several brokers fail, `BrokersFailed` names them.

    Args:
        address: `host:port` of a broker or a name server; of several, the first that answers is used. A broker that is
            not registered with others is managed alone.
        timeout_s: seconds a request may take, including connecting.
    """

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self._offsets = OffsetRequests(self._session)

    # -- topics ------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 4,
        perm: int = Perm.READ_WRITE,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a topic, or change an existing one.

        Args:
            queues: for writing and for reading, on each broker.
            perm: bits of `Perm`: 4 read, 2 write, 6 both.
            brokers: names of brokers; without them, all.
        """
        await self.alter_topic(topic, read_queues=queues, write_queues=queues, perm=perm, brokers=brokers)

    async def alter_topic(
        self,
        topic: str,
        *,
        read_queues: int,
        write_queues: int,
        perm: int = Perm.READ_WRITE,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Set the numbers of queues for reading and writing separately, as needed to shrink a topic.

        Raises `BrokerNotFound` for a name in `brokers` without a master.
        """
        if not (1 <= read_queues <= _QUEUES_MAX and 1 <= write_queues <= _QUEUES_MAX):
            raise ValueError(f"a topic has 1 to {_QUEUES_MAX} queues")
        header = CreateTopicHeader(check_topic(topic), read_queues, write_queues, perm)
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
        call = await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, "list of topics")
        return sorted(TopicList.from_json(call.body).topics)

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

    # -- the broker --------------------------------------------------------------------------------------------

    async def broker_status(self, broker_name: str | None = None) -> dict[str, str]:
        """Return a broker's statistics by name, as text (RocketMQ: BrokerRuntimeInfo).

        They are those of the broker at the client's address, or of the named broker's master.
        """
        call = await self._ask_one(
            broker_name, RequestCode.GET_BROKER_RUNTIME_INFO, {}, "status of the broker"
        )
        return dict(KVTable.from_json(call.body).table)

    async def describe_broker(self, broker_name: str | None = None) -> dict[str, Any]:
        """Return a broker's state: what its page /status shows, and its `checks`.

        It is the broker at the client's address, or the named broker's master.

        Sizes (`..._b`) are in bytes, ages (`..._s`) in seconds, times in seconds since 1970.
        """
        call = await self._ask_one(broker_name, RequestCode.DESCRIBE_BROKER, {}, "state of the broker")
        return BrokerDescription.from_json(call.body).status

    async def list_clients(self, broker_name: str | None = None) -> list[ClientDescription]:
        """Return the connections of a broker, this client's included; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.LIST_CLIENTS, {}, "clients of the broker")
        return ClientDescriptions.from_json(call.body).clients

    async def broker_config(self, broker_name: str | None = None) -> list[ConfigOption]:
        """Return the options of a broker, with what set each; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.GET_CONFIG, {}, "configuration of the broker")
        return ConfigOptions.from_json(call.body).options

    async def set_broker_config(
        self, values: Mapping[str, str], *, broker_name: str | None = None
    ) -> list[ConfigChanged]:
        """Set options that can change while the broker runs, until its next reload or restart.

        Args:
            values: by key, as text without quotes, such as `async` or `500ms`.
            broker_name: as for `describe_broker`.

        Returns:
            The options that changed.

        Raises:
            BrokerError: a key is unknown or needs a restart, or a value is not valid. Nothing was changed.
        """
        body = SetConfigBody(dict(values)).to_json()
        call = await self._ask_one(
            broker_name, RequestCode.SET_CONFIG, {}, "configuration of the broker", body
        )
        return ConfigChanges.from_json(call.body).changes

    async def reload_broker_config(self, broker_name: str | None = None) -> list[ConfigChanged]:
        """Have a broker read its file and its environment again, and return every difference.

        `broker_name` as for `describe_broker`.

        Raises:
            BrokerError: there are mistakes in them. Nothing was changed.
        """
        call = await self._ask_one(broker_name, RequestCode.RELOAD_CONFIG, {}, "configuration of the broker")
        return ConfigChanges.from_json(call.body).changes

    async def set_intake(self, intake: Intake | str, *, broker_name: str | None = None) -> Intake:
        """Have the broker take or refuse messages of producers, and return what it did before.

        Returns when the messages that were taken before are on disk. Consumers continue in every state; delayed
        messages, retries and messages of open transactions are still delivered.

        Args:
            intake: `open`; `readonly`: refuses messages; `draining`: also reports that it is not ready, so that load
                balancers send no more clients.
            broker_name: as for `describe_broker`.
        """
        ext = SetIntakeHeader(Intake(intake)).to_ext(_MSGPACK)
        call = await self._ask_one(broker_name, RequestCode.SET_INTAKE, ext, "intake of the broker")
        return FlushedBody.from_json(call.body).was

    async def flush_log(self, *, broker_name: str | None = None) -> int:
        """Have the broker write its log to disk, and return up to which offset it is there."""
        call = await self._ask_one(broker_name, RequestCode.FLUSH_LOG, {}, "sync of the log")
        return FlushedBody.from_json(call.body).flushed_offset

    async def cluster_info(self) -> ClusterInfo:
        """Return the cluster's brokers and their addresses."""
        call = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, "brokers of the cluster")
        return ClusterInfo.from_json(call.body)

    async def cluster_members(self) -> list[ClusterMember]:
        """Return the members of every broker with their state; one that does not report has an `error`."""
        return await cluster_members(self._session)

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
        messages: list[DelayedMessage] = []
        masters = await self._masters()
        for name in masters:
            header = ListDelayedHeader(None if topic is None else check_topic(topic), key, max_messages)
            found: list[DelayedMessage] = []
            while True:
                header.max_num = max_messages - len(found)
                ext, what = header.to_ext(_MSGPACK), "list of delayed messages"
                call = (await self._ask_each(RequestCode.LIST_DELAYED_MESSAGES, ext, what, brokers=[name]))[
                    name
                ]
                page = DelayedMessageList.from_json(call.body)
                found += page.messages
                header.cursor = page.cursor
                if page.cursor is None or len(found) >= max_messages:
                    break
            messages += found
        if len(masters) > 1:
            messages.sort(key=lambda message: message.deliver_timestamp)
        return messages[:max_messages]

    async def cancel_delayed(self, topic: str, key: str) -> list[CancelledMessage]:
        """Cancel the delayed messages for `topic` with this unique id or key; return the outcome for each.

        `CANCELLED` and `ALREADY_CANCELLED` are durable: the message is never delivered. `DELIVERED`: it was too late.

        Raises:
            NotFound: no broker knows such a message, in any state.
        """
        header = CancelDelayedHeader(check_topic(topic), key)
        found = await self._read_each(
            CancelResult.from_json,
            RequestCode.CANCEL_DELAYED_MESSAGE,
            header.to_ext(_MSGPACK),
            f"cancel {key} of {topic}",
            absent=(NotFound,),
        )
        return [message for result in found.values() for message in result.messages]
