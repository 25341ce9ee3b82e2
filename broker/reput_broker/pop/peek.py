"""What can be popped, without popping it: peeks (200052), notifications (200054) and how many pops wait (200055).

(RocketMQ: PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor.)
"""

from __future__ import annotations

from typing import Final

import trio

from reput_broker.pop.polling import PollingKey
from reput_broker.pop.positions import PoppedQueue
from reput_broker.pop.queues import WRONG_OFFSET
from reput_broker.pop.state import PopState
from reput_broker.pull import ColdReads
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.store.base.results import GetStatus
from reput_broker.tenure import Core
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import (
    POP_MESSAGES_MAX,
    NotificationHeader,
    NotificationResult,
    PeekMessageHeader,
    PollingInfoHeader,
    PollingInfoResult,
    PopMessageResult,
)

_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_COLD_READS_AT_ONCE: Final = 2


class PeekProcessor(Processor):
    """Answers requests that pop nothing."""

    def __init__(self, core: Core, state: PopState) -> None:
        self._core = core
        self._state = state
        self._cold_reads = ColdReads(_COLD_READS_AT_ONCE, "peek again")

    @serves(RequestCode.PEEK_MESSAGE)
    async def peek(self, request: Request) -> Response:
        """Answer with the messages that a pop would take now; nothing changes."""
        header = PeekMessageHeader.from_ext(request.ext)
        self._state.queues.check(header, creates=False)
        wanted = min(max(1, header.max_msg_nums), POP_MESSAGES_MAX)
        size = min(self._core.config.limits.pull_bytes, request.client.share)
        bodies, rest = [], 0
        for place in self._state.queues.places(header, with_retries=True):
            offset = self._state.positions.look(place)
            rest += self._state.queues.left(place)
            if wanted <= 0:
                continue
            result = self._core.store.get_message(place.topic, place.queue_id, offset, wanted, size)
            if result.status in WRONG_OFFSET:
                offset = result.next_begin_offset
                result = self._core.store.get_message(place.topic, place.queue_id, offset, wanted, size)
            if result.count:
                wanted -= result.count
                if result.cold:
                    held = self._core.store.hold_extents(result.extents)
                    bodies.append(await self._cold_reads.read(request.client, held, held.read))
                else:
                    bodies.append(self._core.store.read_extents(result.extents))
        ext = PopMessageResult(self._core.clock_ms(), rest_num=rest).to_ext(request.header_type)
        if not bodies:
            return Response(_NOT_FOUND, ext, remark=GetStatus.NO_MESSAGE_IN_QUEUE.name)
        return Response(0, ext, b"".join(bodies), "FOUND")

    @serves(RequestCode.NOTIFICATION)
    def notify(self, request: Request) -> Response | None:
        """Answer once there is something to pop, or the time is up."""
        header = NotificationHeader.from_ext(request.ext)
        self._state.queues.check(header, creates=True)
        deadline = trio.current_time() + max(0, header.poll_time) / 1000
        return self._notify(request, header, request.header_type, deadline)

    def _notify(
        self, request: Request, header: NotificationHeader, header_type: int, deadline: float
    ) -> Response | None:
        def answer(has_msg: bool, polling_full: bool = False) -> Response:
            return Response(0, NotificationResult(has_msg, polling_full).to_ext(header_type))

        if any(
            self._has_messages(header, place)
            for place in self._state.queues.places(header, with_retries=not header.order)
        ):
            return answer(True)
        wait_s = deadline - trio.current_time()
        if wait_s <= 0 or self._state.polling.is_stopping:
            return answer(False)

        def resume(may_get_messages: bool) -> None:
            response: Response | None = answer(False)
            try:
                if may_get_messages:
                    self._state.queues.check(header, creates=False)
                    response = self._notify(request, header, header_type, deadline)
            except Refusal as refusal:
                response = refusal.response()
            if response is not None:
                request.reply(response)

        key = PollingKey(header.topic, header.consumer_group, header.queue_id, is_notification=True)
        try:
            self._state.polling.hold(request, key, None, wait_s, resume, lambda: None)
        except Refusal:
            return answer(False, polling_full=True)
        request.note_held()
        return None

    def _has_messages(self, header: NotificationHeader, place: PoppedQueue) -> bool:
        if header.order and self._state.orders.is_blocked(place, header.attempt_id):
            return False
        return self._state.queues.left(place) > 0

    @serves(RequestCode.POLLING_INFO)
    def polling_info(self, request: Request) -> Response:
        """Answer with the number of pops that wait."""
        header = PollingInfoHeader.from_ext(request.ext)
        self._core.group_access.existing(header.consumer_group)
        self._state.queues.check(header, creates=False)
        count = self._state.polling.count(PollingKey(header.topic, header.consumer_group, header.queue_id))
        return Response(0, PollingInfoResult(count).to_ext(request.header_type))
