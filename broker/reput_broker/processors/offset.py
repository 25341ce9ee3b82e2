"""Offsets: of consumer groups (14, 15), and in a queue: its bounds and offsets by time (29, 30, 31, 32).

(RocketMQ: ConsumerManageProcessor, AdminBrokerProcessor.)
"""

from __future__ import annotations

from reput_broker.request import Processor, Refusal, Request, Response, serves
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.offset import (
    EarliestTimeResult,
    OffsetResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput_protocol.errors import ErrorCode


class OffsetProcessor(Processor):
    """Reads and commits offsets."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store

    # Of consumer groups

    @serves(RequestCode.QUERY_CONSUMER_OFFSET)
    def query(self, request: Request) -> Response:
        """Answer with the committed offset; else 0 for a queue whose first message is still in memory; else
        QUERY_NOT_FOUND.
        """
        header = QueryConsumerOffsetHeader.from_ext(request.ext)
        topic, queue_id = header.topic, header.queue_id
        offset = self._core.tables.offsets.query(header.consumer_group, topic, queue_id)
        if offset is None:
            if header.set_zero_if_not_found is False or not self._starts_at_zero(topic, queue_id):
                raise Refusal(
                    ErrorCode.NOT_FOUND,
                    f"group {header.consumer_group!r} has no offset in queue {queue_id} of topic {topic!r}; "
                    "choose where to start",
                )
            offset = 0
        return _offset(request, offset)

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Tell whether nothing was deleted and message 0 is near the end of the log, so that a new group may start
        there."""
        store = self._store
        if store.min_offset_in_queue(topic, queue_id) > 0:
            return False
        return store.max_offset_in_queue(topic, queue_id) == 0 or store.is_in_memory(topic, queue_id, 0)

    @serves(RequestCode.UPDATE_CONSUMER_OFFSET)
    def update(self, request: Request) -> Response:
        """Commit an offset; it survives `kill -9` once this is answered. Negative offsets mean that there is none yet.

        Groups of RocketMQ's clients exist since their heartbeat; the bundled client may commit without being a member.
        An offset that may only increase and does not is answered as committed.
        """
        header = UpdateConsumerOffsetHeader.from_ext(request.ext)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if request.is_native:
            self._core.group_access.find_or_create(group)
        else:
            self._core.group_access.existing(group)
        self._core.topic_access.check_queue(topic, queue_id)
        self._core.groups.readers.asked(group, request.client.peer)
        self._core.groups.commits.commit(
            group, topic, queue_id, header.commit_offset, increase_only=bool(header.increase_only)
        )
        return Response()

    # In a queue

    @serves(RequestCode.GET_MAX_OFFSET)
    def max_offset(self, request: Request) -> Response:
        """Answer with the offset that the next message of the queue gets."""
        header = self._known_queue(request)
        return _offset(request, self._store.max_offset_in_queue(header.topic, header.queue_id))

    @serves(RequestCode.GET_MIN_OFFSET)
    def min_offset(self, request: Request) -> Response:
        """Answer with the offset of the first message that the queue still has."""
        header = self._known_queue(request)
        return _offset(request, self._store.min_offset_in_queue(header.topic, header.queue_id))

    @serves(RequestCode.GET_EARLIEST_MSG_STORETIME)
    def earliest_time(self, request: Request) -> Response:
        """Answer with the store time of the queue's first message; -1 if it is empty."""
        header = self._known_queue(request)
        timestamp = self._store.earliest_message_time(header.topic, header.queue_id)
        return Response(0, EarliestTimeResult(timestamp).to_ext(request.header_type))

    @serves(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    def search(self, request: Request) -> Response:
        """Answer with the first offset stored at or after a time (LOWER), or the last one at or before it (UPPER)."""
        header = SearchOffsetHeader.from_ext(request.ext)
        self._check(request, header.topic, header.queue_id)
        found = self._store.offset_by_timestamp(
            header.topic, header.queue_id, header.timestamp, header.boundary_type
        )
        return _offset(request, found)

    def _known_queue(self, request: Request) -> QueueHeader:
        header = QueueHeader.from_ext(request.ext)
        self._check(request, header.topic, header.queue_id)
        return header

    def _check(self, request: Request, topic: str, queue_id: int) -> None:
        """Refuse unknown queues to the bundled client. RocketMQ answers 0, on which its clients rely."""
        if request.is_native:
            self._core.topic_access.check_queue(topic, queue_id)


def _offset(request: Request, offset: int) -> Response:
    return Response(0, OffsetResult(offset).to_ext(request.header_type))
