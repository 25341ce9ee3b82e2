"""Pulling by offset: the caller decides what to read, from where, and what to commit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from reput_client.consume.fetch_records import (
    AHEAD_BYTES_MAX,
    COLUMN_BYTES,
    NO_END,
    ColumnsResult,
    ReadAhead,
    columns_result,
    fetch_ext,
    fetched,
    no_columns,
    require_columns,
)
from reput_client.consume.offsets import QueueBounds
from reput_client.consume.pull import (
    PULL_BYTES_MAX,
    PULL_GRACE_S,
    PULL_MESSAGES_MAX,
    MessageSelector,
    PullResult,
    PullStatus,
    pull_ext,
    pull_result,
)
from reput_client.received import V
from reput_client.transport.address import Address
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import is_not_master
from reput_client.transport.standbys import ask_slave, from_slave_or_master
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.errors import BrokerError
from reput_protocol.filter.tags import TagFilter
from reput_protocol.names import check_client_group, check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call

log = logging.getLogger("reput_client")


@dataclass(frozen=True, kw_only=True)
class PullConsumerOptions(ClientOptions, Generic[V]):
    """See `PullConsumer`."""

    group: str
    deserializer: Callable[[bytes], V] | None = None


class PullConsumer(QueueBounds, Generic[V]):
    """Pulls messages and keeps a group's offsets; an async context manager for trio and asyncio.

    Tasks may share one; their pulls wait concurrently on one connection.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        group: the consumer group for `commit` and `committed`.
        deserializer: returns `ReceivedMessage.value` for a body, such as `Json(Order).deserialize`.
        timeout_s: seconds a request may take, including connecting; for a pull, in addition to `wait_s`.

    Raises:
        InvalidName: the group's name is not valid.
    """

    @takes(PullConsumerOptions)
    def __init__(self, options: PullConsumerOptions[V]) -> None:
        self.group = check_client_group(options.group)
        self._deserializer = options.deserializer
        super().__init__(options)
        self._new_read_aheads()

    def _new_read_aheads(self) -> None:
        self._read_ahead = ReadAhead(self._session, bytes_max=AHEAD_BYTES_MAX)
        self._columns_ahead = ReadAhead(self._session, RequestCode.FETCH_RECORDS, bytes_max=AHEAD_BYTES_MAX)
        self._suggested: dict[MessageQueue, int] = {}
        """Which member of its broker the last answer about each queue suggests (RocketMQ: pullFromWhichNodeTable)."""
        self._ends: dict[MessageQueue, int] = {}
        """Where the last pull of each queue has ended."""

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of `topic`.

        Raises:
            TopicNotFound: there is no such topic.
        """
        route = await self._session.fetch_route(check_topic(topic), self._session.deadline(None))
        return list(route.readable)

    async def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = PULL_MESSAGES_MAX,
        wait_s: float = 15.0,
        tags: str = "*",
        sql: str | None = None,
        max_bytes: int = PULL_BYTES_MAX,
        read_ahead: bool | None = None,
        broker_name: str | None = None,
    ) -> PullResult[V]:
        """Return messages of one queue from `offset` on; waits up to `wait_s` seconds if there are none.

        The result says why nothing was found (`status`), and where to continue (`next_begin_offset`).

        Args:
            max_messages, max_bytes: upper bounds; the first message is returned whatever its size.
            tags: `*`, or tags joined by `||`.
            sql: instead of tags, a SQL92 expression over message properties, evaluated by the broker.
            read_ahead: if the queue has more, request it at once. The next pull from `next_begin_offset` with the same
                arguments takes it; its answer, including the bounds, may be as old as this pull. One answer per queue
                is kept, and 32 MiB of all. None: do so if this pull itself begins where the last one of its queue has
                ended.
            broker_name: required if several brokers have a queue `queue_id` of the topic.

        Raises:
            TopicNotFound, PermissionDenied, BrokerError: refused.
            AmbiguousQueue: several brokers have such a queue, and `broker_name` is not given.
            FilterSyntaxError: `tags` cannot be parsed.
            FilterRefused: the broker cannot parse `sql`; says where.
            RecordMalformed: the answer has no records. (A single unreadable record is a damaged message.)
            RequestTimeout, ConnectFailed: no answer in time.
        """
        if offset < 0 or max_messages < 1 or max_bytes < 1 or wait_s < 0:
            raise ValueError("offset and wait_s must be 0 or more, max_messages and max_bytes 1 or more")
        wanted = MessageSelector.of(tags, sql)
        deadline = self._session.deadline(None)
        queue = await self._session.queue(check_topic(topic), queue_id, broker_name, deadline)

        terms = wanted, max_messages, max_bytes
        what, until = f"pull from {topic}/{queue_id}", deadline + (wait_s + PULL_GRACE_S if wait_s else 0.0)
        now = self._session.runtime.now
        waited_until = now() + wait_s
        ext = partial(
            pull_ext, self.group, topic, queue_id, wanted=wanted, max_messages=max_messages, max_bytes=max_bytes
        )

        async def from_slave(address: Address) -> PullResult | None:
            call = await ask_slave(
                self._session,
                address,
                RequestCode.PULL_MESSAGE,
                ext(offset, wait_s=max(0.0, waited_until - now())),
                what=what,
                queue=queue,
                deadline=deadline,
                until=until,
            )
            if call is None:
                return None
            try:
                result = pull_result(queue, offset, call, wanted)
            except BrokerError as error:
                log.info("%s: not from the slave %s: %s", what, address, error)
                return None
            # A slave may not have these messages yet; then only the master knows what follows.
            if result.status is PullStatus.OFFSET_ILLEGAL or result.next_begin_offset < offset:
                return None
            self._suggested[queue] = result.suggested_broker_id
            return result

        async def from_master(patient: bool) -> PullResult:
            self._suggested.pop(queue, None)  # that slave has not answered
            call = None
            if queue in self._read_ahead.asked:
                call = await self._read_ahead.take(queue, (offset, *terms), deadline)
            if call is None or is_not_master(call) or (wait_s and call.answer.code == ResponseCode.PULL_NOT_FOUND):
                call = await self._session.ask(
                    RequestCode.PULL_MESSAGE,
                    ext(offset, wait_s=max(0.0, waited_until - now())),
                    what=what,
                    queue=queue,
                    deadline=until,
                    patient=patient,
                )
            result = pull_result(queue, offset, call, wanted)
            self._suggested[queue] = result.suggested_broker_id
            goes_on = self._ends.get(queue) == offset if read_ahead is None else read_ahead
            self._ends[queue] = result.next_begin_offset
            has_more = offset < result.next_begin_offset < result.max_offset
            if goes_on and has_more and result.suggested_broker_id == MASTER_ID:
                end = result.next_begin_offset
                connection = self._session.known_connection(queue)
                self._read_ahead.start(queue, (end, *terms), ext(end, wait_s=0.0), connection, max_bytes)
            return result

        suggested_id = self._suggested.get(queue, MASTER_ID)
        suggested = self._session.brokers.slaves.get(queue.broker_name, {}).get(suggested_id)
        result = await from_slave_or_master(self._session, queue, deadline, from_slave, from_master, suggested)
        if self._deserializer is not None:
            result.messages._delivered_by(None, self._deserializer)  # noqa: SLF001
        return result

    async def pull_columns(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        wait_s: float = 15.0,
        tags: str = "*",
        max_bytes: int = COLUMN_BYTES,
        read_ahead: bool = True,
        broker_name: str | None = None,
    ) -> ColumnsResult:
        """Return messages of one queue from `offset` on as columns; waits up to `wait_s` seconds if there are none.

        For programs that read much: the broker sends blocks of its log, and no object is created per message. Checksums
        and tags are checked for all messages at once. RocketMQ's brokers have no blocks; from them it is a pull.

        Args:
            tags: `*`, or tags joined by `||`.
            max_bytes: of records, at most 4 MiB; the first message is returned whatever its size.
            read_ahead: request the next messages at once.
            broker_name: required if several brokers have a queue `queue_id` of the topic.

        Raises:
            DamagedMessage: the message at `offset` cannot be read; continue with `offset` + 1. (Messages before a
                damaged one are returned first. With `tags` and an unreadable record, the offset may be that of an
                earlier message with another tag.)
            TopicNotFound, PermissionDenied, BrokerError: refused.
            FilterSyntaxError: `tags` cannot be parsed.
            RequestTimeout, ConnectFailed: no answer in time.
            ModuleNotFoundError: NumPy is not installed.
        """
        if offset < 0 or max_bytes < 1 or wait_s < 0:
            raise ValueError("offset and wait_s must be 0 or more, max_bytes 1 or more")
        require_columns()
        tag_filter = TagFilter.parse(tags)
        deadline = self._session.deadline(None)
        queue = await self._session.queue(check_topic(topic), queue_id, broker_name, deadline)
        ext = fetch_ext(topic, queue_id, offset, NO_END, max_bytes, tags)

        async def from_slave(address: Address) -> tuple[None]:
            del address
            return (None,)

        async def from_master(patient: bool) -> tuple[Call | None]:
            connection = await self._session.open_for(queue, deadline, patient=patient)
            if connection.is_rocketmq:
                return (None,)
            call = await self._columns_ahead.take(queue, ext, deadline)
            if call is None or is_not_master(call):
                call = await self._session.ask(
                    RequestCode.FETCH_RECORDS,
                    ext,
                    what=f"fetch from {topic}/{queue_id}",
                    queue=queue,
                    deadline=deadline,
                    patient=patient,
                )
            return (call,)

        (call,) = await from_slave_or_master(self._session, queue, deadline, from_slave, from_master)
        if call is None:
            return await self._pull_as_columns(queue, offset, wait_s, tag_filter, max_bytes, read_ahead=read_ahead)
        result = fetched(topic, queue_id, offset, call, tag_filter)
        is_beyond = result.status is PullStatus.OFFSET_ILLEGAL and offset > result.max_offset
        if is_beyond or result.status is PullStatus.NO_NEW_MESSAGE:
            # Blocks have durable messages only; an ordinary pull also returns later ones, and can wait.
            return await self._pull_as_columns(queue, offset, wait_s, tag_filter, max_bytes, read_ahead=False)
        if read_ahead and offset < result.next_begin_offset < result.max_offset:
            following = fetch_ext(topic, queue_id, result.next_begin_offset, NO_END, max_bytes, tags)
            connection = self._session.known_connection(queue)
            self._columns_ahead.start(queue, following, following, connection, max_bytes)
        return result

    async def _pull_as_columns(
        self,
        queue: MessageQueue,
        offset: int,
        wait_s: float,
        tag_filter: TagFilter,
        max_bytes: int,
        *,
        read_ahead: bool,
    ) -> ColumnsResult:
        topic, broker_name, queue_id = queue
        pulled = await self.pull(
            topic,
            queue_id,
            offset,
            wait_s=wait_s,
            tags=tag_filter.expression,
            max_bytes=max_bytes,
            read_ahead=read_ahead,
            broker_name=broker_name,
        )
        empty = ColumnsResult(
            PullStatus.NO_NEW_MESSAGE if pulled.status is PullStatus.FOUND else pulled.status,
            no_columns(topic, queue_id),
            pulled.next_begin_offset,
            pulled.min_offset,
            pulled.max_offset,
        )
        records = pulled.messages.record_data
        return columns_result(topic, queue_id, offset, records, empty, tag_filter)

    async def commit(self, topic: str, queue_id: int, offset: int, *, broker_name: str | None = None) -> None:
        """Commit that the group continues at `offset`; a lower one than before rewinds.

        Once this returns, the commit survives a killed broker.

        Args:
            broker_name: required, here and below, if several brokers have a queue of that number.
        """
        await self._offsets.commit(self.group, await self._queue(topic, queue_id, broker_name), offset)

    async def committed(
        self, topic: str, queue_id: int, *, broker_name: str | None = None, set_zero_if_not_found: bool = False
    ) -> int | None:
        """Return the group's committed offset, or None if it has none.

        While the master cannot be reached a slave is asked, which may lack the last commits.

        With `set_zero_if_not_found` it is 0, as for RocketMQ's clients, if there is none but the queue still has all
        its messages and they are recent.
        """
        return await self._offsets.committed(
            self.group,
            await self._queue(topic, queue_id, broker_name),
            set_zero_if_not_found=set_zero_if_not_found,
            or_slave=True,
        )

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections."""
        super()._after_fork()
        self._new_read_aheads()
