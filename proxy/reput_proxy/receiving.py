"""ReceiveMessage: pops for clients that wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import ms_of, timestamp_of, to_clients
from reput_proxy.pops import Wanted
from reput_proxy.proxy import Call
from reput_proxy.rejections import ID_BYTES_MAX, Code, Rejected, check_group_and_topic, check_size, ok, status

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
        yield pb.ReceiveMessageResponse(
            status=ok() if converted else status(Code.MESSAGE_NOT_FOUND, "no new message")
        )
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
