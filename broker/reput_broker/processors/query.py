"""Messages by unique id or key (12) and by physical offset (33) (RocketMQ: QueryMessageProcessor)."""

from __future__ import annotations

from contextlib import suppress

import trio

from reput_broker.request import Handler, Refusal, Request, Response
from reput_broker.store.errors import DiskFull
from reput_broker.store.index.query import QueryResult
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.query import QueryMessageHeader, QueryMessageResult, ViewMessageHeader
from reput_protocol.errors import ErrorCode

_QUERIES_AT_ONCE = 2
_ANSWER_BYTES_MAX = 15 * 1024 * 1024


class QueryProcessor:
    """Finds messages. A worker thread reads index pages and records, which may not be in the page cache."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._limiter = trio.CapacityLimiter(_QUERIES_AT_ONCE)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
        }

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
        return Response(0, {}, record)

    def query(self, request: Request) -> None:
        """Answer with the records found, newest first, or QUERY_NOT_FOUND; requests behind this one do not wait."""
        header = QueryMessageHeader.from_ext(request.ext)
        if not header.key:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, "the key is empty; name a unique id or a key")
        is_settled = False
        with suppress(DiskFull):  # dispatch meets it too, and reports it
            self._store.complete_index()
            is_settled = self._store.dispatch_idle
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
            text = f"no message of topic {header.topic} has the key {header.key!r} in that time"
            if not found.is_complete:
                text += "; the index is being rebuilt after a crash, or is off: ask again later"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), ext, remark=f"NOT_FOUND: {text}")
        records: list[bytes] = []
        size = 0
        for record in found.records:
            size += len(record)
            if records and size > _ANSWER_BYTES_MAX:
                break
            records.append(record)
        return Response(0, ext, b"".join(records))
