"""One pull: its request and result, and the damaged messages in it."""

from __future__ import annotations

import logging
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain, repeat
from typing import Final, Generic, NamedTuple, overload

from msgspec import Struct

from reput_client.received import DamagedRecord, Deliverer, PulledRecords, ReceivedMessage, V
from reput_protocol.buffers import Buffer
from reput_protocol.codes import ExpressionType, PullSysFlag, ResponseCode
from reput_protocol.commands.pull import PullMessageHeader, PullMessageResult
from reput_protocol.errors import RecordMalformed, error_from_response
from reput_protocol.filter.tags import ALL, TagFilter
from reput_protocol.kernel.records import checksum_faults, queue_records, scan_records
from reput_protocol.kernel.tables import distinct
from reput_protocol.printable import counted
from reput_protocol.record.layout import RECORD_BYTES_MIN, size_at
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.scan import QUEUE_ID, QUEUE_OFFSET, TAG, TOPIC, WIDTH
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

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
    ).to_ext()


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
    pulled = Pulled(queue.topic, queue.queue_id, offset, result.next_begin_offset, filtered=not wanted.is_everything)
    messages = PulledMessages(queue.topic, call.body, wanted.tag_filter, queue.broker_name, pulled)
    if status is PullStatus.FOUND and not messages:
        # All only shared a tag's hash.
        status = PullStatus.NO_MATCHED_MESSAGE
    return PullResult(
        status, messages, result.next_begin_offset, result.min_offset, result.max_offset, result.suggest_which_broker_id
    )


# Damage never hides what follows: a message whose record is unreadable, or another message's, is returned as damaged in
# its place.
#
# - After an unreadable record the search continues at the next record of this queue with a plausible queue offset and a
#   body that matches its checksum.
# - Without a filter no message is missing, so a record's position determines which message it must be.
# - Otherwise queue offsets ascend within the requested range, with an offset left for each record between two. As few
#   records as possible are damaged, since one wrong number must not make all that follow wrong.
# - The number of messages in an unreadable stretch follows from the missing queue offsets; with a filter it is one.

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_TOPIC_SHOWN: Final = 80


class Pulled(NamedTuple):
    """The range of a pull: from the requested offset to the next one by the broker's answer."""

    topic: str
    queue_id: int
    offset: int
    next_offset: int
    filtered: bool = False
    """Whether the broker filters messages."""


class SurveyedMessage(NamedTuple):
    """One message of the pull; `damage` says why its content is unavailable, and is empty if it is intact."""

    start: int
    end: int
    queue_offset: int
    damage: str
    row: array[int]
    """The kernel's row, empty if the message is damaged."""


class _Span(NamedTuple):
    """The message that a record claims to be."""

    topic: bytes
    queue_id: int
    queue_offset: int
    row: array[int]


class _Stretch(NamedTuple):
    """One record, or bytes without a readable record."""

    start: int
    end: int
    span: _Span | None
    reason: str = ""
    """Why there is no readable record."""

    @property
    def damage(self) -> str:
        if self.span is None:
            return f"its record cannot be read: {self.reason}"
        topic, queue_id, queue_offset, _ = self.span
        shown = topic[:_TOPIC_SHOWN].decode("utf-8", "replace")
        return f"the record in its place is message {queue_offset} of queue {queue_id} of topic {shown}"


def survey(records: bytes, pulled: Pulled) -> list[SurveyedMessage]:
    """Return the messages of a pull by ascending queue offset.

    Raises:
        RecordMalformed: nothing is readable, and no queue offset is left for a message.
    """
    stretches = _stretches(records, pulled)
    candidates = [(fits, _messages(stretches, fits, pulled)) for fits in _judgements(stretches, pulled)]
    _, found = max(candidates, key=lambda candidate: (sum(candidate[0]), len(candidate[1])))
    if not found:
        raise RecordMalformed(0, 0, stretches[0].reason or stretches[0].damage)
    return found


def _judgements(stretches: list[_Stretch], pulled: Pulled) -> Iterator[list[bool]]:
    """Yield candidates for which records are the requested ones.

    The one with most intact records is right, and of several the one that accounts for most messages.
    """
    first = pulled.next_offset - len(stretches)
    if not pulled.filtered and all(stretch.span is not None for stretch in stretches):
        # None is missing, so each record's offset is known.
        yield [
            _may_be(stretch.span, pulled) and stretch.span.queue_offset == first + index
            for index, stretch in enumerate(stretches)
            if stretch.span is not None
        ]
    else:
        yield _ascending(stretches, pulled, with_room=True)
        # A damaged record may have been read as more than one, for which no offsets are left.
        yield _ascending(stretches, pulled, with_room=False)


def _messages(stretches: list[_Stretch], fits: list[bool], pulled: Pulled) -> list[SurveyedMessage]:
    """Return the messages if exactly the records marked in `fits` are the requested ones."""
    messages: list[SurveyedMessage] = []
    damaged: list[_Stretch] = []
    after = pulled.offset
    for stretch, is_asked_for in zip(stretches, fits, strict=True):
        start, end, span, _ = stretch
        if not is_asked_for or span is None:
            damaged.append(stretch)
            continue
        messages += _damaged_messages(damaged, after, span.queue_offset, pulled)
        messages.append(SurveyedMessage(start, end, span.queue_offset, "", span.row))
        damaged = []
        after = span.queue_offset + 1
    return [*messages, *_damaged_messages(damaged, after, pulled.next_offset, pulled)]


def _damaged_messages(damaged: list[_Stretch], first: int, stop: int, pulled: Pulled) -> list[SurveyedMessage]:
    """Give damaged stretches the queue offsets between the intact records around them."""
    messages: list[SurveyedMessage] = []
    for number, stretch in enumerate(damaged):
        left = stop - first - (len(damaged) - number - 1)
        at_most = 1
        if stretch.span is None and not pulled.filtered:
            at_most = max(1, (stretch.end - stretch.start) // RECORD_BYTES_MIN)
        start = stretch.start
        for _ in range(min(max(left, 0), at_most)):
            messages.append(SurveyedMessage(start, stretch.end, first, stretch.damage, array("q")))
            start = stretch.end
            first += 1
    return messages


def _stretches(records: bytes, pulled: Pulled) -> list[_Stretch]:
    stretches: list[_Stretch] = []
    position = 0
    end = len(records)
    while position < end:
        table, stop, _, _, reason = scan_records(records, position, end)
        for at in range(0, len(table), WIDTH):
            row = table[at : at + WIDTH]
            stretches.append(_Stretch(row[0], row[0] + row[1], _span(records, row)))
        if stop < end:
            position = _next_record(records, stop + 1, pulled)
            stretches.append(_Stretch(stop, position, None, reason or "a blank record is there"))
        else:
            position = end
    return stretches


def _span(records: bytes, row: array[int]) -> _Span:
    start, size = row[TOPIC : TOPIC + 2]
    return _Span(records[start : start + size], row[QUEUE_ID], row[QUEUE_OFFSET], row)


def _next_record(records: bytes, position: int, pulled: Pulled) -> int:
    """Return where the next readable record of the queue with an intact body starts, or the end."""
    end = len(records)
    for match in _MAGIC.finditer(records, position + 4):
        start = match.start() - 4
        size = size_at(records, start)
        if not RECORD_BYTES_MIN <= size <= end - start:
            continue
        row = scan_records(records, start, start + size)[0]
        if row and _may_be(_span(records, row), pulled) and not checksum_faults(records, row):
            return start
    return end


def _may_be(span: _Span, pulled: Pulled) -> bool:
    return (
        span.topic == pulled.topic.encode()
        and span.queue_id == pulled.queue_id
        and pulled.offset <= span.queue_offset < pulled.next_offset
    )


def _ascending(stretches: list[_Stretch], pulled: Pulled, *, with_room: bool) -> list[bool]:
    """Return which records form a longest ascending sequence within the requested range; of equals, the first ones.

    `with_room` leaves a queue offset for each stretch before, between and after them.
    """
    # From the last to the first, so that the first of equals comes last and stays.
    starts: list[int] = []  # by length - 1, negative: the highest number with which such a sequence starts
    holders: list[int] = []
    after: dict[int, int] = {}
    last = len(stretches) - 1
    for number in range(last, -1, -1):
        span = stretches[number].span
        if span is None or not _may_be(span, pulled):
            continue
        start = span.queue_offset
        if with_room:
            start -= number  # so many messages are before it; then it is enough that these do not descend
            if not pulled.offset <= start < pulled.next_offset - last:
                continue
        length = bisect_right(starts, -start) if with_room else bisect_left(starts, -start)
        starts[length : length + 1] = [-start]
        holders[length : length + 1] = [number]
        after[number] = holders[length - 1] if length else -1
    fits = [False] * len(stretches)
    number = holders[-1] if holders else -1
    while number >= 0:
        fits[number] = True
        number = after[number]
    return fits
