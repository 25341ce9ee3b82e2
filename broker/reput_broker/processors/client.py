"""Clients that register, heartbeat and leave: 34, 35, 38 (RocketMQ: ClientManageProcessor, ConsumerManageProcessor);
members that lock queues, to consume in order: 41, 42 (RocketMQ: AdminBrokerProcessor.lockBatchMQ).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import trio

from reput_broker.groups.group_state import check_not_brokers
from reput_broker.groups.membership import MemberConflict
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import (
    ConsumerData,
    ConsumerList,
    ConsumerListHeader,
    HeartbeatData,
    LockBatchBody,
    LockBatchResult,
    UnregisterClientHeader,
)
from reput_protocol.errors import ErrorCode, InvalidName
from reput_protocol.names import check_label
from reput_protocol.record.message import MessageQueue

_GROUPS_A_TURN = 64
"""Groups of a heartbeat after which other tasks run."""


class ClientProcessor(Processor):
    """Maintains the register of clients."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._membership = core.groups.membership

    @serves(RequestCode.HEART_BEAT)
    async def heartbeat(self, request: Request) -> Response:
        """Register a client with all groups that it names; the groups list it once this is answered.

        A group that cannot be joined is refused after the others were joined. If all together exceed a limit, it joins
        none.
        """
        data = self._read(request)
        request.client.note_role("consumer" if data.consumers else "producer")
        groups: list[ConsumerData | str] = [*data.producer_groups, *data.consumers]
        refused: Refusal | InvalidName | None = None
        for start in range(0, max(1, len(groups)), _GROUPS_A_TURN):
            if start:
                await trio.lowlevel.checkpoint()
                if request.client.is_closed:
                    break
            problem = self._join(request, data.client_id, groups[start : start + _GROUPS_A_TURN])
            refused = refused or problem
        if refused is not None:
            raise refused
        return Response()

    def _join(
        self, request: Request, client_id: str, groups: list[ConsumerData | str]
    ) -> Refusal | InvalidName | None:
        consumers: list[ConsumerData] = []
        producers: list[str] = []
        refused: Refusal | InvalidName | None = None
        for group in groups:
            try:
                if isinstance(group, str):
                    check_label("producer group", group)
                    producers.append(group)
                    continue
                for subscription in group.subscriptions:
                    check_label("topic", subscription.topic)
                config = self._core.group_access.find_or_create(group.group_name)
            except (Refusal, InvalidName) as error:
                refused = error
                continue
            consumers.append(group)
            if not self._core.store.options.is_replica:  # whose topics are its master's
                self._core.tables.make_retry_topic(config)
        conflicts = self._membership.heard(
            request.client,
            client_id,
            request.header.language,
            request.header.version,
            consumers=consumers,
            producer_groups=producers,
        )
        if refused is None and conflicts:
            refused = _conflict(conflicts[0])
        return refused

    def _read(self, request: Request) -> HeartbeatData:
        data = request.content(HeartbeatData)
        self._membership.check_entries(data.entries)
        check_label("client id", data.client_id)
        self._membership.clients.check_owner(request.client, data.client_id)
        if data.without_sub:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "heartbeats without subscriptions are not offered; send whole ones",
            )
        self._membership.check_room(request.client, data.client_id, data.consumers, data.producer_groups)
        return data

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, request: Request) -> Response:
        """Remove a client from groups; nothing happens if it is in none of them."""
        header = UnregisterClientHeader.from_ext(request.ext)
        self._membership.left(
            request.client, consumer_group=header.consumer_group, producer_group=header.producer_group
        )
        if header.consumer_group:
            self._core.hold.member_left(request.client, header.consumer_group)
        return Response()

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, request: Request) -> Response:
        """Answer with the ids of a group's members, from which each computes its queues."""
        group = ConsumerListHeader.from_ext(request.ext).consumer_group
        online = self._membership.online.get(group)
        if online is None:
            if request.is_native:
                raise Refusal(ErrorCode.NOT_FOUND, f"group {group!r} has no member", response_code=1)
            # RocketMQ's wording: its clients and tools show it as it is.
            return Response(1, remark=f"no consumer for this group, {group}")
        return Response(0, body=ConsumerList(self._membership.client_ids(group)).to_json())


def _conflict(refused: MemberConflict) -> Refusal:
    conflict = refused.conflict
    return Refusal(
        ErrorCode.SUBSCRIPTION_CONFLICT,
        f"group {refused.group!r}: this client wants {conflict.wanted}, member {conflict.other.client_id!r} wants "
        f"{conflict.other_wanted}; give all members the same subscription, or this one its own group",
    )


_QUEUES_A_TURN: Final = 256


class LockProcessor(Processor):
    """Grants and releases locks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._locks = core.groups.locks
        self._clients = core.groups.membership.clients

    @serves(RequestCode.LOCK_BATCH_MQ)
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

    @serves(RequestCode.UNLOCK_BATCH_MQ)
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
