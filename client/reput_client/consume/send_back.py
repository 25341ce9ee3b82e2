"""Giving back a message that could not be handled (docs/retry.md).

The client sends request 36, again if there is no answer. If the broker refuses or cannot be reached, the message is
sent to the group's retry topic (RocketMQ: DefaultMQPushConsumerImpl.sendMessageBack). All these requests have the same
id, by which the broker takes the message back once.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import uuid4

from msgspec import structs

from reput_client.errors import RequestTimeout
from reput_client.received import ReceivedMessage
from reput_client.transport.session import Session
from reput_protocol import properties as names
from reput_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.names import CLIENT_INNER_PRODUCER_GROUP, retry_topic
from reput_protocol.properties import PROPERTIES_BYTES_MAX, encode_properties
from reput_protocol.property_rules import is_reserved
from reput_protocol.record.delays import fix_expiry
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType

DEAD_LETTER: Final = -1
"""The delay level for an immediate dead letter."""
_FIRST_LEVEL: Final = 3
_ANY_QUEUE: Final = -1
_REASON_CHARACTERS_MAX: Final = 500
_DROPPED: Final = frozenset(
    {names.CRC32, names.MIN_OFFSET, names.MAX_OFFSET, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES}
)

log = logging.getLogger("reput_client")


async def send_back(
    session: Session,
    message: ReceivedMessage,
    *,
    group: str,
    queue: MessageQueue,
    delay_level: int = 0,
    max_reconsume_times: int | None = None,
    reason: str | None = None,
) -> None:
    """Give a message back; on return the broker has it for redelivery or as a dead letter.

    Args:
        queue: where the message was pulled from; for a redelivered message, a queue of the retry topic.
        delay_level: 1 to 18 for RocketMQ's delays; 0 for a longer one each time: 10 s, 30 s, 1 min, ...; `DEAD_LETTER`
            for no further attempt.
        max_reconsume_times: how often it may be redelivered before it is a dead letter; None: the group's setting at
            the broker, by default 16.
        reason: shown with retries and dead letters.

    Raises:
        ReputError: both ways failed, or no answer came. The caller keeps the message; repeating is safe, since the
            broker takes it once.
        DamagedMessage: it is unknown which message it is.
    """
    if reason is not None:
        reason = reason[:_REASON_CHARACTERS_MAX]
    was_asked = message.send_back_id is not None
    message.send_back_id = request_id = message.send_back_id or uuid4().hex
    header = SendBackHeader(
        message.physical_offset,
        group,
        delay_level,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        max_reconsume_times=max_reconsume_times,
        reason=reason,
        send_back_id=request_id,
        is_repeated=was_asked or None,
    )
    try:
        await _ask(session, message, queue, header)
    except ReputError as error:
        session.check_open()
        if isinstance(error, RequestTimeout):
            raise  # the broker may have it, and will recognise a repeated request
        if is_unsupported(error):
            raise  # such a broker does not serve the retry topic either
        log.warning("%r not sent back, it is sent to the retry topic instead: %s", message, error)
        resend = resend_header(group, message, delay_level, max_reconsume_times, reason)
        await session.ask_ok(
            RequestCode.SEND_MESSAGE_V2,
            resend.to_ext_v2(HeaderType.MSGPACK),
            what=f"resending {message!r}",
            queue=queue,
            body=message.raw_body,
        )


async def _ask(session: Session, message: ReceivedMessage, queue: MessageQueue, header: SendBackHeader) -> None:
    """Send request 36 until it is answered, for at most the time of two requests."""
    repeated = structs.replace(header, is_repeated=True).to_ext()
    ext = header.to_ext()
    for tries_left in (1, 0):
        try:
            await session.ask_ok(
                RequestCode.CONSUMER_SEND_MSG_BACK,
                ext,
                what=f"sending back {message!r}",
                queue=queue,
                ext_repeated=repeated,
            )
        except RequestTimeout as error:
            session.check_open()
            if not tries_left:
                raise
            log.warning("%r perhaps not sent back, the broker is asked again: %s", message, error)
            ext = repeated
        else:
            return


def resend_header(
    group: str, message: ReceivedMessage, delay_level: int, max_reconsume_times: int | None, reason: str | None
) -> SendMessageHeader:
    """Return the header of the send that replaces 36 (RocketMQ: sendMessageBackAsNormalMessage)."""
    properties = {
        name: value for name, value in message.properties.items() if name not in _DROPPED and not is_reserved(name)
    }
    properties.setdefault(names.RETRY_TOPIC, message.topic)
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_message_id)
    fix_expiry(properties, message.store_timestamp_ms)
    properties.pop(names.SEND_BACK_ID, None)
    if message.send_back_id is not None:
        properties[names.SEND_BACK_ID] = f"{message.physical_offset}-{message.send_back_id}"
    if delay_level >= 0:
        properties[names.DELAY] = str(delay_level or _FIRST_LEVEL + message.reconsume_times)
    else:
        max_reconsume_times = message.reconsume_times  # exceeded now, so it becomes a dead letter
    if reason:
        properties[names.RETRY_REASON] = "".join(c if c.isprintable() else " " for c in reason)
        if len(encode_properties(properties)) > PROPERTIES_BYTES_MAX:
            del properties[names.RETRY_REASON]
    return SendMessageHeader(
        producer_group=CLIENT_INNER_PRODUCER_GROUP,
        topic=retry_topic(group),
        queue_id=_ANY_QUEUE,
        sys_flag=message.sys_flag & MessageSysFlag.PUT_MASK,
        born_timestamp=message.born_timestamp_ms,
        flag=message.flag,
        properties=encode_properties(properties).decode("utf-8", "replace"),
        reconsume_times=message.reconsume_times + 1,
        max_reconsume_times=max_reconsume_times,
    )


def is_unsupported(error: ReputError) -> bool:
    """Whether the broker does not know messages that are given back."""
    return isinstance(error, BrokerError) and error.response_code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def reason_of(error: BaseException) -> str:
    """Return a handler's exception in one line."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
