"""Push a reply to its requester: request 326 (RocketMQ: ReplyMessageProcessor.pushReplyMessage,
Broker2Client.callClient).

The replier waits until the requester has taken the reply, or gets the reason why not. Replies in flight to one
requester are limited in number, waiting ones in bytes, for each requester and in total.

A requester that loses its connection soon returns on a new one. So a push whose connection ends searches for it again;
and shortly after a start, when all clients reconnect, pushes wait for unknown requesters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from reput_broker.config.sections import LimitsConfig
from reput_broker.groups.client_table import owner_of
from reput_broker.groups.requesters import Requesters
from reput_broker.request import ClientBusy, ClientGone, ClientSilent, Refusal
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.errors import ErrorCode

PUSH_TIMEOUT_S: Final = 10.0
"""RocketMQ's timeout for a client's answer (Broker2Client)."""
SETTLE_S: Final = 5.0
"""How long after a start requesters may still be unknown."""

_AT_ONCE: Final = 32  # half of the requests that one connection may have in flight; see server/connection.py
_PAUSE_S: Final = 0.05
_FAILED: Final = int(ResponseCode.SYSTEM_ERROR)


class _Lane:
    __slots__ = ("held_bytes", "pushes", "turns")

    def __init__(self) -> None:
        self.turns = trio.Semaphore(_AT_ONCE)
        self.held_bytes = 0
        self.pushes = 0


class ReplyPusher:
    """Pushes replies. The broker's start is when this object was made."""

    def __init__(self, requesters: Requesters, limits: LimitsConfig) -> None:
        self._requesters = requesters
        self._limits = limits
        self._settled_at = trio.current_time() + SETTLE_S
        self._lanes: dict[str, _Lane] = {}
        self._held_bytes = 0

    async def push(self, client_id: str, header: PushReplyHeader, body: bytes) -> None:
        """Return once the requester has taken the reply.

        Raises:
            Refusal: REQUESTER_GONE: there is no such client; TIMEOUT: it did not answer in time; BUSY: too many bytes
                wait for it. After the first and the last it certainly does not have the reply.
        """
        with self._held(client_id, len(body)) as lane:
            deadline = trio.current_time() + PUSH_TIMEOUT_S
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
            if client is None and trio.current_time() >= self._settled_at:
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
                        timeout_s=max(0.0, deadline - trio.current_time()),
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
