"""Positions in a queue: bounds and offsets by time (29, 30, 31, 32) (RocketMQ: AdminBrokerProcessor)."""

from __future__ import annotations

from reput_broker.processors.topic_access import TopicAccess
from reput_broker.request import Handler, Request, Response
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import RequestCode
from reput_protocol.commands.offset import EarliestTimeResult, OffsetResult, QueueHeader, SearchOffsetHeader


class QueueProcessor:
    """Answers requests about queues."""

    def __init__(self, store: MessageStore, access: TopicAccess) -> None:
        self._store = store
        self._access = access

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def max_offset(self, request: Request) -> Response:
        """Answer with the offset that the next message of the queue gets."""
        header = self._queue(request)
        return _offset(request, self._store.max_offset_in_queue(header.topic, header.queue_id))

    def min_offset(self, request: Request) -> Response:
        """Answer with the offset of the first message that the queue still has."""
        header = self._queue(request)
        return _offset(request, self._store.min_offset_in_queue(header.topic, header.queue_id))

    def earliest_time(self, request: Request) -> Response:
        """Answer with the store time of the queue's first message; -1 if it is empty."""
        header = self._queue(request)
        timestamp = self._store.earliest_message_time(header.topic, header.queue_id)
        return Response(0, EarliestTimeResult(timestamp).to_ext(request.header_type))

    def search(self, request: Request) -> Response:
        """Answer with the first offset stored at or after a time (LOWER), or the last one at or before it (UPPER)."""
        header = SearchOffsetHeader.from_ext(request.ext)
        self._check(request, header.topic, header.queue_id)
        found = self._store.offset_by_timestamp(
            header.topic, header.queue_id, header.timestamp, header.boundary_type
        )
        return _offset(request, found)

    def _queue(self, request: Request) -> QueueHeader:
        header = QueueHeader.from_ext(request.ext)
        self._check(request, header.topic, header.queue_id)
        return header

    def _check(self, request: Request, topic: str, queue_id: int) -> None:
        """Refuse unknown queues to the bundled client. RocketMQ answers 0 for them, and its clients rely on that."""
        if request.is_native:
            self._access.check_queue(topic, queue_id)


def _offset(request: Request, offset: int) -> Response:
    return Response(0, OffsetResult(offset).to_ext(request.header_type))
