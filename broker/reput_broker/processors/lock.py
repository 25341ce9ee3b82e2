"""Locks on queues, for members that consume in order: 41, 42 (RocketMQ: AdminBrokerProcessor.lockBatchMQ)."""

from __future__ import annotations

from reput_broker.delivery.queue_locks import QueueLocks
from reput_broker.processors.group_access import GroupAccess
from reput_broker.request import Handler, Refusal, Request, Response
from reput_broker.topics import TopicConfigManager
from reput_protocol.bodies_lock import LockBatchBody, LockBatchResult
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ErrorCode


class LockProcessor:
    """Gives out locks and takes them back."""

    def __init__(self, locks: QueueLocks, access: GroupAccess, topics: TopicConfigManager) -> None:
        self._locks = locks
        self._access = access
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """Return the processors by request code."""
        return {RequestCode.LOCK_BATCH_MQ: self.lock, RequestCode.UNLOCK_BATCH_MQ: self.unlock}

    def lock(self, request: Request) -> Response:
        """Answer the queues, of those asked for, that are the member's own now; the others are somebody else's."""
        body = self._read(request)
        self._access.find_or_create(body.consumer_group)
        wanted = {(queue.topic, queue.queue_id): queue for queue in body.queues}
        existing = [(topic, queue_id) for topic, queue_id in wanted if self._has_queue(topic, queue_id)]
        owned = self._locks.lock(body.consumer_group, body.client_id, existing)
        return Response(0, body=LockBatchResult([wanted[queue] for queue in owned]).to_json())

    def unlock(self, request: Request) -> Response:
        """Take back the member's locks; those of others stay."""
        body = self._read(request)
        queues = [(queue.topic, queue.queue_id) for queue in body.queues]
        self._locks.unlock(body.consumer_group, body.client_id, queues)
        return Response()

    def _read(self, request: Request) -> LockBatchBody:
        body = LockBatchBody.from_json(request.body)
        if not body.client_id:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, "a lock belongs to a client id; name one")
        request.client.note_role("consumer")
        return body

    def _has_queue(self, topic: str, queue_id: int) -> bool:
        config = self._topics.get(topic)
        return config is not None and 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)
