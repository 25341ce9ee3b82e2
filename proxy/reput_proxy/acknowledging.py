"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: what becomes of a received message."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from reput_client.consume.send_back import DEAD_LETTER
from reput_protocol.codes import RequestCode
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType
from reput_proxy import messaging_pb2 as pb
from reput_proxy.deliveries import Delivery
from reput_proxy.messages import ms_of
from reput_proxy.proxy import Call
from reput_proxy.receiving import INVISIBLE_MAX_MS
from reput_proxy.rejections import (
    ID_BYTES_MAX,
    Code,
    Rejected,
    check_broker,
    check_group_and_topic,
    check_size,
    ok,
    status_of,
    status_of_all,
)


async def ack(call: Call, request: pb.AckMessageRequest) -> pb.AckMessageResponse:
    """Answer AckMessage: each message has a status of its own."""
    group, topic = request.group.name, request.topic.name
    check_group_and_topic(group, topic)
    if not request.entries:
        raise Rejected(Code.BAD_REQUEST, "the request names no message")
    statuses: list[pb.Status] = [ok()] * len(request.entries)
    deliveries: dict[int, Delivery] = {}
    async with _taking(call, group, topic) as take:
        for index, entry in enumerate(request.entries):
            try:
                deliveries[index] = await take(entry.receipt_handle)
            except (Rejected, ReputError) as error:
                statuses[index] = status_of(error)
        indices = [*deliveries]
        errors = await call.upstream.settling(group).ack([*deliveries.values()])
    for number, failure in errors.items():
        statuses[indices[number]] = status_of(failure)
    call.proxy.counters.acknowledged += len(deliveries) - len(errors)
    return pb.AckMessageResponse(
        status=status_of_all(statuses),
        entries=[
            pb.AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each
            )
            for entry, each in zip(request.entries, statuses, strict=True)
        ],
    )


@asynccontextmanager
async def _taking(call: Call, group: str, topic: str) -> AsyncIterator[Callable[[str], Awaitable[Delivery]]]:
    """Take messages as `Renewals.taking` does, of brokers whose addresses are known.

    The function raises `Rejected` if it is not a handle, or there is no such broker, and as `check_broker`.
    """
    session = call.upstream.session
    deadline = session.deadline(call.timeout_s)
    with call.proxy.renewals.taking(call.client_key, group, topic) as taken:

        async def take(handle: str) -> Delivery:
            delivery = await taken(handle)
            await check_broker(
                session,
                topic,
                delivery.broker_name,
                Code.INVALID_RECEIPT_HANDLE,
                deadline,
                may_be_away=call.now_ms() < delivery.invisible_until_ms,
            )
            return delivery

        yield take


async def change_invisible_duration(
    call: Call, request: pb.ChangeInvisibleDurationRequest
) -> pb.ChangeInvisibleDurationResponse:
    """Answer ChangeInvisibleDuration: extend the time of a message, or give it back for later."""
    group, topic = request.group.name, request.topic.name
    check_group_and_topic(group, topic)
    invisible_ms = ms_of(request.invisible_duration)
    if not 0 <= invisible_ms <= INVISIBLE_MAX_MS:
        raise Rejected(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is from 0 to {INVISIBLE_MAX_MS} ms, not {invisible_ms}",
        )
    async with _taking(call, group, topic) as take:
        delivery = await take(request.receipt_handle)
        await call.upstream.settling(group).nack(delivery, invisible_ms / 1000)
    return pb.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=delivery.receipt_handle)


async def forward_to_dead_letters(
    call: Call, request: pb.ForwardMessageToDeadLetterQueueRequest
) -> pb.ForwardMessageToDeadLetterQueueResponse:
    """Answer ForwardMessageToDeadLetterQueue: the group gets the message no more."""
    group, topic = request.group.name, request.topic.name
    check_group_and_topic(group, topic)
    check_size("the message id", request.message_id, ID_BYTES_MAX, Code.ILLEGAL_MESSAGE_ID)
    async with _taking(call, group, topic) as take:
        delivery = await take(request.receipt_handle)
        if delivery.physical_offset < 0:
            raise Rejected(Code.INVALID_RECEIPT_HANDLE, "the handle does not say where its message is stored")
        await _send_back(call, delivery, request.message_id)
        # Last: what goes before may fail, and the message would be lost.
        errors = await call.upstream.settling(group).ack([delivery])
    for error in errors.values():
        return pb.ForwardMessageToDeadLetterQueueResponse(status=status_of(error))
    return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())


async def _send_back(call: Call, delivery: Delivery, message_id: str) -> None:
    """Make a message a dead letter. Its id is that of the delivery, so that a repeated request makes one."""
    identity = f"{delivery.broker_name} {delivery.group} {delivery.queue.topic} {delivery.receipt_handle}"
    header = SendBackHeader(
        delivery.physical_offset,
        delivery.group,
        DEAD_LETTER,
        origin_msg_id=message_id,
        origin_topic=delivery.topic,
        send_back_id=hashlib.sha256(identity.encode()).hexdigest()[:32],
        is_repeated=True,
    )
    session = call.upstream.session
    await session.ask_ok(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        header.to_ext(HeaderType.MSGPACK),
        what=f"sending back {delivery!r}",
        queue=MessageQueue(delivery.topic, delivery.broker_name, delivery.queue.queue_id),
        deadline=session.deadline(call.timeout_s),
    )
