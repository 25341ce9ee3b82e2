"""Sorting the records of a pull that are not all valid into intact and damaged messages.

Damage never hides what follows: a message whose record is unreadable, or another message's, is returned as damaged in
its place.

- After an unreadable record the search continues at the next record of this queue with a plausible queue offset and a
  body that matches its checksum.
- Without a filter no message is missing, so a record's position determines which message it must be.
- Otherwise queue offsets ascend within the requested range, with an offset left for each record between two. As few
  records as possible are damaged, since one wrong number must not make all that follow wrong.
- The number of messages in an unreadable stretch follows from the missing queue offsets; with a filter it is one.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import checksum_faults, scan_records
from reput_protocol.record.layout import RECORD_BYTES_MIN, size_at
from reput_protocol.record.scan import QUEUE_ID, QUEUE_OFFSET, TOPIC, WIDTH

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


def _damaged_messages(
    damaged: list[_Stretch], first: int, stop: int, pulled: Pulled
) -> list[SurveyedMessage]:
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
