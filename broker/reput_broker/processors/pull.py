"""PullMessage (11) and LitePullMessage (361), with long polling (RocketMQ: PullMessageProcessor)."""

from __future__ import annotations

import time
from contextlib import suppress

import trio

from reput_broker.config import LimitsConfig
from reput_broker.counters import PULL_WAIT_CODE, Counters
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.offset_journal import JournalWriteFailed
from reput_broker.offsets import ConsumerOffsetManager
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.request import Handler, Refusal, Request, Response
from reput_broker.store.errors import FileMissing
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import ROCKETMQ_LIMITS, GetMessageResult, TransferLimits
from reput_broker.store.status import GetStatus
from reput_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands import PullMessageHeader, PullMessageResult
from reput_protocol.errors import ErrorCode
from reput_protocol.filters import TagFilter
from reput_protocol.header import HeaderType, Value
from reput_protocol.names import check_group

_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)
_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_CODES = {
    GetStatus.FOUND: 0,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
}
_SUSPEND = int(PullSysFlag.SUSPEND)
_COMMIT = int(PullSysFlag.COMMIT_OFFSET)
_COLD_READS_AT_ONCE = 4


class PullProcessor:
    """Hands out messages."""

    def __init__(
        self,
        store: MessageStore,
        access: TopicAccess,
        offsets: ConsumerOffsetManager,
        hold: PullRequestHoldService,
        limits: LimitsConfig,
        counters: Counters,
    ) -> None:
        self._store = store
        self._access = access
        self._offsets = offsets
        self._hold = hold
        self._limits = limits
        self._counters = counters
        self._cold_reads = trio.CapacityLimiter(_COLD_READS_AT_ONCE)

    def handlers(self) -> dict[int, Handler]:
        """Return the processors by request code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, request: Request) -> Response | None:
        """Answer with messages, or with where to go on; or park the request until there are messages."""
        header = PullMessageHeader.from_ext(request.header.ext)
        self._access.readable(header.topic, header.queue_id)
        check_group(header.consumer_group)
        if header.queue_offset < 0:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"queue offset {header.queue_offset} is negative; the first message has offset 0 or more",
            )
        tag_filter = self._filter_of(header)
        request.client.note_role("consumer")
        if header.sys_flag & _COMMIT and header.commit_offset >= 0:
            self._commit(request, header)
        return self._answer(request, header, tag_filter, may_suspend=bool(header.sys_flag & _SUSPEND))

    def _commit(self, request: Request, header: PullMessageHeader) -> None:
        """Commit what came along. A pull's answer says nothing about it, so a client that must know commits again.

        Our own client's never lowers the offset: a pull may be on its way while its queue changes hands. And a journal
        that takes nothing, on a full disk, stops nobody from reading.
        """
        with suppress(JournalWriteFailed):
            self._offsets.commit(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
                increase_only=request.header_type == HeaderType.MSGPACK,
            )

    def _filter_of(self, header: PullMessageHeader) -> TagFilter | None:
        if header.expression_type not in (None, "", "TAG"):
            raise Refusal(
                ErrorCode.FILTER_SYNTAX,
                f"filters of type {header.expression_type!r} are not served; use a tag expression",
            )
        if header.subscription is None or not header.sys_flag & PullSysFlag.SUBSCRIPTION:
            return None
        tag_filter = TagFilter.parse(header.subscription)
        return None if tag_filter.matches_all else tag_filter

    def _answer(
        self, request: Request, header: PullMessageHeader, tag_filter: TagFilter | None, *, may_suspend: bool
    ) -> Response | None:
        while True:
            result = self._get(request, header, tag_filter)
            code = _CODES.get(result.status)
            if code is None:  # an empty queue
                code = _NOT_FOUND if header.queue_offset == 0 else _MOVED
            if code == _NOT_FOUND and may_suspend and header.suspend_timeout_millis > 0:
                self._park(request, header, tag_filter)
                return None
            ext = PullMessageResult(result.next_begin_offset, result.min_offset, result.max_offset).to_ext(
                request.header_type
            )
            if code != 0:
                return Response(code, ext, remark=result.status.name)
            try:
                if result.cold:
                    held = self._store.hold_extents(result.extents)
                    body = b""
                else:
                    held = None
                    body = self._store.read_extents(result.extents)
            except FileMissing:
                if result.extents[0].physical_offset >= self._store.min_physical_offset:
                    raise
                continue  # deleted between the look into the queue and now: look again
            self._count(header, result)
            if held is None:
                return Response(0, ext, body, "FOUND")
            request.client.spawn(self._read_cold, request, held, ext)
            return None

    def _get(
        self, request: Request, header: PullMessageHeader, tag_filter: TagFilter | None
    ) -> GetMessageResult:
        limits = self._limits
        count = min(max(1, header.max_msg_nums), limits.pull_messages)
        size = limits.pull_bytes
        if header.max_msg_bytes is not None:
            size = min(size, max(1, header.max_msg_bytes))
        transfer = ROCKETMQ_LIMITS
        if request.is_native:
            transfer = TransferLimits(size, count, size, count, ROCKETMQ_LIMITS.scan_bytes)
        return self._store.get_message(
            header.topic, header.queue_id, header.queue_offset, count, size, tag_filter, limits=transfer
        )

    def _park(self, request: Request, header: PullMessageHeader, tag_filter: TagFilter | None) -> None:
        waiting = self._counters.request(request.header_type, PULL_WAIT_CODE)
        waiting.begin()
        parked_at = time.monotonic()

        def resume() -> None:
            waiting.done(0, time.monotonic() - parked_at)
            try:
                self._access.readable(header.topic, header.queue_id)
                response = self._answer(request, header, tag_filter, may_suspend=False)
            except Refusal as refusal:
                response = refusal.response()
            if response is not None:
                request.reply(response)

        queue = (header.topic, header.queue_id)
        wait_s = header.suspend_timeout_millis / 1000
        self._hold.hold(request, queue, header.queue_offset, tag_filter, wait_s, resume, waiting.abandoned)

    def _count(self, header: PullMessageHeader, result: GetMessageResult) -> None:
        self._counters.group(header.topic, header.consumer_group).count_out(result.count, result.size)

    async def _read_cold(self, request: Request, held: HeldExtents, ext: dict[str, Value]) -> None:
        """Read records that are not in memory in a worker thread: a page fault here would stop everybody."""

        def read() -> bytes:
            with held:
                return held.read()

        try:
            body = await trio.to_thread.run_sync(read, limiter=self._cold_reads)
            response = Response(0, ext, body, "FOUND")
        except Exception as error:
            response = Refusal(
                ErrorCode.INTERNAL, f"reading old messages failed: {error}; pull again"
            ).response()
        finally:
            held.release()  # the client left before the read began
        request.reply(response)
