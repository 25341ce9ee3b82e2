"""PullMessage, UpdateOffset, GetOffset and QueryOffset: clients that keep their own place in each queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from reput_client.consume.pull import PULL_BYTES_MAX, PULL_GRACE_S, MessageSelector, PullStatus, pull_ext, pull_result
from reput_protocol.codes import RequestCode
from reput_protocol.names import check_topic
from reput_protocol.record.message import MessageQueue
from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import ms_of, to_clients
from reput_proxy.proxy import Call
from reput_proxy.receiving import WAIT_MAX_S, filter_of
from reput_proxy.rejections import Code, Rejected, check_broker, check_group_and_topic, check_name, ok, status

_MESSAGES_MAX: Final = 256
_RESERVE_S: Final = 0.5
_TIME_MAX_MS: Final = 10**15


async def pull(call: Call, request: pb.PullMessageRequest) -> AsyncIterator[pb.PullMessageResponse]:
    """Answer PullMessage: a status, the messages, and the offset to continue at."""
    group = request.group.name
    check_group_and_topic(group, request.message_queue.topic.name)
    queue = await _queue(call, request.message_queue)
    if request.offset < 0:
        raise Rejected(Code.ILLEGAL_OFFSET, f"offset {request.offset} is not valid; offsets start at 0")
    wanted = MessageSelector.of(*filter_of(request.filter_expression))
    wait_s = min(ms_of(request.long_polling_timeout) / 1000, WAIT_MAX_S, call.remaining_s - _RESERVE_S)
    wait_s = max(0.0, wait_s)
    session = call.upstream.session
    with call.proxy.waiting_receive():
        answered = await call.proxy.unless_draining(
            session.ask(
                RequestCode.PULL_MESSAGE,
                pull_ext(
                    group,
                    queue.topic,
                    queue.queue_id,
                    request.offset,
                    wanted,
                    max_messages=min(max(request.batch_size, 1), _MESSAGES_MAX),
                    max_bytes=PULL_BYTES_MAX,
                    wait_s=wait_s,
                ),
                what=f"pull from {queue.topic}/{queue.queue_id}",
                queue=queue,
                deadline=session.deadline(wait_s + min(PULL_GRACE_S, _RESERVE_S + 1.0)),
            )
        )
    if answered is None:
        yield pb.PullMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "the proxy stops"))
        yield pb.PullMessageResponse(next_offset=request.offset)
        return
    result = pull_result(queue, request.offset, answered, wanted)
    if result.status is PullStatus.OFFSET_ILLEGAL:
        yield pb.PullMessageResponse(
            status=status(
                Code.ILLEGAL_OFFSET,
                f"offset {request.offset} is not in the queue, which has {result.min_offset} to {result.max_offset}",
            )
        )
    else:
        found = to_clients(result.messages, request.message_queue.topic)
        yield pb.PullMessageResponse(status=ok() if found else status(Code.MESSAGE_NOT_FOUND, "no new message"))
        for _, message in found:
            yield pb.PullMessageResponse(message=message)
        call.proxy.counters.received += len(found)
    yield pb.PullMessageResponse(next_offset=result.next_begin_offset)


async def _queue(call: Call, given: pb.MessageQueue) -> MessageQueue:
    """Return the queue that a request names, whose broker is known then.

    Raises:
        Rejected: the topic is not at that broker.
    """
    topic = given.topic.name
    check_name(check_topic, topic, Code.ILLEGAL_TOPIC)
    session = call.upstream.session
    deadline = session.deadline(call.timeout_s)
    name = given.broker.name
    if name:
        await check_broker(session, topic, name, Code.NOT_FOUND, deadline)
    return await session.queue(topic, given.id, name or None, deadline)


async def update_offset(call: Call, request: pb.UpdateOffsetRequest) -> pb.UpdateOffsetResponse:
    """Answer UpdateOffset: the group continues there."""
    group = request.group.name
    check_group_and_topic(group, request.message_queue.topic.name)
    if request.offset < 0:
        raise Rejected(Code.ILLEGAL_OFFSET, f"offset {request.offset} is not valid; offsets start at 0")
    queue = await _queue(call, request.message_queue)
    await call.upstream.offsets.commit(group, queue, request.offset, timeout_s=call.timeout_s)
    return pb.UpdateOffsetResponse(status=ok())


async def get_offset(call: Call, request: pb.GetOffsetRequest) -> pb.GetOffsetResponse:
    """Answer GetOffset: where the group continues."""
    group = request.group.name
    check_group_and_topic(group, request.message_queue.topic.name)
    offset = await call.upstream.offsets.committed(group, await _queue(call, request.message_queue))
    if offset is None:
        raise Rejected(Code.OFFSET_NOT_FOUND, f"group {group!r} has no offset in this queue")
    return pb.GetOffsetResponse(status=ok(), offset=offset)


async def query_offset(call: Call, request: pb.QueryOffsetRequest) -> pb.QueryOffsetResponse:
    """Answer QueryOffset: the bounds of a queue, or the offset of a time."""
    queue = await _queue(call, request.message_queue)
    offsets = call.upstream.offsets
    if request.query_offset_policy == pb.BEGINNING:
        offset = await offsets.min_offset(queue)
    elif request.query_offset_policy == pb.END:
        offset = await offsets.max_offset(queue)
    elif not request.HasField("timestamp"):
        raise Rejected(Code.BAD_REQUEST, "the request has no time")
    elif not 0 <= (time_ms := ms_of(request.timestamp)) <= _TIME_MAX_MS:
        raise Rejected(Code.BAD_REQUEST, f"the time, {time_ms} ms since 1970, is not from 0 to {_TIME_MAX_MS}")
    else:
        offset = await offsets.offset_by_time(queue, time_ms)
    return pb.QueryOffsetResponse(status=ok(), offset=offset)
