"""Ranges of queues in bulk, as the records are in the log: FETCH_RECORDS and QUERY_QUEUE_BOUNDS, both Reput's own.

They serve bulk readers such as Spark: there is no group and no waiting, and the only work per message is finding its
place. In every flush mode they show only what is on disk.
"""

from __future__ import annotations

import trio

from reput_broker.pull.cold_reads import ColdReads
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import GetMessageResult, GetStatus, TransferLimits
from reput_broker.store.message_reader import HeldExtents
from reput_broker.tenure.core import Core
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.pull import (
    FETCH_BYTES_MAX,
    FetchRecordsHeader,
    FetchRecordsResult,
    QueueBounds,
    QueueBoundsRequest,
    QueueBoundsTable,
)
from reput_protocol.errors import ErrorCode
from reput_protocol.filter.tags import TagFilter
from reput_protocol.store.unit import UNIT_BYTES
from reput_protocol.wire.header import Value

_MESSAGES_MAX = 16_384
"""As many small messages as a mebibyte holds."""
_COLD_READS_AT_ONCE = 2
_QUEUES_A_TURN = 64


class FetchProcessor(Processor):
    """Serves ranges of records."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._cold_reads = ColdReads(_COLD_READS_AT_ONCE, "fetch again")

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

    def _get(
        self, header: FetchRecordsHeader, end: int, tag_filter: TagFilter, share: int
    ) -> GetMessageResult:
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
