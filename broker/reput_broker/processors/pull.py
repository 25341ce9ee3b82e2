"""PullMessage (11) and LitePullMessage (361), with long polling (RocketMQ: PullMessageProcessor)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from reput_broker.observe.counters import PULL_WAIT_CODE
from reput_broker.processors.spans import Spans
from reput_broker.put.held_pulls import ColdReads
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.retry.expired_messages import ExpiredMessages, Sifted
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import ROCKETMQ_LIMITS, GetMessageResult, GetStatus, TransferLimits
from reput_broker.store.message_reader import FilteredGet, HeldExtents
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_broker.tenure.core import Core, RoleDuties
from reput_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.pull import PullMessageHeader, PullMessageResult
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.filter.tags import MessageFilter
from reput_protocol.record.layout import store_timestamp_at
from reput_protocol.wire.header import HeaderType, Value

log = structlog.get_logger(__name__)

T = TypeVar("T")

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
_EXAMINED = (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE)
_REDIRECTED_AFTER_S = 1.0
"""How long a slave holds a pull for which it has nothing, before it sends the client to the master."""
_SUSPEND = int(PullSysFlag.SUSPEND)
_COMMIT = int(PullSysFlag.COMMIT_OFFSET)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_COLD_READS_AT_ONCE = 4


class PullProcessor(Processor):
    """Serves messages to consumers."""

    def __init__(self, core: Core, role: RoleDuties, spans: Spans | None) -> None:
        self._core = core
        self._role = role
        self._spans = spans
        self._commits = core.groups.commits
        self._resets = core.groups.resets
        self._expired = ExpiredMessages(core)
        self._expiring = core.tables.topics.expiring
        self._cold_reads = ColdReads(_COLD_READS_AT_ONCE, "pull again")

    @serves(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    def pull(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Answer with messages or with the next offset, or hold the request until there are messages."""
        header = PullMessageHeader.from_ext(request.header.ext)
        self._core.puts.reput.dispatch_acknowledged(can_wait=bool(header.sys_flag & _SUSPEND))
        kind, expression = header.expression_type, header.subscription
        if not header.sys_flag & _SUBSCRIPTION:
            found = self._core.group_access.subscribed(header.consumer_group, header.topic)
            kind, expression = (None, None) if found is None else (found.expression_type, found.sub_string)
        if expression is not None and self._core.filter_check.takes_long(kind, expression):
            return self._pull_prepared(request, header, expression)
        return self._pull(request, header)

    async def _pull_prepared(self, request: Request, header: PullMessageHeader, expression: str) -> Response | None:
        await self._core.filter_check.prepare(expression)
        return self._pull(request, header)

    def _pull(self, request: Request, header: PullMessageHeader) -> Response | None:
        # The order is RocketMQ's: group, topic, filter.
        group = self._core.group_access.consuming(header.consumer_group)
        self._core.topic_access.readable(header.topic, header.queue_id)
        self._core.group_access.check_readable(header.consumer_group, header.topic)
        filters = self._core.filter_check
        if header.sys_flag & _SUBSCRIPTION:
            message_filter = filters.filter_of(header.expression_type, header.subscription)
        else:
            found = self._core.group_access.subscription(group, header.topic, header.sub_version)
            message_filter = filters.filter_of_subscription(found.expression_type, found.sub_string)
        if header.queue_offset < 0:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"queue offset {header.queue_offset} is negative; the first message has offset 0 or more",
            )
        if header.sys_flag & _COMMIT:
            self._commit(request, header)
        return self._answer(request, header, message_filter, may_suspend=bool(header.sys_flag & _SUSPEND))

    def _filter_now(self, header: PullMessageHeader, before: MessageFilter | None) -> MessageFilter | None:
        """Return the filter of a pull that was held: its group's subscription may have changed."""
        if header.sys_flag & _SUBSCRIPTION:
            return before
        found = self._core.group_access.subscribed(header.consumer_group, header.topic)
        if found is None:
            return before
        return self._core.filter_check.filter_of_subscription(found.expression_type, found.sub_string)

    def _commit(self, request: Request, header: PullMessageHeader) -> None:
        """Commit the offset in a pull. The answer does not report the result.

        The bundled client's offset never decreases here: a pull may arrive after its queue was reassigned.
        """
        try:
            self._commits.commit(
                header.consumer_group,
                header.topic,
                header.queue_id,
                header.commit_offset,
                increase_only=request.header_type == HeaderType.MSGPACK,
            )
        except JournalWriteFailed as error:
            # The member commits again with a later pull; messages continue to flow.
            log.warning("offset_not_committed", group=header.consumer_group, detail=str(error))

    def _answer(
        self, request: Request, header: PullMessageHeader, message_filter: MessageFilter | None, *, may_suspend: bool
    ) -> Response | None:
        began_at = 0.0 if self._spans is None else time.monotonic()
        reset_to = self._resets.take(header.consumer_group, header.topic, header.queue_id)
        if reset_to is not None and reset_to != header.queue_offset:
            return self._not_read(request, header, reset_to, _MOVED, "OFFSET_RESET")
        store, limits = self._core.store, self._core.config.limits
        count = min(max(1, header.max_msg_nums), limits.pull_messages)
        size = min(limits.pull_bytes, request.client.share)
        if header.max_msg_bytes is not None:
            size = min(size, max(1, header.max_msg_bytes))
        transfer = ROCKETMQ_LIMITS
        if request.is_native:
            transfer = TransferLimits(size, count, size, count, ROCKETMQ_LIMITS.scan_bytes)
        while True:
            found = store.get_message(
                header.topic, header.queue_id, header.queue_offset, count, size, message_filter, limits=transfer
            )
            if isinstance(found, FilteredGet):
                request.client.spawn(self._look_cold, request, header, found, began_at)
                return None
            code = self._code_of(request, header, found)
            if code == _NOT_FOUND and may_suspend and header.suspend_timeout_millis > 0:
                self._hold_pull(request, header, message_filter)
                return None
            if code == _NOT_FOUND and self._role.reaches_master():
                code = _RETRY  # at the master, which the answer suggests
            ext = self._ext_of(request, header, found)
            if code != 0:
                return Response(code, ext, remark=found.status.name)
            try:
                if found.cold:
                    held = store.hold_extents(found.extents)
                    request.client.spawn(self._read_cold, request, header, found, held, ext, began_at)
                    return None
                body = store.read_extents(found.extents)
            except FileMissing:
                if found.extents[0].physical_offset >= store.min_physical_offset:
                    raise
                continue  # deleted since the queue was read: read it again
            return self._deliver(request, header, found, ext, body, began_at)

    def _deliver(
        self,
        request: Request,
        header: PullMessageHeader,
        result: GetMessageResult,
        ext: dict[str, Value],
        body: bytes,
        began_at: float,
    ) -> Response | None:
        """Return the answer with the records that were found, but without those that have expired; None if it is sent
        once these are dead letters.
        """
        if header.topic in self._expiring or header.topic[0] == "%":
            sifted = self._expired.sift(header.topic, header.consumer_group, body)
            if sifted is not None and sifted.expired:
                request.client.spawn(self._bury, request, header, ext, sifted)
                return None
            if sifted is not None:
                return self._response_of(header, ext, sifted)
        counters = self._core.counters
        counters.groups[header.topic, header.consumer_group].count_out(result.count, result.size)
        if result.next_begin_offset >= result.max_offset and not result.cold:
            age_ms = self._core.clock_ms() - store_timestamp_at(body)
            counters.topics[header.topic].deliver_seconds.observe(max(0, age_ms) / 1000)
        if self._spans is not None:
            self._spans.delivered(request, header, began_at, result.count, body)
        return Response(0, ext, body, "FOUND")

    async def _bury(self, request: Request, header: PullMessageHeader, ext: dict[str, Value], sifted: Sifted) -> None:
        try:
            await self._expired.bury(header.consumer_group, sifted.expired)
            response = self._response_of(header, ext, sifted)
        except (ReputError, OSError) as error:
            response = error.response() if isinstance(error, Refusal) else _failed(error)
        request.reply(response)

    def _response_of(self, header: PullMessageHeader, ext: dict[str, Value], sifted: Sifted) -> Response:
        if not sifted.left:
            return Response(_RETRY, ext, remark=GetStatus.NO_MATCHED_MESSAGE.name)
        traffic = self._core.counters.groups[header.topic, header.consumer_group]
        traffic.count_out(sifted.left, len(sifted.body))
        return Response(0, ext, sifted.body, "FOUND")

    def _not_read(
        self, request: Request, header: PullMessageHeader, next_offset: int, code: int, remark: str
    ) -> Response:
        """Answer without having looked into the queue."""
        low = self._core.store.min_offset_in_queue(header.topic, header.queue_id)
        high = self._core.store.max_offset_in_queue(header.topic, header.queue_id)
        ext = PullMessageResult(next_offset, low, high).to_ext(request.header_type)
        return Response(code, ext, remark=remark)

    def _hold_pull(self, request: Request, header: PullMessageHeader, message_filter: MessageFilter | None) -> None:
        if self._core.hold.is_stopping:
            # Holding it would delay the stop, and after an answer its client would pull again immediately.
            raise Refusal(ErrorCode.DRAINING, "the broker is stopping; pull again once it is back")
        waiting = self._core.counters.requests[request.header_type, PULL_WAIT_CODE]
        held_since = time.monotonic()

        def resume(may_get_messages: bool) -> None:
            waiting.done(0, time.monotonic() - held_since)
            try:
                self._core.group_access.check_still_consuming(header.consumer_group)
                self._core.topic_access.readable(header.topic, header.queue_id)
                self._core.group_access.check_readable(header.consumer_group, header.topic)
                filter_now = self._filter_now(header, message_filter)
                if may_get_messages:
                    response = self._answer(request, header, filter_now, may_suspend=False)
                else:
                    response = self._not_read(request, header, header.queue_offset, _NOT_FOUND, "MEMBER_LEFT")
            except Refusal as refusal:
                response = refusal.response()
            except Exception as error:  # this runs among other clients' pulls
                log.error("pull_failed", peer=request.client.peer, hint="a defect of the broker", exc_info=error)
                response = _failed(error)
            if response is not None:
                request.reply(response)

        queue = (header.topic, header.queue_id)
        wait_s = header.suspend_timeout_millis / 1000
        if self._role.reaches_master():
            wait_s = min(wait_s, _REDIRECTED_AFTER_S)
        try:
            self._core.hold.hold(
                request,
                header.consumer_group,
                queue,
                header.queue_offset,
                message_filter,
                wait_s,
                resume,
                waiting.abandoned,
            )
        except Refusal:
            self._core.counters.pulls_throttled += 1
            raise
        waiting.begin()
        request.note_held()
        header.subscription = header.expression_type = None  # frees them; the filter exists

    async def _read_cold(
        self,
        request: Request,
        header: PullMessageHeader,
        result: GetMessageResult,
        held: HeldExtents,
        ext: dict[str, Value],
        began_at: float,
    ) -> None:
        """Answer with records outside the page cache."""
        response: Response | None
        try:
            body = await self._cold(request, header, held, held.read)
            self._core.cold_quotas.count(header.consumer_group, len(body))
            response = self._deliver(request, header, result, ext, body, began_at)
        except Refusal as refusal:
            response = refusal.response()
        if response is not None:
            request.reply(response)

    async def _look_cold(self, request: Request, header: PullMessageHeader, get: FilteredGet, began_at: float) -> None:
        """Likewise, if a filter must examine the records."""
        response: Response | None
        try:
            result, body = await self._cold(request, header, get, get.run_and_read)
            self._core.cold_quotas.count(header.consumer_group, len(body))
            self._core.store.count_get(result)
            code, ext = self._code_of(request, header, result), self._ext_of(request, header, result)
            if code == 0:
                response = self._deliver(request, header, result, ext, body, began_at)
            else:
                response = Response(code, ext, remark=result.status.name)
        except Refusal as refusal:
            response = refusal.response()
        if response is not None:
            request.reply(response)

    async def _cold(
        self, request: Request, header: PullMessageHeader, held: HeldExtents | FilteredGet, read: Callable[[], T]
    ) -> T:
        """Read in a worker thread, once the quota of the group permits it."""
        try:
            await self._core.cold_quotas.wait(header.consumer_group)
        except BaseException:
            held.release()
            raise
        return await self._cold_reads.read(request.client, held, read)

    def _code_of(self, request: Request, header: PullMessageHeader, result: GetMessageResult) -> int:
        """Note how far the group is, and return the code of the answer."""
        code = _CODES.get(result.status)
        if code is None:  # an empty queue
            code = _NOT_FOUND if header.queue_offset == 0 else _MOVED
        if code == _MOVED and self._role.is_slave and header.queue_offset > result.max_offset:
            # The master has these messages, and this slave does not yet (RocketMQ: offsetCheckInSlave).
            result.next_begin_offset = header.queue_offset
            code = _NOT_FOUND
        peer = request.client.peer
        self._core.groups.readers.asked(header.consumer_group, peer)
        self._commits.note_pull(
            header.consumer_group, header.topic, header.queue_id, header.queue_offset, result.next_begin_offset, peer
        )
        return code

    def _ext_of(self, request: Request, header: PullMessageHeader, result: GetMessageResult) -> dict[str, Value]:
        suggested = MASTER_ID
        if self._core.config.ha.slave_read_enabled:
            suggested = self._suggested_broker_id(header, result)
        return PullMessageResult(result.next_begin_offset, result.min_offset, result.max_offset, suggested).to_ext(
            request.header_type
        )

    def _suggested_broker_id(self, header: PullMessageHeader, result: GetMessageResult) -> int:
        """Return where to pull next: a slave while the group is further behind than the page cache reaches."""
        group = self._core.group_access.settings_of(header.consumer_group)
        if group is None:
            return MASTER_ID
        is_far = result.status in _EXAMINED and not self._core.store.is_in_memory(
            header.topic, header.queue_id, result.next_begin_offset - 1
        )
        if not is_far:
            return group.broker_id
        wanted, there = group.which_broker_when_consume_slowly, self._role.ids_to_pull_from()
        return min(there) if there and wanted not in there else wanted


def _failed(error: Exception) -> Response:
    return Refusal(ErrorCode.INTERNAL, f"the pull failed: {error}; pull again").response()
