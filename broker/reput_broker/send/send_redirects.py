"""Messages that are not stored as they are sent: dead letters, half messages, delayed messages.

The order is that of RocketMQ (SendMessageProcessor.sendMessage): a message that a consumer has sent to its retry topic
too often becomes a dead letter; one with TRAN_MSG=true goes to the half queue; one with a delay to a delay queue.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import structlog

from reput_broker.delay.delayed_record import DelayRedirects, number_of
from reput_broker.observe.counters import UNKNOWN_TOPIC
from reput_broker.remoting.request import Refusal, Request
from reput_broker.send.retry_records import DeadLetterReason, dead_letter, reason_when_resent
from reput_broker.send.send_records import Redirected, check_size
from reput_broker.tables.topic_access import TopicAccess
from reput_broker.tenure.core import Core
from reput_broker.transactions.half_messages import TransactionTable, half_record
from reput_protocol import properties as names
from reput_protocol.commands.send import SendMessageHeader
from reput_protocol.errors import ErrorCode
from reput_protocol.names import dlq_topic, group_of_retry_topic
from reput_protocol.record.record import Record

log = structlog.get_logger(__name__)

_SAYS_MAX_RECONSUME_TIMES = 121
"""The RocketMQ version (V3_4_9) from which a client's own limit counts."""


class DeadLetter(NamedTuple):
    """A message sent to a retry topic is a dead letter: its group, the reason, and whether its topic exists."""

    group: str
    reason: DeadLetterReason
    has_topic: bool


class SendRedirects:
    """Decides for each message that is sent alone."""

    def __init__(self, core: Core, transactions: TransactionTable, delay_redirects: DelayRedirects) -> None:
        self._core = core
        self._transactions = transactions
        self._delay_redirects = delay_redirects

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
