"""Push a reply to its requester: request 326 (RocketMQ: ReplyMessageProcessor.pushReplyMessage,
Broker2Client.callClient).

The replier waits until the requester has taken the reply, or gets the reason why not. Replies in flight to one
requester are limited in number, waiting ones in bytes, for each requester and in total.

A requester that loses its connection soon returns on a new one. So a push whose connection ends searches for it again;
and shortly after a start, when all clients reconnect, pushes wait for unknown requesters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from reput_broker.config.sections import LimitsConfig
from reput_broker.groups.client_table import ClientTable, owner_of
from reput_broker.request import Client, ClientBusy, ClientGone, ClientSilent, Refusal
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.errors import ErrorCode
from reput_protocol.kernel.records import properties_have_any, record_starts
from reput_protocol.properties import decode_properties
from reput_protocol.record.head import properties_of, size_at


class Requesters:
    """The connections of requesters by client id (RocketMQ: ProducerManager.findChannel).

    A requester is known by its heartbeats as a producer. Clients that send a request before the first one, as
    RocketMQ's Go client does, are known by that request's connection until then.
    """

    def __init__(self, clients: ClientTable) -> None:
        self._clients = clients

    def sent(self, client: Client, block: Buffer) -> None:
        """Record the requesters that the records of a block name, if any.

        Without access control the id of a client at another address is ignored, since a program that copies messages
        keeps it. Of an invalid block, which the store refuses, only the records before the first invalid one count.

        Raises:
            Refusal: NO_PERMISSION: an id belongs to a client of another user, who would receive the reply. An
                administrator is not refused.
        """
        if not properties_have_any(block, _ASKS) or client.is_closed:
            return
        for client_id in _requesters_in(block):
            if not _may_copy(client):
                self._clients.check_owner(client, client_id)
            if not self._clients.is_of_another(client, client_id):
                self._clients.requested(client, client_id)

    def drop_foreign(self, client: Client, properties: dict[str, str]) -> None:
        """Remove a requester that is a client of another user from the properties of a message.

        It is for messages that a consumer sends to a retry topic without proof that it has received them: refused, the
        consumer could never get rid of one that it has.
        """
        client_id = properties.get(names.REPLY_TO_CLIENT, "")
        if not _may_copy(client) and self._clients.is_of_another(client, client_id):
            del properties[names.REPLY_TO_CLIENT]

    def find(self, client_id: str) -> Client | None:
        """Return the connection of the requester with this id; None if there is none."""
        return self._clients.requester(client_id)


def _may_copy(client: Client) -> bool:
    """Whether a client may store the requests of others: an administrator replays their dead letters."""
    return client.principal is None or client.principal.is_admin


def _requesters_in(block: Buffer) -> Iterator[str]:
    """Yield the clients to which replies to the requests in a block are pushed."""
    for start in record_starts(block, 0, len(block)):
        text = properties_of(block, start, size_at(block, start))
        if text is None:
            return
        found = decode_properties(text)
        client_id = found.get(names.REPLY_TO_CLIENT)
        if client_id and found.get(names.MSG_TYPE) != names.MSG_TYPE_REPLY:
            yield client_id


PUSH_TIMEOUT_S: Final = 10.0
"""RocketMQ's timeout for a client's answer (Broker2Client)."""
SETTLE_S: Final = 5.0
"""How long after a start requesters may still be unknown."""

_AT_ONCE: Final = 32  # half of the requests that one connection may have in flight; see server/connection.py
_PAUSE_S: Final = 0.05
_ASKS: Final = (names.REPLY_TO_CLIENT.encode() + b"\x01",)
_FAILED: Final = int(ResponseCode.SYSTEM_ERROR)


class _Lane:
    __slots__ = ("held_bytes", "pushes", "turns")

    def __init__(self) -> None:
        self.turns = trio.Semaphore(_AT_ONCE)
        self.held_bytes = 0
        self.pushes = 0


class ReplyPusher:
    """Pushes replies. `clock` is trio's; the broker's start is when this object was made."""

    def __init__(
        self,
        requesters: Requesters,
        limits: LimitsConfig,
        *,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._requesters = requesters
        self._limits = limits
        self._clock = clock
        self._settled_at = clock() + SETTLE_S
        self._lanes: dict[str, _Lane] = {}
        self._held_bytes = 0

    async def push(self, client_id: str, header: PushReplyHeader, body: bytes) -> None:
        """Return once the requester has taken the reply.

        Raises:
            Refusal: REQUESTER_GONE: there is no such client; TIMEOUT: it did not answer in time; BUSY: too many bytes
                wait for it. After the first and the last it certainly does not have the reply.
        """
        with self._held(client_id, len(body)) as lane:
            deadline = self._clock() + PUSH_TIMEOUT_S
            with trio.move_on_at(deadline):
                async with lane.turns:
                    return await self._push(client_id, header, body, deadline)
        raise _silent(client_id, f"it has taken no reply within {PUSH_TIMEOUT_S:g} s")

    @contextmanager
    def _held(self, client_id: str, size: int) -> Iterator[_Lane]:
        lane = self._lanes.get(client_id) or _Lane()
        for held, limit in (
            (lane.held_bytes, self._limits.connection_buffer),
            (self._held_bytes, self._limits.buffer_total),
        ):
            if held and held + size > limit:
                raise Refusal(
                    ErrorCode.BUSY,
                    f"push reply message to {client_id} fail: {held} bytes of replies wait already; send it again "
                    "in a moment",
                )
        self._lanes[client_id] = lane
        lane.pushes += 1
        lane.held_bytes += size
        self._held_bytes += size
        try:
            yield lane
        finally:
            lane.pushes -= 1
            lane.held_bytes -= size
            self._held_bytes -= size
            if not lane.pushes:
                del self._lanes[client_id]

    async def _push(self, client_id: str, header: PushReplyHeader, body: bytes, deadline: float) -> None:
        owner: str | None = None
        while True:
            client = self._requesters.find(client_id)
            if client is not None:
                owner = owner or owner_of(client)
            if client is not None and owner_of(client) != owner:
                client = None  # another user has taken the id that became free
            if client is None and self._clock() >= self._settled_at:
                raise Refusal(
                    ErrorCode.REQUESTER_GONE,
                    f"push reply message fail, channel of <{client_id}> not found.; the requester is disconnected",
                )
            if client is not None:
                try:
                    answer = await client.call(
                        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
                        header.to_ext(client.header_type),
                        body,
                        timeout_s=max(0.0, deadline - self._clock()),
                    )
                except ClientSilent as error:
                    raise _silent(client_id, str(error)) from error
                except (ClientGone, ClientBusy):
                    pass
                else:
                    if answer.code == ResponseCode.SUCCESS:
                        return
                    why = f"it answered code {answer.code}{f', {answer.remark}' if answer.remark else ''}"
                    raise Refusal(ErrorCode.INTERNAL, f"push reply message to {client_id} fail: {why}")
            await trio.sleep(_PAUSE_S)


def _silent(client_id: str, why: str) -> Refusal:
    text = f"push reply message to {client_id} fail: {why}; whether it has the reply is not known"
    return Refusal(ErrorCode.TIMEOUT, text, response_code=_FAILED)
