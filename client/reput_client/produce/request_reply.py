"""Requests and replies (docs/request-reply.md).

A request is an ordinary message with a correlation id and the waiting producer's client id. The reply (325) goes to the
broker that has the request, which delivers it (326) on the requester's heartbeat connection. A late reply is dropped
and counted. (RocketMQ: DefaultMQProducerImpl.request, MessageUtil.createReplyMessage.)
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from reput_client.errors import ClientClosed, NoQueue, ReplyTimeout
from reput_client.received import ReceivedMessage
from reput_client.transport.broker_requests import BrokerRequest
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.reply import PushReplyHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import InvalidMessage
from reput_protocol.names import reply_topic
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.message import Message, MessageQueue, encode_properties_text
from reput_protocol.record.message_id import ZERO_HOST, Host
from reput_protocol.record.record import Record, encode_record
from reput_protocol.wire.channel import Waiter
from reput_protocol.wire.header import HeaderType

log = logging.getLogger("reput_client")
REPLY_TIMEOUT_S: Final = 12.0
"""Longer than the 10 s for which a broker waits for the requester, so that it can report a silent one."""
_FROM_REQUEST: Final = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)


class PendingRequest:
    """A request that waits for its reply.

    Attributes:
        properties: what its message has besides the application's properties.
    """

    __slots__ = ("correlation_id", "is_closed", "properties", "reply", "timeout_s", "waiter")

    def __init__(self, client_id: str, timeout_s: float) -> None:
        self.correlation_id = str(uuid.uuid4())
        self.timeout_s = timeout_s
        self.properties = {
            names.CORRELATION_ID: self.correlation_id,
            names.REPLY_TO_CLIENT: client_id,
            names.TTL: str(int(timeout_s * 1000)),
        }
        self.waiter = Waiter()
        self.reply: ReceivedMessage | None = None
        self.is_closed = False


class PendingRequests:
    """The requests of one producer that wait for replies.

    Attributes:
        late_replies: how many replies came after their request timed out.
    """

    def __init__(self, session: Session) -> None:
        self.late_replies = 0
        self._session = session
        self._pending: dict[str, PendingRequest] = {}
        session.requests.register(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._take)

    @contextmanager
    def pending(self, client_id: str, timeout_s: float) -> Iterator[PendingRequest]:
        """Begin a request of the client `client_id`; it takes a reply until the context ends."""
        pending = PendingRequest(client_id, timeout_s)
        self._pending[pending.correlation_id] = pending
        try:
            yield pending
        finally:
            self._pending.pop(pending.correlation_id, None)

    async def reply_to(
        self, pending: PendingRequest, deadline: float, topic: str, *, is_stored: bool
    ) -> ReceivedMessage:
        """Wait for a reply, which may have come already.

        Args:
            is_stored: whether the request is certainly stored.

        Raises:
            ReplyTimeout: none came in time.
            ClientClosed: the producer was closed meanwhile.
        """
        await self._session.pump.wait(pending.waiter, deadline)
        if pending.reply is not None:
            return pending.reply
        if pending.is_closed:
            raise ClientClosed
        raise ReplyTimeout(topic, pending.correlation_id, pending.timeout_s, is_stored=is_stored)

    def _take(self, request: BrokerRequest) -> None:
        """Take a reply.

        The broker gets an answer even if no request waits any more (RocketMQ: receiveReplyMessage).
        """
        header = PushReplyHeader.from_ext(request.ext)
        reply = _message_of(header, bytes(request.body))
        request.answer()
        correlation_id = reply.get_property(names.CORRELATION_ID)
        pending = self._pending.get(correlation_id or "")
        if pending is None or pending.reply is not None:
            self.late_replies += 1
            log.warning("a reply from %s has come too late, dropped: %s", header.born_host, correlation_id)
            return
        pending.reply = reply
        self._session.pump.wake(pending.waiter)

    def close(self) -> None:
        """Make waiting requests raise `ClientClosed`."""
        for pending in self._pending.values():
            pending.is_closed = True
            self._session.pump.wake(pending.waiter)

    def forget(self) -> None:
        """In a forked child: drop the parent's requests."""
        self._pending.clear()


def _message_of(header: PushReplyHeader, body: bytes) -> ReceivedMessage:
    """Return a reply as a received message, or raise InvalidMessage."""
    properties = decode_properties((header.properties or "").encode())
    properties[names.ARRIVE_TIME] = str(wall_clock_ms())
    record = encode_record(
        Record(
            header.topic,
            body,
            queue_id=header.queue_id,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_timestamp_ms=header.born_timestamp,
            born_host=_host(header.born_host),
            store_timestamp_ms=header.store_timestamp,
            store_host=_host(header.store_host),
            reconsume_times=header.reconsume_times or 0,
            properties=encode_properties(properties),
        )
    )
    return ReceivedMessage.of_record(bytes(record))


def _host(text: str) -> Host:
    try:
        return Host.parse(text.lstrip("/"))  # Java writes addresses with a slash
    except ValueError:
        return ZERO_HOST


def reply_to(
    request: ReceivedMessage,
    body: Buffer | None,
    *,
    value: Any,
    tag: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
) -> Message:
    """Return the reply message for a request.

    Raises `InvalidMessage` if it is not one, or a part of the reply cannot be sent.
    """
    found = request.properties
    cluster = found.get(names.CLUSTER)
    if cluster is None or not found.get(names.REPLY_TO_CLIENT):
        missing = names.CLUSTER if cluster is None else names.REPLY_TO_CLIENT
        raise InvalidMessage(
            f"{request!r} is not a request: it has no property {missing}; check wants_reply before replying"
        )
    added: dict[str, str] = {name: found[name] for name in _FROM_REQUEST if name in found}
    added[names.MSG_TYPE] = names.MSG_TYPE_REPLY
    texts = {**(properties or {}), **added}
    return Message(reply_topic(cluster), body, tag, keys, texts, flag, value=value)


async def send_reply(
    session: Session, group: str, reply: Message, unique_id: str | None, broker_name: str, deadline: float
) -> None:
    """Send a reply to its requester through the broker that has the request.

    Repeated if the connection is lost: a requester takes the first reply. Raises like `Producer.reply`.
    """
    queue = await _queue_on(session, reply.topic, broker_name, deadline)
    header = SendMessageHeader(
        producer_group=group,
        topic=reply.topic,
        queue_id=queue.queue_id,
        born_timestamp=wall_clock_ms(),
        flag=reply.flag,
        properties=encode_properties_text(reply, unique_id).decode(),
        # The requester then has it; syncing the stored copy adds nothing.
        ack=AckLevel.PAGE_CACHE,
    )
    await session.ask_ok(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        header.to_ext_v2(HeaderType.MSGPACK),
        what=f"reply to {reply.properties[names.REPLY_TO_CLIENT]}",
        queue=queue,
        deadline=deadline,
        body=reply.body,
    )


async def _queue_on(session: Session, topic: str, broker_name: str, deadline: float) -> MessageQueue:
    """Return a queue of the reply topic on this broker, or else any other."""
    route = await session.publish_route(topic, deadline)
    if not route.writable:
        raise NoQueue(topic, "writable queue")
    for queue in route.writable:
        if queue.broker_name == broker_name:
            return queue
    return route.writable[0]
