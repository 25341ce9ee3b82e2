"""Messages by unique id or key (12) and by physical offset (33), entries of queues (321) (RocketMQ:
QueryMessageProcessor, AdminBrokerProcessor)."""

from __future__ import annotations

from contextlib import suppress

import trio

from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.index.query import QueryResult
from reput_broker.tenure.core import Core
from reput_protocol.codes import ExpressionType, RequestCode, ResponseCode
from reput_protocol.commands.body import encode_json
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.commands.query import (
    ConsumeQueueBody,
    ConsumeQueueData,
    QueryConsumeQueueHeader,
    QueryMessageHeader,
    QueryMessageResult,
    ViewMessageHeader,
)
from reput_protocol.errors import ErrorCode
from reput_protocol.record.record import decode_record

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
            body.queue_data += [
                ConsumeQueueData(unit.physical_offset, unit.size, unit.tags_code) for unit in units
            ]
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
        ext = QueryMessageResult(found.index_timestamp_ms, found.index_offset, complete).to_ext(
            request.header_type
        )
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
