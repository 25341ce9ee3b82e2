"""One pull: its request and result."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain, repeat
from typing import Final, Generic, NamedTuple, overload

from msgspec import Struct

from reput_client.consume.pull_survey import Pulled, SurveyedMessage, survey
from reput_client.received import DamagedRecord, Deliverer, PulledRecords, ReceivedMessage, V
from reput_protocol.buffers import Buffer
from reput_protocol.codes import ExpressionType, PullSysFlag, ResponseCode
from reput_protocol.commands.pull import PullMessageHeader, PullMessageResult
from reput_protocol.errors import RecordMalformed, error_from_response
from reput_protocol.filter.tags import ALL, TagFilter
from reput_protocol.kernel.records import queue_records, scan_records
from reput_protocol.kernel.tables import distinct
from reput_protocol.printable import counted
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.scan import QUEUE_OFFSET, TAG, WIDTH
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import HeaderType, Value

log = logging.getLogger("reput_client")
PULL_MESSAGES_MAX: Final = 1024
PULL_BYTES_MAX: Final = 4 * 1024 * 1024
PULL_GRACE_S: Final = 5.0
"""How much longer than its long poll a pull may take."""


class PullStatus(Enum):
    """The outcome of a pull (RocketMQ: PullStatus). `next_begin_offset` always says where to continue."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


@dataclass(frozen=True, slots=True)
class MessageSelector:
    """A filter: the expression for the broker, and the tags compared here."""

    expression_type: ExpressionType
    expression: str
    tag_filter: TagFilter | None
    """The broker compares only hashes of tags; None for SQL92, which it evaluates completely."""

    is_everything: bool
    """Whether every message matches."""

    @classmethod
    def of(cls, tags: str, sql: str | None) -> MessageSelector:
        """Return the filter for `tags` or `sql`; only the broker parses SQL92.

        Raises:
            FilterSyntaxError: `tags` cannot be parsed.
            TypeError: `tags` is not a str.
            ValueError: both are given.
        """
        if not isinstance(tags, str):
            raise TypeError(f"tags is one str, not {type(tags).__name__}; || joins several: 'paid||shipped'")
        if sql is None:
            return _of_tags(tags)
        if tags != ALL:
            raise ValueError("pass tags= or sql=, not both; in an expression the tag is the property TAGS")
        return cls(ExpressionType.SQL92, sql, None, False)


@lru_cache(maxsize=64)
def _of_tags(tags: str) -> MessageSelector:
    tag_filter = TagFilter.parse(tags)
    return MessageSelector(ExpressionType.TAG, tag_filter.expression, tag_filter, tag_filter.matches_all)


_STATUS_OF_CODE: Final = {
    ResponseCode.SUCCESS.value: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND.value: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY.value: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED.value: PullStatus.OFFSET_ILLEGAL,
}


def pull_ext(
    group: str,
    topic: str,
    queue_id: int,
    queue_offset: int,
    wanted: MessageSelector,
    *,
    max_messages: int,
    max_bytes: int,
    wait_s: float,
    commit_offset: int | None = None,
) -> dict[str, Value]:
    """Return the header fields of a pull, which the broker holds for `wait_s` until messages arrive.

    `commit_offset` is committed too; the answer does not say whether that succeeded.
    """
    sys_flag = PullSysFlag.SUBSCRIPTION
    if commit_offset is not None:
        sys_flag |= PullSysFlag.COMMIT_OFFSET
    if wait_s > 0:
        sys_flag |= PullSysFlag.SUSPEND
    return PullMessageHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=max_messages,
        sys_flag=sys_flag,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=round(wait_s * 1000),
        subscription=wanted.expression,
        expression_type=wanted.expression_type.value,
        max_msg_bytes=max_bytes,
    ).to_ext(HeaderType.MSGPACK)


class PulledMessages(Sequence[ReceivedMessage[V]]):
    """The messages of a pull, each created over the received bytes when it is accessed.

    A broker filters tags by hash; messages that only share the hash of a wanted tag are left out. A message whose
    record is unreadable, is not the requested one or fails its checksum is included, and raises `DamagedMessage` when
    its content is accessed.
    """

    __slots__ = ("_messages", "_records", "_rows")

    def __init__(
        self,
        topic: str,
        records: Buffer,
        tag_filter: TagFilter | None = None,
        broker_name: str = "",
        pulled: Pulled | None = None,
    ) -> None:
        """Read the records and verify their checksums; with `pulled`, also that they are the requested ones.

        Raises:
            RecordMalformed: the records are malformed; with `pulled`, so badly that damaged ones cannot be told apart.
        """
        data = records if type(records) is bytes else bytes(records)
        surveyed: list[SurveyedMessage] | None = None
        table = read_records(data) if pulled is None else read_pull(data, pulled)
        if table is None:
            assert pulled is not None, "without `pulled`, malformed records raise"
            surveyed = _survey(data, pulled)
            table = array("q", chain.from_iterable(message.row for message in surveyed))
        self._records = PulledRecords(topic, broker_name, data, table)
        self._rows: Sequence[int] = range(0, len(table), WIDTH)
        """Where each message's row starts in the table."""
        if tag_filter is not None and not tag_filter.matches_all:
            values, codes = distinct(data, table, TAG, WIDTH)
            is_wanted = [tag_filter.matches_tag(value.decode("utf-8", "replace") or None) for value in values]
            self._rows = [WIDTH * row for row, code in enumerate(codes) if is_wanted[code]]
        self._messages: list[ReceivedMessage[V]] | None = None
        if surveyed is not None and pulled is not None:
            self._messages = list(self._with_damaged(surveyed, pulled.queue_id))

    def _with_damaged(self, surveyed: list[SurveyedMessage], queue_id: int) -> Iterator[ReceivedMessage[V]]:
        """Yield all messages in order. A damaged one's tag is unknown, so no filter hides it."""
        records = self._records
        wanted = frozenset(self._rows)
        at = 0
        for start, end, queue_offset, damage, _ in surveyed:
            if damage:
                found = records.data[start:end]
                yield DamagedRecord(records.topic, records.broker_name, queue_id, queue_offset, found, damage)
                continue
            if at in wanted:
                yield ReceivedMessage(records, at)
            at += WIDTH

    def _delivered_by(self, deliverer: Deliverer | None, deserializer: Callable[[bytes], V] | None) -> None:
        """Note the member of a group that pulled the messages, if it was one, and what makes their values."""
        self._records.deliverer = deliverer
        self._records.deserializer = deserializer
        for message in self._messages or ():  # a damaged one has records of its own
            message._records.deliverer = deliverer  # noqa: SLF001

    @property
    def record_bytes(self) -> int:
        """The total size of the records."""
        return len(self._records.data)

    @property
    def record_data(self) -> bytes:
        """The records back to back, as received."""
        return self._records.data

    def _at(self, index: int) -> ReceivedMessage[V]:
        if self._messages is not None:
            return self._messages[index]
        return ReceivedMessage(self._records, self._rows[index])

    def __len__(self) -> int:
        return len(self._rows if self._messages is None else self._messages)

    def __iter__(self) -> Iterator[ReceivedMessage[V]]:
        if self._messages is not None:
            return iter(self._messages)
        return map(ReceivedMessage, repeat(self._records), self._rows)

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage[V]: ...
    @overload
    def __getitem__(self, index: slice) -> list[ReceivedMessage[V]]: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage[V] | list[ReceivedMessage[V]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"message {index} of {size}")
        return self._at(index % size)

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'message')} of {self._records.topic}>"


def read_records(data: bytes) -> array[int]:
    """Return the table of the records that fill `data`.

    Raises:
        RecordMalformed: there are other bytes, at `index` and `position`.
    """
    table, end, _, _, reason = scan_records(data, 0, len(data))
    if end < len(data):
        raise RecordMalformed(len(table) // WIDTH, end, reason or "a blank record, the end of a file")
    return table


def read_pull(data: bytes, pulled: Pulled) -> array[int] | None:
    """Return the table of a pull's records; None if they are not all the requested ones.

    Without a filter no message may be missing, except expired ones before the first.
    """
    topic, queue_id, offset, next_offset, filtered = pulled
    table, end = queue_records(data, 0, len(data), topic.encode(), queue_id, offset, False)
    if end < len(data):
        return None
    if table:
        after = table[QUEUE_OFFSET - WIDTH] + 1
        if after > next_offset or (after != next_offset and not filtered):
            return None
    return table


def _survey(data: bytes, pulled: Pulled) -> list[SurveyedMessage]:
    surveyed = survey(data, pulled)
    damaged = [message for message in surveyed if message.damage]
    if damaged:
        log.warning(
            "pull from %s/%d: %d of %d messages are damaged; the first, at offset %d: %s",
            pulled.topic,
            pulled.queue_id,
            len(damaged),
            len(surveyed),
            damaged[0].queue_offset,
            damaged[0].damage,
        )
    return surveyed


class FoundMessages(NamedTuple):
    """Messages found by key, newest first."""

    messages: Sequence[ReceivedMessage]
    complete: bool
    """False while the broker rebuilds its index after a crash: messages may be missing."""


class PullResult(Struct, Generic[V], eq=False):
    """Status, messages and the offsets to continue with.

    Attributes:
        status: the outcome.
        messages: a sequence of `ReceivedMessage`, empty unless `status` is FOUND.
        next_begin_offset: the queue offset of the next pull, even if nothing was found.
        min_offset, max_offset: the bounds of the queue; `max_offset` is the next offset to be assigned.
        suggested_broker_id: the id of the broker's member that should be asked next; 0 is the master.
    """

    status: PullStatus
    messages: PulledMessages[V]
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0

    def __repr__(self) -> str:
        return (
            f"<PullResult {self.status.name}, {counted(len(self.messages), 'message')}, next {self.next_begin_offset}, "
            f"queue [{self.min_offset}, {self.max_offset})>"
        )


def pull_result(queue: MessageQueue, offset: int, call: Call, wanted: MessageSelector) -> PullResult:
    """Return the result of an answered pull from `offset` of a queue. Damaged messages are included.

    Raises:
        BrokerError: the broker refused the pull.
        RecordMalformed: the answer has no records, and no message can be missing.
    """
    header = call.answer
    status = _STATUS_OF_CODE.get(header.code)
    if status is None:
        raise error_from_response(header.code, header.remark, header.ext)
    result = PullMessageResult.from_ext(header.ext)
    pulled = Pulled(
        queue.topic, queue.queue_id, offset, result.next_begin_offset, filtered=not wanted.is_everything
    )
    messages = PulledMessages(queue.topic, call.body, wanted.tag_filter, queue.broker_name, pulled)
    if status is PullStatus.FOUND and not messages:
        # All only shared a tag's hash.
        status = PullStatus.NO_MATCHED_MESSAGE
    return PullResult(
        status,
        messages,
        result.next_begin_offset,
        result.min_offset,
        result.max_offset,
        result.suggest_which_broker_id,
    )
