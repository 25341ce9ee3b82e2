"""Replying to a request that a consumer has got: 325 (RocketMQ: MessageUtil.createReplyMessage).

A reply says what its request said of itself: the correlation id, and who waits. It goes to the broker that has the
request, which knows the requester, and through it: the broker answers when the requester has the reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from reput_client.errors import NoQueue
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands_send import SendMessageHeader
from reput_protocol.errors import InvalidMessage
from reput_protocol.header import HeaderType
from reput_protocol.message import Message, MessageQueue, encode_properties_text
from reput_protocol.names import reply_topic

REPLY_TIMEOUT_S: Final = 12.0
"""Longer than the 10 s that a broker waits for the requester, so that a silent one is told and not guessed."""

_FROM_REQUEST: Final = (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL)


def reply_to(
    request: ReceivedMessage,
    body: Buffer,
    *,
    tag: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    flag: int = 0,
) -> Message:
    """Return the message that replies to a request.

    Raises:
        InvalidMessage: what was received is no request, or a part of the reply cannot be sent.
    """
    found = request.properties
    cluster = found.get(names.CLUSTER)
    if cluster is None or not found.get(names.REPLY_TO_CLIENT):
        missing = names.CLUSTER if cluster is None else names.REPLY_TO_CLIENT
        raise InvalidMessage(
            f"{request!r} is no request: it has no property {missing}; look at wants_reply before you reply"
        )
    added: dict[str, str] = {name: found[name] for name in _FROM_REQUEST if name in found}
    added[names.MSG_TYPE] = names.MSG_TYPE_REPLY
    return Message(reply_topic(cluster), body, tag, keys, {**(properties or {}), **added}, flag)


async def send_reply(
    session: Session,
    group: str,
    reply: Message,
    unique_id: str | None,
    broker_name: str,
    deadline: float,
) -> None:
    """Hand a reply to its requester, through the broker that has the request.

    It is repeated if its connection is lost: a requester takes the first one.

    Raises:
        RequesterGone, BrokerError and others: see `Producer.reply`.
    """
    queue = await _queue_on(session, reply.topic, broker_name, deadline)
    header = SendMessageHeader(
        producer_group=group,
        topic=reply.topic,
        queue_id=queue.queue_id,
        born_timestamp=wall_clock_ms(),
        flag=reply.flag,
        properties=encode_properties_text(reply, unique_id).decode(),
        # The requester has it then; that the copy lies on the disk is nothing to wait for.
        ack=AckLevel.PAGE_CACHE,
    )
    await session.ask_ok(
        RequestCode.SEND_REPLY_MESSAGE_V2,
        header.to_ext_v2(HeaderType.MSGPACK),
        what=f"reply to {reply.properties[names.REPLY_TO_CLIENT]}",
        address=await session.broker_address(queue, deadline),
        deadline=deadline,
        body=reply.body,
    )


async def _queue_on(session: Session, topic: str, broker_name: str, deadline: float) -> MessageQueue:
    """Return a queue of the reply topic on this broker; on any other if it has none there."""
    route = await session.publish_route(topic, deadline)
    if not route.writable:
        raise NoQueue(topic, "writable queue")
    for queue in route.writable:
        if queue.broker_name == broker_name:
            return queue
    return route.writable[0]
