"""Replies to requests: 324 and 325 (RocketMQ: ReplyMessageProcessor).

A reply is pushed to the client that its property REPLY_TO_CLIENT names; the replier is answered after that client. In
either case a copy is stored in the topic that the reply was sent to, unless the configuration turns this off. A copy
that cannot be stored is logged, and does not change the answer to a delivered reply.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import structlog

from reput_broker.core import Core
from reput_broker.reply.reply_push import ReplyPusher
from reput_broker.request import Processor, Put, Refusal, Request, Response, Result, serves
from reput_broker.send.send_records import check_size, record_of
from reput_broker.store.results import PutResult
from reput_protocol import properties as names
from reput_protocol.codes import AckLevel, MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import SendMessageHeader, SendMessageResult
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.names import reply_topic
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.property_rules import Form, admit
from reput_protocol.record.host import Host
from reput_protocol.record.message_id import offset_message_id
from reput_protocol.record.record import Record, encode_record

log = structlog.get_logger(__name__)

_NO_MESSAGE = "0"
"""The message id of a reply of which no copy is stored; Java's client needs one."""
_RESULTS = {ErrorCode.REQUESTER_GONE: "no_requester"}


class _Reply(NamedTuple):
    header: SendMessageHeader
    to_client: str
    properties: dict[str, str]
    body: bytes
    record: Record


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
                ErrorCode.MALFORMED,
                f"a reply is one message and delivered immediately; send it without {what}",
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
            ack = (
                self._core.puts.local_ack
            )  # the answer is about the reply, which was pushed, not about the copy
        return Put(
            request,
            len(encode_record(reply.record)) + 20,
            lambda: self._core.store.put_record(reply.record),
            lambda result: self._answer(request, reply, refusal, result),
            reply.header.topic,
            ack,
        )

    def _answer(
        self, request: Request, reply: _Reply, refusal: Refusal | None, stored: PutResult | None
    ) -> Response:
        if refusal is not None:
            return refusal.response()
        result = SendMessageResult(
            _NO_MESSAGE if stored is None else offset_message_id(self._host, stored.physical_offset),
            reply.record.queue_id,
            0 if stored is None else stored.queue_offset,
            transaction_id=reply.properties.get(names.UNIQ_KEY),
        )
        return Response(0, result.to_ext(request.header_type))
