"""ReceiveMessage, pops for clients that wait; AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from reput_client.consume.send_back import DEAD_LETTER
from reput_protocol.codes import RequestCode
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType
from reput_proxy import messaging_pb2 as pb
from reput_proxy.clients import Delivery
from reput_proxy.messages import ms_of, timestamp_of, to_clients
from reput_proxy.pops import Wanted
from reput_proxy.proxy import Call
from reput_proxy.rejections import (
    ID_BYTES_MAX,
    Code,
    Rejected,
    check_broker,
    check_group_and_topic,
    check_size,
    ok,
    status,
    status_of,
    status_of_all,
)

INVISIBLE_MIN_MS: Final = 10_000
INVISIBLE_MAX_MS: Final = 12 * 3600 * 1000
WAIT_MIN_S: Final = 5.0
WAIT_MAX_S: Final = 20.0
_FILTER_BYTES_MAX: Final = 16 * 1024
"""Filters of clients that do not wait any more are kept for a while, see `Pops`."""
_EARLIER_PART: Final = 0.1
"""By what part of its time at most a receive without messages ends earlier."""
_RESERVE_S: Final = 0.5
"""So long before the client's deadline an answer leaves."""


async def receive(call: Call, request: pb.ReceiveMessageRequest) -> AsyncIterator[pb.ReceiveMessageResponse]:
    """Answer ReceiveMessage: a status, the messages, and when they were delivered."""
    group, topic = request.group.name, request.message_queue.topic.name
    check_group_and_topic(group, topic)
    invisible_ms = ms_of(request.invisible_duration)
    if request.auto_renew:
        call.check_client_id()
        call.proxy.clients.heard(call.client_key)
        invisible_ms = call.proxy.renewals.invisible_ms
    elif not INVISIBLE_MIN_MS <= invisible_ms <= INVISIBLE_MAX_MS:
        raise Rejected(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is from {INVISIBLE_MIN_MS} to {INVISIBLE_MAX_MS} ms, not {invisible_ms}",
        )
    check_size("the attempt id", request.attempt_id, ID_BYTES_MAX, Code.BAD_REQUEST)
    settings = await call.upstream.groups.get(group)
    tags, sql = filter_of(request.filter_expression)
    wanted = Wanted(group, topic, tags, sql, settings is not None and settings.consume_message_orderly)
    max_messages = min(max(request.batch_size, 1), POP_MESSAGES_MAX)
    pops = call.upstream.pops
    with call.proxy.waiting_receive():
        messages = await pops.receive(
            wanted, max_messages, invisible_ms / 1000, _wait_s(call, request), request.attempt_id or None
        )
    sent = 0
    try:
        converted = to_clients(messages, request.message_queue.topic)
        messages = [message for message, _ in converted]
        if request.auto_renew:
            call.proxy.renewals.add(call.client_key, group, messages)
        yield pb.ReceiveMessageResponse(status=ok() if converted else status(Code.MESSAGE_NOT_FOUND, "no new message"))
        for _, message in converted:
            yield pb.ReceiveMessageResponse(message=message)
            sent += 1
        call.proxy.counters.received += sent
    except BaseException:
        # The client has gone; it may have got those that were written.
        call.proxy.renewals.forget(call.client_key, messages[sent:])
        await asyncio.shield(pops.give_back(messages[sent:]))
        raise
    yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp_of(call.now_ms()))


def filter_of(expression: pb.FilterExpression) -> tuple[str, str | None]:
    """Return tags, and the SQL92 expression or None; raises `Rejected` if they are too long, or SQL92 is empty."""
    check_size("the filter", expression.expression, _FILTER_BYTES_MAX, Code.ILLEGAL_FILTER_EXPRESSION)
    if expression.type == pb.SQL:
        if not expression.expression:  # a pop has no filter then
            raise Rejected(
                Code.ILLEGAL_FILTER_EXPRESSION,
                "the expression of the filter is empty; to get every message, filter by the tag *",
            )
        return "*", expression.expression
    return expression.expression or "*", None


def _wait_s(call: Call, request: pb.ReceiveMessageRequest) -> float:
    """Return how long a receive waits: as the client asks, within bounds, and no longer than it waits itself.

    Raises:
        Rejected: its deadline leaves no time to wait.
    """
    remaining_s = call.remaining_s
    wait_s = remaining_s - _RESERVE_S
    if request.HasField("long_polling_timeout"):
        wait_s = ms_of(request.long_polling_timeout) / 1000
    wait_s = min(max(wait_s, WAIT_MIN_S), WAIT_MAX_S)
    if wait_s > remaining_s - _RESERVE_S:
        if remaining_s < WAIT_MIN_S:
            raise Rejected(
                Code.ILLEGAL_POLLING_TIME,
                f"the request ends in {remaining_s:.1f} s, and a receive waits {WAIT_MIN_S:.0f} s at least",
            )
        wait_s = remaining_s - _RESERVE_S
    # Clients whose receives have ended together once would otherwise ask together for ever.
    return wait_s * random.uniform(1 - _EARLIER_PART, 1.0)


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
            pb.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=each)
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
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisible time is from 0 to {INVISIBLE_MAX_MS} ms, not {invisible_ms}"
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
