"""Puts on the wire: one frame out, and what its answer, silence or failure means.

Records are sent in blocks, as PutMessage. A message of which the broker makes another record, such as a delayed one, is
sent alone as RocketMQ's 310.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from reput_client.errors import (
    AckNotReached,
    ClientClosed,
    ConnectionLost,
    RequestTimeout,
    SendOutcomeUnknown,
)
from reput_client.produce.receipts import SendReceipt
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel, Dedup, RequestCode, ResponseCode
from reput_protocol.commands.send import (
    PutMessageHeader,
    PutMessageResult,
    SendMessageHeader,
    SendMessageResult,
)
from reput_protocol.errors import (
    BrokerError,
    ErrorCode,
    HeaderFieldError,
    InvalidMessage,
    ReputError,
    error_from_response,
)
from reput_protocol.properties import SENT_PROPERTIES_BYTES_MAX
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.put_block import BLOCK_BYTES_MAX
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import ONEWAY_FLAG, HeaderType

_TEMPLATES_MAX: Final = 4096
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS.value,
        ResponseCode.FLUSH_DISK_TIMEOUT.value,
        ResponseCode.FLUSH_SLAVE_TIMEOUT.value,
        ResponseCode.SLAVE_NOT_AVAILABLE.value,
    }
)
_SUCCESS: Final = ResponseCode.SUCCESS.value
_new_tuple = tuple.__new__


class Putter:
    """Sends blocks of records, and messages as 310, for a producer of `group`.

    Args:
        deduplicate: frames that may be sent again tell the broker so, and whether they may be stored already.
        knows_ids: a message whose id the application has set may be stored already, by any producer.
    """

    def __init__(self, session: Session, group: str, *, deduplicate: bool, knows_ids: bool) -> None:
        self._session = session
        self._group = group
        self.deduplicate = deduplicate
        self.knows_ids = knows_ids
        self._templates: dict[tuple[MessageQueue, int, AckLevel, Dedup | None, int], RequestTemplate] = {}

    def template(
        self,
        queue: MessageQueue,
        count: int,
        ack: AckLevel,
        dedup: Dedup | None,
        *,
        oneway: bool = False,
    ) -> RequestTemplate:
        """Return the encoded header of a PutMessage; there are few different ones, so they are cached.

        `oneway`: it has no answer.
        """
        flag = ONEWAY_FLAG if oneway else 0
        key = (queue, count, ack, dedup, flag)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= _TEMPLATES_MAX:
                self._templates.clear()
            header = PutMessageHeader(queue.topic, queue.queue_id, count, ack, dedup)
            ext = header.to_ext(HeaderType.MSGPACK)
            template = RequestTemplate(RequestCode.PUT_MESSAGE, ext, flag=flag)
            self._templates[key] = template
        return template

    def dedup(self, may_be_stored: bool, *, repeats: bool) -> Dedup | None:
        """Return whether the broker checks for the put or only remembers it.

        Args:
            may_be_stored: it was sent before, or the application chose the ids of its messages.
            repeats: it may be sent again.
        """
        if not self.deduplicate:
            return None
        if may_be_stored:
            return Dedup.CHECK
        return Dedup.MARK if repeats else None

    def single_template(
        self,
        queue: MessageQueue,
        body_size: int,
        text: bytes,
        ack: AckLevel,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        dedup: Dedup | None = None,
        oneway: bool = False,
    ) -> RequestTemplate:
        """Return the encoded header of a 310, whose body is the message's.

        Args:
            text: the encoded properties.
            flag: the application's.
            sys_flag: bits of `MessageSysFlag`.

        Raises:
            InvalidMessage: larger than a block may be.
        """
        check_single(queue.topic, body_size, len(text))
        header = SendMessageHeader(
            producer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            sys_flag=sys_flag,
            born_timestamp=wall_clock_ms(),
            flag=flag,
            properties=text.decode("utf-8", "replace"),
            ack=ack,
            dedup=dedup,
        )
        ext = header.to_ext_v2(HeaderType.MSGPACK)
        return RequestTemplate(RequestCode.SEND_MESSAGE_V2, ext, flag=ONEWAY_FLAG if oneway else 0)

    async def put(
        self,
        queue: MessageQueue,
        template: RequestTemplate,
        body: Buffer,
        deadline: float,
        unique_ids: Sequence[str | None],
        *,
        patient: bool = True,
    ) -> Call:
        """Send one frame with the messages of `unique_ids`; return its answered call, whatever the answer.

        A frame that cannot have left is sent on the next connection; one that may have left is never repeated. Not
        `patient`: connecting is tried once.

        Raises:
            SendOutcomeUnknown: the frame left and no answer came.
            RequestTimeout, ConnectFailed, ClientClosed: it did not leave.
        """
        session = self._session
        started_at = session.runtime.now()
        while True:
            connection = session.known_connection(queue)
            if connection is None or not connection.usable():
                connection = await session.open_for(queue, deadline, patient=patient)
            waiter = Waiter()
            call = connection.start_template(template, waiter, body)
            withdrawn = False
            try:
                is_done = await session.pump.wait(waiter, deadline)
            except ClientClosed as closed:
                # Closed by an interrupt, perhaps after part of the frame had left.
                raise outcome_unknown(queue, unique_ids, str(closed)) from closed
            finally:
                if not call.done:
                    withdrawn = connection.abandon(call)
            what, waited_s = f"send to {queue.topic}/{queue.queue_id}", deadline - started_at
            if not is_done:
                connection.doubt(started_at)
                if withdrawn:
                    raise RequestTimeout(what, waited_s)
                raise outcome_unknown(queue, unique_ids, f"no answer within {waited_s:.2g} s")
            if call.error is None:
                session.routes.forget_template(queue.topic)
                return call
            if call.sent:
                raise outcome_unknown(queue, unique_ids, str(call.error)) from call.error
            if not isinstance(call.error, ConnectionLost):
                raise call.error
            if session.runtime.now() >= deadline:
                raise RequestTimeout(what, waited_s, call.error) from call.error


def outcome_unknown(queue: MessageQueue, unique_ids: Sequence[str | None], reason: str) -> SendOutcomeUnknown:
    """Return the error for messages whose frame left and was not answered."""
    return SendOutcomeUnknown(queue.topic, queue.queue_id, [i for i in unique_ids if i is not None], reason)


MaybeStored: TypeAlias = SendOutcomeUnknown | AckNotReached
"""The error of an attempt that may have stored the messages, or has without reaching the ack level."""


def unknown_after(
    error: ReputError, unknown: MaybeStored | None, *, is_last: bool, retries: int | None, deduplicates: bool
) -> MaybeStored | None:
    """Return, for a send to be repeated after `error`, the last attempt that may be stored, or None.

    What is stored without reaching the ack level is repeated only if the broker deduplicates, and so is, if the
    application has not asked for a number of `retries`, what may be stored. Without such a number, a full disk is
    reported at once: it may stay full for long.

    Raises:
        SendOutcomeUnknown, AckNotReached: it is not repeated, and this or an earlier attempt may be stored.
        ReputError: `error`; it is not repeated, and no attempt can be stored.
    """
    if isinstance(error, MaybeStored):
        unknown = error
    match error:
        case SendOutcomeUnknown():
            repeatable = deduplicates or retries is not None
        case AckNotReached():
            repeatable = deduplicates
        case BrokerError():
            repeatable = error.retryable and (retries is not None or error.error is not ErrorCode.DISK_FULL)
        case _:
            repeatable = False
    if repeatable and not is_last:
        return unknown
    if unknown is None or unknown is error:
        raise error
    raise unknown from error


def result_of(call: Call) -> PutMessageResult:
    """Return where an answered put or 310 was stored, whatever the ack level reached.

    Raises:
        BrokerError: it was refused.
        HeaderFieldError: the answer lacks what a receipt needs.
    """
    header = call.answer
    if header.code not in _STORED:
        raise error_from_response(header.code, header.remark, header.ext)
    if "msgId" not in header.ext:
        return PutMessageResult.from_ext(header.ext)
    sent = SendMessageResult.from_ext(header.ext)
    if sent.ack is None or sent.store_timestamp is None:
        raise HeaderFieldError("ack" if sent.ack is None else "storeTimestamp", "is missing")
    try:
        host, physical_offset = decode_offset_message_id(sent.msg_id.partition(",")[0])
    except InvalidMessage:
        raise HeaderFieldError("msgId", "is not an offset message id") from None
    return PutMessageResult(
        sent.queue_id, sent.queue_offset, physical_offset, sent.store_timestamp, str(host), sent.ack
    )


def check_ack(call: Call, asked: AckLevel, receipts: Sequence[SendReceipt]) -> None:
    """Raise `AckNotReached` if a put was stored but not at the asked ack level."""
    header = call.answer
    if header.code != _SUCCESS:
        raise AckNotReached(asked, receipts, header.code, header.remark)


def single_receipt(topic: str, result: PutMessageResult, unique_id: str | None) -> SendReceipt:
    """Return the receipt of a put of one message."""
    # The named tuple's constructor is slower, being Python code.
    return _new_tuple(
        SendReceipt,
        (
            topic,
            result.queue_id,
            result.queue_offset,
            result.physical_offset,
            result.store_timestamp,
            result.store_host,
            result.ack,
            unique_id,
        ),
    )


def check_single(topic: str, body_size: int, text_size: int) -> None:
    """Raise `InvalidMessage` if a message with encoded properties of this size is larger than a block may be."""
    size = record_bytes(body_size, topic, text_size)
    if size > BLOCK_BYTES_MAX or text_size > SENT_PROPERTIES_BYTES_MAX:
        raise too_large(size)


def too_large(size: int) -> InvalidMessage:
    """Return the error for a message of `size` bytes in all."""
    return InvalidMessage(
        f"a message of {size} bytes in all, but at most {BLOCK_BYTES_MAX} fit into a block; make the body smaller"
    )


def positions_in_answer(call: Call) -> Sequence[int]:
    """Return where each record starts in a stored batch, from an answer with all offset ids (320); else nothing."""
    ids = str(call.answer.ext["msgId"]).split(",") if "msgId" in call.answer.ext else ()
    if len(ids) < 2:
        return ()
    offsets = [decode_offset_message_id(each)[1] for each in ids]
    return [offset - offsets[0] for offset in offsets]
