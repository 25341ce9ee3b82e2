"""Puts on the wire: one frame out, and what its answer, silence or failure means.

Records are sent in blocks, as PutMessage. A message of which the broker makes another record, such as a delayed one, is
sent alone as RocketMQ's 310.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from reput_client.errors import AckNotReached, BrokerNotFound, ConnectFailed, NotABroker, SendOutcomeUnknown
from reput_client.receipts import BlockReceipts, SendReceipt
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.session import Session, wall_clock_ms
from reput_protocol.codes import AckLevel, Dedup, RequestCode, ResponseCode
from reput_protocol.commands.send import PutMessageHeader, PutMessageResult, SendMessageHeader, SendMessageResult
from reput_protocol.errors import (
    BrokerError,
    ErrorCode,
    HeaderFieldError,
    InvalidMessage,
    NotMaster,
    PermissionDenied,
    ReputError,
    StoreUnavailable,
    TopicNotFound,
    error_from_response,
)
from reput_protocol.properties import SENT_PROPERTIES_BYTES_MAX
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.put_block import BLOCK_BYTES_MAX
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType, Value

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
_REFUSED_THERE: Final = (StoreUnavailable, PermissionDenied, TopicNotFound)
"""Refusals that last, perhaps of this broker only."""


class Putter:
    """The headers of the frames of a producer of `group`.

    Args:
        deduplicate: frames that may be sent again tell the broker so, and whether they may be stored already.
        knows_ids: a message whose id the application has set may be stored already, by any producer.
        within_s: how long the broker recognises a message, if that is longer than its own window.
        creates_topics: whether the broker may create the topics of messages.
    """

    def __init__(
        self,
        group: str,
        *,
        deduplicate: bool,
        knows_ids: bool,
        within_s: float | None = None,
        creates_topics: bool = True,
    ) -> None:
        self._group = group
        self._creates = None if creates_topics else False
        self._within_ms = None if within_s is None else math.ceil(within_s * 1000)
        self.deduplicate = deduplicate
        self.knows_ids = knows_ids
        self._templates: dict[tuple[MessageQueue, int, AckLevel, Dedup | None, int], RequestTemplate] = {}

    def template(
        self, queue: MessageQueue, count: int, ack: AckLevel, dedup: Dedup | None, *, oneway: bool = False
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
            header = PutMessageHeader(
                queue.topic, queue.queue_id, count, ack, dedup, self._within_ms if dedup else None, self._creates
            )
            ext = header.to_ext(HeaderType.MSGPACK)
            template = RequestTemplate(RequestCode.PUT_MESSAGE, ext, flag=flag)
            self._templates[key] = template
        return template

    def single_template(
        self,
        queue: MessageQueue,
        body_size: int,
        text: bytes,
        ack: AckLevel,
        *,
        flag: int,
        sys_flag: int,
        dedup: Dedup | None,
        oneway: bool,
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
            dedup_within=self._within_ms if dedup else None,
            create_topic=self._creates,
        )
        ext = header.to_ext_v2(HeaderType.MSGPACK)
        return RequestTemplate(RequestCode.SEND_MESSAGE_V2, ext, flag=ONEWAY_FLAG if oneway else 0)


def outcome_unknown(queue: MessageQueue, unique_ids: Sequence[str | None], reason: str) -> SendOutcomeUnknown:
    """Return the error for messages whose frame left and was not answered."""
    return SendOutcomeUnknown(queue.topic, queue.queue_id, [i for i in unique_ids if i is not None], reason)


MaybeStored: TypeAlias = SendOutcomeUnknown | AckNotReached
"""The error of an attempt that may have stored the messages, or has without reaching the ack level."""


def is_away(error: ReputError) -> bool:
    """Whether a send failed because its broker has no master that can be reached: nothing was stored."""
    return isinstance(error, ConnectFailed | BrokerNotFound | NotMaster) and not isinstance(error, NotABroker)


def lacks_replica(error: ReputError, session: Session, broker_name: str) -> bool:
    """Whether a master waits for its slaves, as for a moment after a failover; nothing was stored.

    Its slaves are in the route, or the application has given their addresses.
    """
    is_refused = isinstance(error, BrokerError) and error.error is ErrorCode.NO_REPLICA
    return is_refused and bool(session.brokers.slaves.get(broker_name) or session.home.others)


def is_not_taken(error: ReputError) -> bool:
    """Whether a broker has certainly not stored a message that another broker may take (protocol.md, Errors)."""
    if isinstance(error, BrokerError):
        return error.retryable or isinstance(error, _REFUSED_THERE)
    return is_away(error)


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


def receipts_of(
    answer: Header, topic: str, positions: Sequence[int], unique_ids: Sequence[str | None], asked: AckLevel
) -> Sequence[SendReceipt]:
    """Return the receipts of an answered put, 310 or, from RocketMQ's brokers, 320.

    Args:
        positions: where each record starts in the block, unless the answer says so.
        unique_ids: of each message.
        asked: the ack level.

    Raises:
        AckNotReached: it was stored, but not at the asked ack level.
        BrokerError: it was refused.
        HeaderFieldError: the answer lacks what a receipt needs.
    """
    ext = answer.ext
    if answer.code not in _STORED:
        raise error_from_response(answer.code, answer.remark, ext)
    if "msgId" in ext:
        result, positions = _sent(ext, positions)
    else:
        result = PutMessageResult.from_ext(ext)
    receipts = BlockReceipts(topic, result, positions, unique_ids)
    if answer.code != _SUCCESS:
        raise AckNotReached(asked, receipts, answer.code, answer.remark)
    return receipts


def _sent(ext: Mapping[str, Value], positions: Sequence[int]) -> tuple[PutMessageResult, Sequence[int]]:
    """Return where a 310 or 320 was stored, and where each record starts there: a 320 has all offset ids."""
    sent = SendMessageResult.from_ext(ext)
    if sent.ack is None or sent.store_timestamp is None:
        raise HeaderFieldError("ack" if sent.ack is None else "storeTimestamp", "is missing")
    try:
        (host, first), *others = map(decode_offset_message_id, sent.msg_id.split(","))
    except InvalidMessage:
        raise HeaderFieldError("msgId", "is not an offset message id") from None
    if others:
        positions = [0, *(offset - first for _, offset in others)]
    stored = (sent.queue_id, sent.queue_offset, first, sent.store_timestamp, str(host), sent.ack)
    return PutMessageResult(*stored), positions


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
