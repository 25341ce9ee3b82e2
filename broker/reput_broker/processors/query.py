"""Messages by unique id or key (12) and by physical offset (33), entries of queues (321) (RocketMQ:
QueryMessageProcessor, AdminBrokerProcessor).

Bulk readers such as Spark read ranges of queues, as the records are in the log: FETCH_RECORDS and QUERY_QUEUE_BOUNDS,
both Reput's own. There is no group and no waiting, and the only work per message is finding its place. In every flush
mode they show only what is on disk.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import trio

from reput_broker.put.held_pulls import ColdReads
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.store.base.errors import DiskFull, FileMissing
from reput_broker.store.base.results import GetMessageResult, GetStatus, TransferLimits
from reput_broker.store.index.query import QueryResult
from reput_broker.store.message_reader import HeldExtents
from reput_broker.tenure.core import Core
from reput_protocol.codes import ExpressionType, Perm, RequestCode, ResponseCode
from reput_protocol.commands.base import encode_json
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.commands.pull import (
    FETCH_BYTES_MAX,
    FetchRecordsHeader,
    FetchRecordsResult,
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsTable,
)
from reput_protocol.commands.query import (
    ConsumeQueueBody,
    ConsumeQueueData,
    QueryConsumeQueueHeader,
    QueryMessageHeader,
    QueryMessageResult,
    ViewMessageHeader,
)
from reput_protocol.errors import ErrorCode
from reput_protocol.filter.tags import TagFilter
from reput_protocol.record.record import decode_record
from reput_protocol.store.unit import UNIT_BYTES
from reput_protocol.wire.header import Value

_MESSAGES_MAX = 16_384
"""As many small messages as a mebibyte holds."""
_COLD_READS_AT_ONCE = 2
_QUEUES_A_TURN = 64


@dataclass(eq=False, repr=False)
class FetchProcessor(Processor):
    """Serves ranges of records."""

    _core: Core
    _cold_reads: ColdReads = field(default_factory=lambda: ColdReads(_COLD_READS_AT_ONCE, "fetch again"), init=False)

    @serves(RequestCode.FETCH_RECORDS)
    def fetch(self, request: Request) -> Response | None:
        """Answer with the records of a range from its start, as many as one answer holds."""
        header = FetchRecordsHeader.from_ext(request.ext)
        there = self._core.topic_access.readable(header.topic, header.queue_id).generation
        if header.generation and there and header.generation != there:
            raise Refusal(
                ErrorCode.NO_TOPIC,
                f"topic {header.topic!r} was deleted and created again; ask for the bounds of its queues",
            )
        if not 0 <= header.start_offset <= header.end_offset:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"[{header.start_offset}, {header.end_offset}) is not a valid range of queue offsets",
            )
        tag_filter = TagFilter.parse(header.subscription)
        while True:
            high = self._core.store.durable_max_offset_in_queue(header.topic, header.queue_id)
            low = self._core.store.min_offset_in_queue(header.topic, header.queue_id)
            end = min(header.end_offset, high)
            if not low <= header.start_offset < end:
                moved = header.start_offset < low or header.start_offset > high
                code = ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND
                place = FetchRecordsResult(max(low, min(header.start_offset, high)), low, high)
                return Response(int(code), place.to_ext(request.header_type))
            result = self._get(header, end, tag_filter, request.client.share)
            ext = FetchRecordsResult(result.next_begin_offset, low, high).to_ext(request.header_type)
            if result.status is GetStatus.MESSAGE_WAS_REMOVING:
                return Response(int(ResponseCode.PULL_OFFSET_MOVED), ext)
            if result.status is not GetStatus.FOUND:
                return Response(0, ext)
            try:
                if not result.cold:
                    return Response(0, ext, self._core.store.read_extents(result.extents))
                held = self._core.store.hold_extents(result.extents)
            except FileMissing:
                if result.extents[0].physical_offset >= self._core.store.min_physical_offset:
                    raise
                continue  # deleted since the queue was read: read it again
            request.client.spawn(self._read_cold, request, held, ext)
            return None

    def _get(self, header: FetchRecordsHeader, end: int, tag_filter: TagFilter, share: int) -> GetMessageResult:
        count = min(end - header.start_offset, _MESSAGES_MAX)
        size = min(max(1, header.max_bytes), FETCH_BYTES_MAX, share)
        limits = TransferLimits(size, count, size, count, count * UNIT_BYTES)
        place = header.topic, header.queue_id, header.start_offset
        return self._core.store.get_message(*place, count, size, tag_filter, limits=limits)

    async def _read_cold(self, request: Request, held: HeldExtents, ext: dict[str, Value]) -> None:
        """Answer with records outside the page cache."""
        try:
            response = Response(0, ext, await self._cold_reads.read(request.client, held, held.read))
        except Refusal as refusal:
            response = refusal.response()
        request.reply(response)

    @serves(RequestCode.QUERY_QUEUE_BOUNDS)
    async def bounds(self, request: Request) -> Response:
        """Answer with the bounds of the queues of topics. Unknown topics are left out."""
        asked = request.content(QueueBoundsRequest)
        found: dict[str, list[QueueBounds]] = {}
        generations: dict[str, str] = {}
        queues_done = 0
        for topic in dict.fromkeys(asked.topics):
            config = self._core.tables.topics.get(topic)
            if config is None:
                continue
            found[topic] = queues = []
            generations[topic] = config.generation
            for queue_id in range(config.read_queue_nums if config.perm & Perm.READ else 0):
                low = self._core.store.min_offset_in_queue(topic, queue_id)
                high = self._core.store.durable_max_offset_in_queue(topic, queue_id)
                queues.append(QueueBounds(queue_id, low, max(low, high)))
                queues_done += 1
                if queues_done % _QUEUES_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
        table = QueueBoundsTable(self._core.config.broker_name, found, generations)
        return Response(0, body=await write_in_turns(table))


_QUERIES_AT_ONCE = 2
_ANSWER_BYTES_MAX = 15 * 1024 * 1024
_ENTRIES_MAX = 16_384
"""Entries of a queue in one answer."""
_ENTRIES_A_TURN = 128
"""Entries after which other tasks run."""


class QueryProcessor(Processor):
    """Finds messages. A worker thread reads index pages and records, which may not be in the page cache."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._group_access = core.group_access
        self._limiter = trio.CapacityLimiter(_QUERIES_AT_ONCE)

    @serves(RequestCode.VIEW_MESSAGE_BY_ID)
    def view_message(self, request: Request) -> Response:
        """Answer with the record at a physical offset."""
        header = ViewMessageHeader.from_ext(request.ext)
        record = self._store.message_at(header.offset)
        if record is None:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"there is no message at physical offset {header.offset}; it may have been deleted",
                response_code=1,
            )
        if request.principal is not None:
            request.check_topic_of_message("read", decode_record(record).topic)
        return Response(0, {}, record)

    @serves(RequestCode.QUERY_CONSUME_QUEUE)
    async def consume_queue(self, request: Request) -> Response:
        """Answer with entries of a queue, and with a group's subscription and filter."""
        header = QueryConsumeQueueHeader.from_ext(request.ext)
        store, topic, queue_id = self._store, header.topic, header.queue_id
        if (topic, queue_id) not in store.queues():
            raise Refusal(
                ErrorCode.NOT_FOUND, f"topic {topic!r} has no queue {queue_id} with messages", response_code=1
            )
        body = ConsumeQueueBody(
            [], store.min_offset_in_queue(topic, queue_id), store.max_offset_in_queue(topic, queue_id)
        )
        if header.consumer_group is not None:
            group = header.consumer_group
            subscription = self._group_access.subscribed(group, topic)
            body.subscription_data = subscription
            body.filter_data = _filter_text(group, topic, subscription)
        wanted = min(header.count, _ENTRIES_MAX)
        while len(body.queue_data) < wanted:
            await trio.lowlevel.checkpoint()
            count = min(_ENTRIES_A_TURN, wanted - len(body.queue_data))
            units = store.queue_units(topic, queue_id, header.index + len(body.queue_data), count)
            if not units:
                break
            body.queue_data += [ConsumeQueueData(unit.physical_offset, unit.size, unit.tags_code) for unit in units]
        return Response(0, body=await write_in_turns(body))

    @serves(RequestCode.QUERY_MESSAGE)
    def query(self, request: Request) -> None:
        """Answer with the records found, newest first, or QUERY_NOT_FOUND; requests behind this one do not wait."""
        header = QueryMessageHeader.from_ext(request.ext)
        is_settled = False
        with suppress(DiskFull):  # dispatch meets it too, and reports it
            self._store.complete_index()
            is_settled = self._store.dispatch_is_idle() and self._store.is_confirmed
        request.client.spawn(self._find, request, header, is_settled)

    async def _find(self, request: Request, header: QueryMessageHeader, is_settled: bool) -> None:
        def find() -> QueryResult:
            return self._store.query_message(
                header.topic, header.key, header.max_num, header.begin_timestamp, header.end_timestamp
            )

        try:
            found = await trio.to_thread.run_sync(find, limiter=self._limiter)
            found = found._replace(is_complete=found.is_complete and is_settled)
            response = self._answer(request, header, found)
        except Exception as error:
            response = Refusal(ErrorCode.INTERNAL, f"the look-up failed: {error}; ask again").response()
        request.reply(response)

    def _answer(self, request: Request, header: QueryMessageHeader, found: QueryResult) -> Response:
        complete = None if found.is_complete or not request.is_native else False
        ext = QueryMessageResult(found.index_timestamp_ms, found.index_offset, complete).to_ext(request.header_type)
        if not found.records:
            what = f"has the key {header.key!r}" if header.key else "was stored"
            text = f"no message of topic {header.topic} {what} in that time"
            if not found.is_complete:
                text += "; the index is being rebuilt after a crash, or is off: ask again later, or name a shorter time"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), ext, remark=f"NOT_FOUND: {text}")
        records: list[bytes] = []
        size = 0
        for record in found.records:
            size += len(record)
            if records and size > _ANSWER_BYTES_MAX:
                break
            records.append(record)
        return Response(0, ext, b"".join(records))


def _filter_text(group: str, topic: str, subscription: SubscriptionData | None) -> str:
    """Return what RocketMQ's tools print as the filter: JSON, `null` for a tag expression."""
    if subscription is None:
        return f"{group}@{topic} is not online!"
    if subscription.expression_type == ExpressionType.TAG:
        return "null"
    members = {
        "consumerGroup": group,
        "expression": subscription.sub_string,
        "expressionType": subscription.expression_type,
        "topic": topic,
    }
    return encode_json(members).decode()
