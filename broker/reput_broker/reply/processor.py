"""Replies to requests: 324 and 325, and their push to the requester, 326 (RocketMQ: ReplyMessageProcessor).

A reply is pushed to the client that its property REPLY_TO_CLIENT names; the replier is answered after that client. In
either case a copy is stored in the topic that the reply was sent to, unless the configuration turns this off. A copy
that cannot be stored is logged, and does not change the answer to a delivered reply.

The replier waits until the requester has taken the reply, or gets the reason why not. Replies in flight to one
requester are limited in number, waiting ones in bytes, for each requester and in total. A requester that loses its
connection soon returns on a new one. So a push whose connection ends searches for it again; and shortly after a start,
when all clients reconnect, pushes wait for unknown requesters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.config.sections import LimitsConfig
from reput_broker.groups.client_table import Requesters, owner_of
from reput_broker.remoting.request import (
    ClientBusy,
    ClientGone,
    ClientSilent,
    Processor,
    Put,
    Refusal,
    Request,
    Response,
    Result,
    serves,
)
from reput_broker.send.send_records import check_size, record_of
from reput_broker.store.base.results import PutResult
from reput_broker.tenure.core import Core
from reput_protocol import properties as names
from reput_protocol.codes import AckLevel, MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import SendMessageHeader, SendMessageResult
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.names import reply_topic
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.property_rules import Form, admit
from reput_protocol.record.message_id import Host, offset_message_id
from reput_protocol.record.record import Record, encode_record

log = structlog.get_logger(__name__)

PUSH_TIMEOUT_S: Final = 10.0
"""RocketMQ's timeout for a client's answer (Broker2Client)."""
SETTLE_S: Final = 5.0
"""How long after a start requesters may still be unknown."""
_AT_ONCE: Final = 32  # half of the requests that one connection may have in flight; see server/connection.py
_PAUSE_S: Final = 0.05
_FAILED: Final = int(ResponseCode.SYSTEM_ERROR)
_NO_MESSAGE = "0"
"""The message id of a reply of which no copy is stored; Java's client needs one."""
_RESULTS = {ErrorCode.REQUESTER_GONE: "no_requester"}


class _Reply(NamedTuple):
    header: SendMessageHeader
    to_client: str
    properties: dict[str, str]
    body: bytes
    record: Record


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
                    why = f"it responded with code {answer.code}{f', {answer.remark}' if answer.remark else ''}"
                    raise Refusal(ErrorCode.INTERNAL, f"push reply message to {client_id} fail: {why}")
            await trio.sleep(_PAUSE_S)


def _silent(client_id: str, why: str) -> Refusal:
    text = f"push reply message to {client_id} fail: {why}; whether it has the reply is unknown"
    return Refusal(ErrorCode.TIMEOUT, text, response_code=_FAILED)


class ReplyProcessor(Processor):
    """Pushes replies to requesters.

    The writers of the cluster's reply topic are those who may push to clients, whatever the topic of a reply.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._pusher = ReplyPusher(core.groups.requesters, core.config.limits)
        self._reply_topic = reply_topic(core.config.cluster)
        self._host: Host = core.store.options.host

    @serves(RequestCode.SEND_REPLY_MESSAGE)
    def send_reply(self, request: Request) -> Result:
        """Push a reply (324)."""
        return self._send(request, SendMessageHeader.from_ext(request.ext))

    @serves(RequestCode.SEND_REPLY_MESSAGE_V2)
    def send_reply_v2(self, request: Request) -> Result:
        """Push a reply (325)."""
        return self._send(request, SendMessageHeader.from_ext_v2(request.ext))

    def _send(self, request: Request, header: SendMessageHeader) -> Result:
        request.check("write", self._reply_topic)
        if self._core.topic_access.writable(header.topic, max(0, header.queue_id)) is None:
            return self._create_and_send(request, header)
        self._begin(request, header)
        return None

    async def _create_and_send(self, request: Request, header: SendMessageHeader) -> Response | None:
        await self._core.topic_access.create_on_send(header.topic)
        self._begin(request, header)
        return None

    def _begin(self, request: Request, header: SendMessageHeader) -> None:
        """Validate the reply and push it in a task, so that the connection's requests do not wait."""
        config = self._core.topic_access.created(header.topic, max(0, header.queue_id))
        reply = self._checked(request, header)
        if header.queue_id < 0:
            reply.record.queue_id = random.randrange(max(1, config.write_queue_nums))
        request.body = memoryview(reply.body)  # instead of keeping the whole read in memory
        request.client.spawn(self._hand_over, request, reply)

    def _checked(self, request: Request, header: SendMessageHeader) -> _Reply:
        limit = self._core.store.options.message_bytes_max
        if len(request.body) > limit:
            self._core.counters.rejected["too_large"] += 1
            raise Refusal(
                ErrorCode.TOO_LARGE,
                f"a reply of {len(request.body)} bytes, but at most {limit} are accepted (store.message_size_max); "
                "make it smaller",
            )
        text = header.properties.encode()
        check_size(text)
        found = decode_properties(text)
        reserved = admit(found, Form.REPLY)
        if reserved is not None or header.batch or header.sys_flag & MessageSysFlag.TRANSACTION_MASK:
            self._core.counters.rejected["malformed"] += 1
            what = "a batch" if header.batch else f"property {reserved!r}" if reserved else "a transaction"
            raise Refusal(
                ErrorCode.MALFORMED, f"a reply is one message and delivered immediately; send it without {what}"
            )
        to_client = found.get(names.REPLY_TO_CLIENT)
        if to_client is None:
            self._core.counters.rejected["malformed"] += 1
            raise Refusal(
                ErrorCode.MALFORMED,
                f"reply message properties[{names.REPLY_TO_CLIENT}] is null; copy it from the request",
                response_code=int(ResponseCode.SYSTEM_ERROR),
            )
        body = bytes(request.body)
        born_host = Host.unpack(request.client.born_host)
        record = record_of(header, body, encode_properties(found), header.flag, born_host)
        return _Reply(header, to_client, found, body, record)

    async def _hand_over(self, request: Request, reply: _Reply) -> None:
        """Push a reply, store its copy, answer. Raises nothing."""
        try:
            response = await self._outcome(request, reply)
        except Exception as error:
            log.error(
                "reply_failed",
                peer=request.client.peer,
                hint="a defect of the broker; please report it with this log entry",
                exc_info=error,
            )
            response = Refusal(ErrorCode.INTERNAL, "the broker failed on this reply; see its log").response()
        if response is not None:
            request.reply(response)

    async def _outcome(self, request: Request, reply: _Reply) -> Response | None:
        refusal = await self._push(request, reply)
        if self._core.config.replies.store:
            try:
                return await self._core.puts.appender.resolve(self._store_copy(request, reply, refusal))
            except ReputError as error:
                log.warning("reply_not_stored", topic=reply.header.topic, detail=str(error))
        return self._answer(request, reply, refusal, None)

    async def _push(self, request: Request, reply: _Reply) -> Refusal | None:
        """Return why the requester does not have the reply; None if it has."""
        now_ms = self._core.clock_ms()
        properties = encode_properties({**reply.properties, names.PUSH_REPLY_TIME: str(now_ms)})
        header = PushReplyHeader.of(
            reply.header,
            properties.decode(),
            born_host=request.client.peer,
            store_host=str(self._host),
            store_timestamp_ms=now_ms,
        )
        try:
            await self._pusher.push(reply.to_client, header, reply.body)
        except Refusal as refusal:
            self._core.counters.replies[_RESULTS.get(refusal.error, "not_taken")] += 1
            return refusal
        self._core.counters.replies["delivered"] += 1
        return None

    def _store_copy(self, request: Request, reply: _Reply, refusal: Refusal | None) -> Put:
        waits = refusal is None and reply.properties.get(names.WAIT) != "false"
        ack = reply.header.ack or self._core.puts.default_ack() if waits else AckLevel.PAGE_CACHE
        if ack is AckLevel.REPLICATED:
            ack = self._core.puts.local_ack  # the answer is about the reply, which was pushed, not about the copy
        return Put(
            request,
            len(encode_record(reply.record)) + 20,
            lambda: self._core.store.put_record(reply.record),
            lambda result: self._answer(request, reply, refusal, result),
            reply.header.topic,
            ack,
        )

    def _answer(self, request: Request, reply: _Reply, refusal: Refusal | None, stored: PutResult | None) -> Response:
        if refusal is not None:
            return refusal.response()
        result = SendMessageResult(
            _NO_MESSAGE if stored is None else offset_message_id(self._host, stored.physical_offset),
            reply.record.queue_id,
            0 if stored is None else stored.queue_offset,
            transaction_id=reply.properties.get(names.UNIQ_KEY),
        )
        return Response(0, result.to_ext(request.header_type))
