"""Records from what RocketMQ's clients send: one message (10, 310), or the units of a batch (320).

The broker adds MSG_REGION, TRACE_ON and CLUSTER to a single message, and UNIQ_KEY if the client set none; messages of a
batch are not changed. (RocketMQ: SendMessageProcessor, MessageExtEncoder.)

`SendRedirects` are the messages that are not stored as they are sent, in the order of RocketMQ
(SendMessageProcessor.sendMessage): a message that a consumer has sent to its retry topic too often becomes a dead
letter; one with TRAN_MSG=true goes to the half queue; one with a delay to a delay queue.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import structlog
from msgspec import Struct

from reput_broker.delay.delayed_record import DelayRedirects, number_of
from reput_broker.observe.counters import UNKNOWN_TOPIC
from reput_broker.remoting.request import Refusal, Request
from reput_broker.send.retry_records import (
    DELAYED_BYTES,
    DeadLetterReason,
    dead_letter,
    fitted_properties,
    reason_when_resent,
)
from reput_broker.store.base.results import Block, PutResult
from reput_broker.store.message_store import MessageStore
from reput_broker.store.message_writer import TOPIC_BYTES_MAX
from reput_broker.tables.topic_access import TopicAccess
from reput_broker.tenure.core import Core
from reput_broker.transactions.half_messages import TransactionTable, half_record
from reput_protocol import properties as names
from reput_protocol.buffers import Buffer
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import ErrorCode, RecordMalformed
from reput_protocol.names import RETRY_PREFIX, dlq_topic, group_of_retry_topic
from reput_protocol.properties import (
    PROPERTIES_BYTES_MAX,
    SENT_PROPERTIES_BYTES_MAX,
    decode_properties,
    encode_properties,
)
from reput_protocol.property_rules import Form, admit, limited_in_batch
from reput_protocol.record.message_id import Host, UniqueIdGenerator
from reput_protocol.record.put_block import BLOCK_BYTES_MAX, BlockCheck, BlockLimits, decode_batch, records_of_batch
from reput_protocol.record.record import Record

log = structlog.get_logger(__name__)

BATCH_MESSAGES_MAX = 32_768
"""Messages in one batch: storing them delays other clients, and the answer names every one."""

_UNUSUAL = limited_in_batch()
"""Properties of messages that must be sent alone, or that are not stored as they are sent."""

_TRANSACTION_BITS = 0xC
_BROKER_BITS = 0xF0  # host kinds and inner batches: set by the broker, never taken from a client

_ids = UniqueIdGenerator(
    socket.inet_aton("127.0.0.1"), os.getpid() & 0xFFFF, 0x52455055, lambda: time.time_ns() // 1_000_000
)


class Redirected(Struct):
    """What is stored of one message."""

    record: Record
    topic: str
    """The topic and the kind under which it is counted."""
    kind: str = "normal"
    must_wait: bool = False
    """Whether its sender waits until it can be read, whatever ack it requested."""
    on_stored: Callable[[], None] | None = None
    """Called as soon as it is in the log."""


Redirect: TypeAlias = Callable[[Record, dict[str, str]], Redirected]
"""Decides what is stored of a message. Consumes the properties."""


class SendParts(Struct):
    """One message to store, or several together."""

    records: list[Record]
    unique_key: str | None
    waits: bool
    """Whether the client waits for the flush (its property WAIT)."""
    topic: str
    """The topic and the kind under which it is counted."""
    kind: str = "normal"
    must_wait: bool = False
    on_stored: Callable[[], None] | None = None

    def block(self, store: MessageStore) -> Block | PutResult:
        """Return the block to put, or the refusal of invalid records."""
        return store.block_of(self.records)


class BatchParts(SendParts):
    """The messages of a batch, stored together."""


class BlockParts(BatchParts, kw_only=True):
    """The messages of a batch as a block of records; `records` is empty."""

    data: bytearray
    check: BlockCheck
    queue_id: int
    born_host: bytes

    def block(self, store: MessageStore) -> Block:
        """Return the block to put."""
        del store
        return Block(self.data, self.topic, self.queue_id, self.check.count, self.born_host, self.check)


def admitted_properties(header: SendMessageHeader) -> dict[str, str]:
    """Return the properties of a message that is sent alone, without those that only the broker sets.

    Raises:
        Refusal: they are too long.
    """
    text = header.properties.encode()
    is_returned = header.topic.startswith(RETRY_PREFIX)  # with what the broker has added before
    check_size(text, PROPERTIES_BYTES_MAX if is_returned else SENT_PROPERTIES_BYTES_MAX)
    found = decode_properties(text)
    admit(found, Form.RETURNED if is_returned else Form.ALONE)
    return found


def record_parts(
    header: SendMessageHeader, found: dict[str, str], body: Buffer, born_host: Host, cluster: str, redirect: Redirect
) -> SendParts:
    """Return the record of a message that is sent alone, which goes through `redirect`.

    Args:
        found: its properties; consumed.

    Raises:
        Refusal: it is not supported. Nothing was stored.
    """
    if header.sys_flag & _TRANSACTION_BITS and found.get(names.TRAN_MSG) != "true":
        raise Refusal(
            ErrorCode.MALFORMED,
            "the transaction bits of sysFlag are the broker's to set; a half message has the property TRAN_MSG=true",
        )
    unique_key = found.get(names.UNIQ_KEY)
    if unique_key is None:
        unique_key = found[names.UNIQ_KEY] = _ids.next()
    found[names.MSG_REGION] = "DefaultRegion"
    found[names.TRACE_ON] = "true"
    found[names.CLUSTER] = cluster
    waits = found.get(names.WAIT) != "false"
    text = fitted_properties(found, header.topic, spare_bytes=DELAYED_BYTES)
    record = record_of(header, bytes(body), text, header.flag, born_host)
    stored = redirect(record, found)
    return SendParts([stored.record], unique_key, waits, stored.topic, stored.kind, stored.must_wait, stored.on_stored)


def batch_parts(header: SendMessageHeader, body: Buffer, born_host: Host, limits: BlockLimits | None) -> BatchParts:
    """Return the records of a batch.

    Args:
        limits: of messages in a block; None if blocks cannot be used (`store.record_crc`).

    Raises:
        Refusal: it is not supported, or exceeds a limit. Nothing was stored.
    """
    if header.sys_flag & _TRANSACTION_BITS:
        raise _half_in_batch()
    if len(body) > BLOCK_BYTES_MAX:
        raise Refusal(
            ErrorCode.TOO_LARGE,
            f"a batch of {len(body)} bytes, but at most {BLOCK_BYTES_MAX} are accepted; send several smaller ones",
        )
    if header.topic.startswith(RETRY_PREFIX):
        raise Refusal(ErrorCode.MALFORMED, "a batch cannot go to a retry topic; send its messages one by one")
    outer = _admitted_in_batch(header.properties.encode())
    unique_key, waits = outer.get(names.UNIQ_KEY), outer.get(names.WAIT) != "false"
    made = None if limits is None else _block_of(header, bytes(body), limits)
    if made is not None:
        data, check = made
        return BlockParts(
            [],
            unique_key,
            waits,
            header.topic,
            data=data,
            check=check,
            queue_id=header.queue_id,
            born_host=born_host.packed(),
        )
    try:
        items = decode_batch(body, BATCH_MESSAGES_MAX)
    except RecordMalformed as error:
        raise Refusal(ErrorCode.MALFORMED, f"{error}; nothing of the batch was stored") from error
    if not items:
        raise Refusal(ErrorCode.MALFORMED, "the batch is empty; send at least one message")
    records = []
    for item in items:
        check_size(item.properties)
        text = encode_properties(_admitted_in_batch(item.properties))
        records.append(record_of(header, item.body, text, item.flag, born_host))
    return BatchParts(records, unique_key, waits, header.topic)


def _block_of(header: SendMessageHeader, batch: bytes, limits: BlockLimits) -> tuple[bytearray, BlockCheck] | None:
    """Return the records of a valid batch without unusual messages, or None."""
    if header.reconsume_times or len(header.topic.encode()) > TOPIC_BYTES_MAX or not batch:
        return None
    return records_of_batch(
        batch,
        topic=header.topic,
        queue_id=header.queue_id,
        sys_flag=header.sys_flag & ~_BROKER_BITS,
        born_timestamp_ms=header.born_timestamp,
        count_max=BATCH_MESSAGES_MAX,
        limits=limits,
        unusual=_UNUSUAL,
    )


def check_size(text: bytes, size_max: int = SENT_PROPERTIES_BYTES_MAX) -> None:
    """Refuse properties that are too long."""
    if len(text) > size_max:
        raise Refusal(
            ErrorCode.TOO_LARGE,
            f"the message is illegal: properties of {len(text)} bytes, but at most {size_max} are accepted, which "
            "leaves room for what the broker adds; shorten them",
        )


def record_of(header: SendMessageHeader, body: bytes, text: bytes, flag: int, born_host: Host) -> Record:
    """Return the record of one message with this properties text."""
    return Record(
        header.topic,
        body,
        queue_id=header.queue_id,
        flag=flag,
        sys_flag=header.sys_flag & ~_BROKER_BITS,
        born_timestamp_ms=header.born_timestamp,
        born_host=born_host,
        reconsume_times=header.reconsume_times or 0,
        properties=text,
    )


def _admitted_in_batch(text: bytes) -> dict[str, str]:
    """Return the properties of a message of a batch, without those that only the broker sets."""
    found = decode_properties(text)
    refused = admit(found, Form.BATCH)
    if refused == names.TRAN_MSG:
        raise _half_in_batch()
    if refused is not None:
        raise Refusal(ErrorCode.MALFORMED, "a message of a batch cannot be delayed; send it alone")
    return found


def _half_in_batch() -> Refusal:
    return Refusal(ErrorCode.MALFORMED, "a message of a batch cannot begin a transaction; send it alone")


_SAYS_MAX_RECONSUME_TIMES = 121
"""The RocketMQ version (V3_4_9) from which a client's own limit counts."""


class DeadLetter(NamedTuple):
    """A message sent to a retry topic is a dead letter: its group, the reason, and whether its topic exists."""

    group: str
    reason: DeadLetterReason
    has_topic: bool


@dataclass(eq=False, repr=False)
class SendRedirects:
    """Decides for each message that is sent alone."""

    _core: Core
    _transactions: TransactionTable
    _delay_redirects: DelayRedirects

    def dead_letter_of(self, request: Request, header: SendMessageHeader) -> DeadLetter | None:
        """Tell whether a message that is sent to a retry topic is a dead letter.

        Raises:
            Refusal: NO_GROUP.
        """
        group = group_of_retry_topic(header.topic)
        if group is None or header.batch:
            return None
        config = self._core.group_access.find_or_create(group)
        limit = max_reconsume_times(request, header.max_reconsume_times, config.retry_max_times)
        reason = reason_when_resent(
            header.reconsume_times or 0, limit, consumes_in_order=self._core.groups.locks.has_locks(group)
        )
        if reason is None:
            return None
        return DeadLetter(group, reason, self._core.topic_access.known(dlq_topic(group)) is not None)

    def redirect(self, record: Record, properties: dict[str, str], dead: DeadLetter | None) -> Redirected:
        """Return what is stored of a message; consumes its properties.

        Raises:
            Refusal: it may not be sent like that.
        """
        if dead is not None:
            record = dead_letter(record, dead.group, properties, dead.reason)
            origin = properties.get(names.RETRY_TOPIC, "")
            noted = partial(note_dead_letter, self._core, dead.group, origin, record)
            return Redirected(record, record.topic, on_stored=noted)
        if _is_half(record, properties):
            return self._half(record, properties)
        topic = record.topic
        delayed = self._delay_redirects.redirect(record, properties)
        return Redirected(record, topic) if delayed is None else Redirected(delayed, topic, "delayed")

    def _half(self, record: Record, properties: dict[str, str]) -> Redirected:
        if self._core.config.transactions.reject:
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                "this broker takes no half messages (transactions.reject); send the message without a transaction",
            )
        topic = record.topic
        # Its delay starts at the commit; an invalid one is refused now.
        self._delay_redirects.redirect(record, dict(properties))
        record = half_record(record, properties)
        check_size(record.properties)
        # The request that ends the transaction names the half record, so it must be readable before the answer.
        opened = partial(self._transactions.opened, topic)
        return Redirected(record, record.topic, "transactional", must_wait=True, on_stored=opened)


def counted_topic(topics: TopicAccess, topic: str) -> str:
    """Return the topic under which a message is counted, given its original topic.

    The original topic comes from the sender and may not exist.
    """
    return UNKNOWN_TOPIC if topics.known(topic) is None else topic


def note_dead_letter(core: Core, group: str, topic: str, record: Record, *, messages: int = 1) -> None:
    """Count and log a dead letter that has been stored, or the first of several.

    Args:
        topic: its original topic, as it claims.
        messages: how many there are.
    """
    topic = counted_topic(core.topic_access, topic)
    core.counters.retry.dead_letters[group, topic] += messages
    log.warning(
        "dead_letter",
        group=group,
        topic=topic,
        message_id=record.unique_key,
        attempts=record.reconsume_times,
        messages=messages,
        hint=f"reput dlq peek {group}",
    )


def max_reconsume_times(request: Request, asked: int | None, of_group: int) -> int:
    """Return how often a message may be redelivered: by its consumer's limit, else by the settings of the group."""
    is_heeded = request.is_native or request.header.version >= _SAYS_MAX_RECONSUME_TIMES
    return asked if asked is not None and is_heeded else of_group


def _is_half(record: Record, properties: dict[str, str]) -> bool:
    """Tell whether a message begins a transaction. A committed one that an old client sends back has TRAN_MSG too, and
    a delay level."""
    if properties.get(names.TRAN_MSG, "").lower() != "true":
        return False
    return record.reconsume_times <= 0 or (number_of(properties.get(names.DELAY)) or 0) <= 0
