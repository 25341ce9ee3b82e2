"""Requests that the broker forwards to a member for an administrator.

The member reports what it is doing (307) and its progress (221), and continues at offsets set for the group (220).
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import traceback
from typing import Final

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.fetcher import Fetcher
from reput_client.consume.group.options import ConsumerOptions
from reput_client.transport.broker_requests import BrokerRequest, RequestHandlers
from reput_protocol.codes import ConsumeType, RequestCode
from reput_protocol.commands.consumers import (
    PROP_CLIENT_VERSION,
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    ConsumerRunningInfo,
    ConsumerRunningInfoHeader,
    ProcessQueueInfo,
)
from reput_protocol.commands.offset import (
    ConsumerStatusBody,
    ConsumerStatusHeader,
    ResetOffsetBody,
    ResetOffsetHeader,
)
from reput_protocol.errors import ErrorCode

log = logging.getLogger("reput_client")

_MIB: Final = 1 << 20


class ForwardedRequests:
    """Answers forwarded requests for one member."""

    def __init__(self, options: ConsumerOptions, fetcher: Fetcher, started_ms: int) -> None:
        self._group = options.group
        self._subscriptions = options.subscriptions
        self._fetcher = fetcher
        self._properties = {
            PROP_CONSUME_ORDERLY: str(options.orderly).lower(),
            PROP_CONSUME_TYPE: ConsumeType.CONSUME_PASSIVELY.value,
            PROP_CONSUMER_START_TIMESTAMP: str(started_ms),
        }

    def register(self, requests: RequestHandlers) -> None:
        """Register the handlers."""
        requests.register(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset)
        requests.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        requests.register(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status)

    def _reset(self, request: BrokerRequest) -> None:
        """Continue at the new offsets, and drop what was pulled of these queues.

        The next pull would report the same. Messages in flight are finished; those before the new offset count.
        """
        if ResetOffsetHeader.from_ext(request.ext).group == self._group:
            for queue, offset in ResetOffsetBody.from_json(request.body).offset_table.items():
                assigned = self._fetcher.queues.get(queue)
                if assigned is not None:
                    log.info("queue %s was set to offset %d", queue, offset)
                    self._fetcher.reset_to(assigned, offset)
            self._fetcher.wake()
        request.answer()

    def _running_info(self, request: BrokerRequest) -> None:
        header = ConsumerRunningInfoHeader.from_ext(request.ext)
        if self._is_ours(request, header.consumer_group):
            info = ConsumerRunningInfo(
                {**self._properties, PROP_CLIENT_VERSION: _client_version()},
                self._subscriptions.data(),
                {queue: _queue_info(assigned) for queue, assigned in self._fetcher.queues.items()},
                jstack=_stacks() if header.jstack_enable else None,
            )
            request.answer(body=info.to_json())

    def _status(self, request: BrokerRequest) -> None:
        header = ConsumerStatusHeader.from_ext(request.ext)
        if self._is_ours(request, header.group):
            positions = {
                queue: assigned.progress.position
                for queue, assigned in self._fetcher.queues.items()
                if queue.topic == header.topic
            }
            request.answer(body=ConsumerStatusBody(positions).to_json())

    def _is_ours(self, request: BrokerRequest, group: str) -> bool:
        if group == self._group:
            return True
        request.refuse(ErrorCode.NO_GROUP, f"this client is a member of {self._group}, not of {group}")
        return False


def _queue_info(assigned: AssignedQueue) -> ProcessQueueInfo:
    position = assigned.progress.position
    held = assigned.progress.in_flight + assigned.undelivered
    return ProcessQueueInfo(
        commit_offset=assigned.committed or 0,
        cached_msg_min_offset=position if held else 0,
        cached_msg_max_offset=assigned.next_offset - 1 if held else 0,
        cached_msg_count=held,
        cached_msg_size_mib=assigned.held_bytes() // _MIB,
        locked=assigned.locked_until < math.inf,
        dropped=not assigned.is_active,
    )


def _client_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and rarely needed

    try:
        return f"reput {version('reput-client')}"
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "reput"


def _stacks() -> str:
    """Return the stack of each thread of this process, as RocketMQ's clients do."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, in spite of its name
    )
