"""SendMessage, EndTransaction and RecallMessage."""

from __future__ import annotations

from collections.abc import Sequence

from reput_client.errors import PartlySent
from reput_client.produce.contents import contents_of
from reput_client.produce.queue_selector import ordered
from reput_client.receipts import SendReceipt
from reput_protocol.codes import RequestCode
from reput_protocol.commands.delay import RecallHandle, RecallMessageHeader, RecallMessageResult
from reput_protocol.errors import ErrorCode, MessageRefused, ReputError
from reput_protocol.names import check_send_topic
from reput_protocol.record.message import Message, MessageQueue
from reput_protocol.wire.header import HeaderType
from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import kind_of, to_send
from reput_proxy.proxy import Call
from reput_proxy.rejections import (
    ID_BYTES_MAX,
    Code,
    Rejected,
    check_broker,
    check_name,
    check_size,
    ok,
    status_of,
    status_of_all,
)
from reput_proxy.routes import accepted_types


async def send(call: Call, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
    """Answer SendMessage: each message has a result of its own."""
    given = request.messages
    if not given:
        raise Rejected(Code.MESSAGE_CORRUPTED, "the request has no message")
    topic = given[0].topic.name
    if any(message.topic.name != topic for message in given):
        raise Rejected(Code.MESSAGE_CORRUPTED, "the messages of a request are of one topic")
    messages = [to_send(message, call.trace) for message in given]
    kinds = {kind_of(message) for message in given}
    accepted = await accepted_types(call, topic)
    for kind in kinds:
        if kind not in accepted:
            taken = ", ".join(map(pb.MessageType.Name, accepted))
            raise Rejected(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic!r} takes messages of the type {taken}, not {pb.MessageType.Name(kind)}",
            )
    if len(messages) == 1:
        entries = [await _send_one(call, given[0], messages[0])]
    elif pb.TRANSACTION in kinds:
        raise Rejected(Code.BAD_REQUEST, "a message of a transaction is sent alone")
    elif kinds in ({pb.NORMAL}, {pb.FIFO}) and len({each.system_properties.message_group for each in given}) == 1:
        entries = await _send_batch(call, given[0].system_properties.message_group or None, messages)
    else:
        entries = [await _entry(call, each, message) for each, message in zip(given, messages, strict=True)]
    call.proxy.counters.sent += sum(entry.status.code == Code.OK for entry in entries)
    return pb.SendMessageResponse(status=status_of_all(entry.status for entry in entries), entries=entries)


async def _entry(call: Call, given: pb.Message, message: Message) -> pb.SendResultEntry:
    """Send one of several messages; its error is its result."""
    try:
        return await _send_one(call, given, message)
    except (ReputError, Rejected) as error:
        return pb.SendResultEntry(status=status_of(error))


async def _send_one(call: Call, given: pb.Message, message: Message) -> pb.SendResultEntry:
    upstream, key = call.upstream, given.system_properties.message_group or None
    if given.system_properties.message_type == pb.TRANSACTION:
        return await upstream.transactions.send(given, message, key, call.timeout_s)
    if message.delay is not None:
        return await _send_alone(call, message, key)
    with upstream.sends.sending():
        receipt = await upstream.producer.send(message, ordering_key=key, timeout_s=call.timeout_s)
    return result_entry(receipt)


def result_entry(receipt: SendReceipt, recall_handle: str = "") -> pb.SendResultEntry:
    """Return the result of a stored message."""
    return pb.SendResultEntry(
        status=ok(), message_id=receipt.message_id, offset=receipt.queue_offset, recall_handle=recall_handle
    )


async def _send_batch(call: Call, key: str | None, messages: Sequence[Message]) -> list[pb.SendResultEntry]:
    try:
        receipts: Sequence[SendReceipt | None] = await call.upstream.producer.send_batch(
            messages, ordering_key=key, timeout_s=call.timeout_s
        )
        failure = None
    except PartlySent as error:
        receipts, failure = error.receipts, status_of(next(iter(error.errors.values())))
    return [pb.SendResultEntry(status=failure) if receipt is None else result_entry(receipt) for receipt in receipts]


async def _send_alone(call: Call, message: Message, key: str | None) -> pb.SendResultEntry:
    """Send a message with a delay or a priority; the broker's answer has what a delayed one is recalled by."""
    producer = call.upstream.producer
    [contents] = contents_of([ordered(message, key)], producer._limits(1))
    try:
        block = await producer._deliver(contents, producer._terms_of_sends(None, call.timeout_s), key)
    except MessageRefused as error:
        if error.error is not ErrorCode.MALFORMED or not message.is_delayed:
            raise
        # All else that could be wrong with it was checked before.
        raise Rejected(Code.ILLEGAL_DELIVERY_TIME, str(error)) from None
    return result_entry(block.outcome(0), block.recall_handle)


async def end_transaction(call: Call, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
    """Answer EndTransaction: a message of a transaction is delivered, or dropped."""
    await call.upstream.transactions.end(request, call.timeout_s)
    return pb.EndTransactionResponse(status=ok())


async def recall(call: Call, request: pb.RecallMessageRequest) -> pb.RecallMessageResponse:
    """Answer RecallMessage: a delayed message is not delivered."""
    topic = request.topic.name
    check_name(check_send_topic, topic, Code.ILLEGAL_TOPIC)
    check_size("the recall handle", request.recall_handle, ID_BYTES_MAX, Code.BAD_REQUEST)
    try:
        handle = RecallHandle.parse(request.recall_handle)
    except ValueError as error:
        raise Rejected(Code.BAD_REQUEST, str(error)) from None
    session = call.upstream.session
    deadline = session.deadline(call.timeout_s)
    await check_broker(session, topic, handle.broker_name, Code.NOT_FOUND, deadline)
    answered = await session.ask_ok(
        RequestCode.RECALL_MESSAGE,
        RecallMessageHeader(topic, request.recall_handle).to_ext(HeaderType.MSGPACK),
        what=f"recall of {handle.unique_id}",
        queue=MessageQueue(topic, handle.broker_name, 0),
        deadline=deadline,
    )
    result = RecallMessageResult.from_ext(answered.answer.ext)
    return pb.RecallMessageResponse(status=ok(), message_id=result.msg_id)
