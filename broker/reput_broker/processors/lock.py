"""Locks on queues, for members that consume in order: 41, 42 (RocketMQ: AdminBrokerProcessor.lockBatchMQ)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import trio

from reput_broker.body_turns import write_in_turns
from reput_broker.delivery.queue_locks import QueueLocks
from reput_broker.processors.group_access import GroupAccess
from reput_broker.request import Handler, Refusal, Request, Response
from reput_broker.topics import TopicConfigManager
from reput_protocol.bodies_lock import LockBatchResult
from reput_protocol.body_members import as_object, list_member, text_member
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ErrorCode
from reput_protocol.loose_json import read_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_of

_QUEUES_A_TURN: Final = 256


class LockProcessor:
    """Gives out locks and takes them back."""

    def __init__(self, locks: QueueLocks, access: GroupAccess, topics: TopicConfigManager) -> None:
        self._locks = locks
        self._access = access
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """Return the processors by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    async def lock(self, request: Request) -> Response:
        """Answer the queues, of those asked for, that are the member's own now; the others are somebody else's."""
        client_id, group, items = self._read(request)
        self._access.find_or_create(group)
        locked: list[MessageQueue] = []
        async for queues in _in_turns(items):
            wanted = {(queue.topic, queue.queue_id): queue for queue in queues}
            existing = [place for place in wanted if self._has_queue(*place)]
            try:
                locked += [wanted[place] for place in self._locks.lock(group, client_id, existing)]
            except Refusal:
                if not locked:
                    raise
                break
        return Response(0, body=await write_in_turns(LockBatchResult(locked)))

    async def unlock(self, request: Request) -> Response:
        """Take back the member's locks; those of others stay."""
        client_id, group, items = self._read(request)
        async for queues in _in_turns(items):
            self._locks.unlock(group, client_id, [(queue.topic, queue.queue_id) for queue in queues])
        return Response()

    def _read(self, request: Request) -> tuple[str, str, list[Any]]:
        """Return client id, group, and the queues as they are in the body."""
        members = read_json(request.body)
        client_id = text_member(members, "clientId")
        if not client_id:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, "a lock belongs to a client id; name one")
        request.client.note_role("consumer")
        return client_id, text_member(members, "consumerGroup"), list_member(members, "mqSet")

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)


async def _in_turns(items: list[Any]) -> AsyncIterator[list[MessageQueue]]:
    """Read queues, some at a time, with turns for others in between."""
    for start in range(0, len(items), _QUEUES_A_TURN):
        if start:
            await trio.lowlevel.checkpoint()
        yield [
            queue_of(as_object(item, "an item of 'mqSet'")) for item in items[start : start + _QUEUES_A_TURN]
        ]
