"""Locks of queues, for members that consume in order: 41, 42 (RocketMQ: AdminBrokerProcessor.lockBatchMQ)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

from reput_broker.core import Core
from reput_broker.groups.group_access import check_not_brokers
from reput_broker.request import Handler, Refusal, Request, Response, write_in_turns
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import LockBatchBody, LockBatchResult
from reput_protocol.names import check_label
from reput_protocol.record.message import MessageQueue

_QUEUES_A_TURN: Final = 256


class LockProcessor:
    """Grants and releases locks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._locks = core.groups.locks
        self._clients = core.groups.membership.clients

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    async def lock(self, request: Request) -> Response:
        """Answer with the requested queues that are locked by the member now; the others belong to other members."""
        asked = self._read(request)
        self._core.group_access.find_or_create(asked.consumer_group)
        locked: list[MessageQueue] = []
        async for queues in _in_turns(asked.queues):
            wanted = {(queue.topic, queue.queue_id): queue for queue in queues}
            existing = [place for place in wanted if self._has_queue(*place)]
            try:
                locked += [
                    wanted[place]
                    for place in self._locks.lock(asked.consumer_group, asked.client_id, existing)
                ]
            except Refusal:
                if not locked:
                    raise
                break
        return Response(0, body=await write_in_turns(LockBatchResult(locked)))

    async def unlock(self, request: Request) -> Response:
        """Release the member's locks; those of other members stay."""
        asked = self._read(request)
        async for queues in _in_turns(asked.queues):
            places = [(queue.topic, queue.queue_id) for queue in queues]
            self._locks.unlock(asked.consumer_group, asked.client_id, places)
        return Response()

    def _read(self, request: Request) -> LockBatchBody:
        body = request.content(LockBatchBody)
        check_label("client id", body.client_id)
        self._clients.check_owner(request.client, body.client_id)
        check_not_brokers(body.consumer_group)
        return body

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        config = self._core.tables.topics.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)


async def _in_turns(queues: list[MessageQueue]) -> AsyncIterator[list[MessageQueue]]:
    for start in range(0, len(queues), _QUEUES_A_TURN):
        if start:
            await trio.lowlevel.checkpoint()
        yield queues[start : start + _QUEUES_A_TURN]
