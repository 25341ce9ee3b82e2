"""What a pull brought, record by record, when not all of it is as it must be: which messages are sound, which damaged.

Damage is named and passed over, never handed out, and it never hides what follows it: a message whose record cannot be
read, or says that it is another one, takes its place in the pull as a damaged one.

- Where no record can be read, the next one that can is looked for: one of this queue with a fitting queue offset whose
  body matches its checksum.
- Without a filter nothing is left out, so that the place of a record says which message it has to be.
- Otherwise queue offsets ascend within what was asked for. Records that do not fit in are damaged: as few as can be,
  since one wrong number must not make all that follow it wrong.
- How many messages an unreadable stretch held is known without a filter: their queue offsets are missing. With a filter
  it counts as one.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import checksum_faults, scan_records
from reput_protocol.record.layout import I32, RECORD_BYTES_MIN
from reput_protocol.record.row import QUEUE_ID, QUEUE_OFFSET, TOPIC, WIDTH

_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_TOPIC_SHOWN: Final = 80


class Pulled(NamedTuple):
    """What a pull asked for, and where the broker says that the next one begins."""

    topic: str
    queue_id: int
    offset: int
    next_offset: int
    filtered: bool = False
    """Whether the broker leaves out messages by their tags."""


class SurveyedMessage(NamedTuple):
    """One message of the pull; `damage` says why it cannot be handed out, and is empty where it can."""

    start: int
    end: int
    queue_offset: int
    damage: str
    row: array[int]
    """What the kernel found there, empty if the message is damaged."""


class _Span(NamedTuple):
    """Which message of which queue a record says it is."""

    topic: bytes
    queue_id: int
    queue_offset: int
    row: array[int]


class _Stretch(NamedTuple):
    """Bytes that hold a record, or none that can be read."""

    start: int
    end: int
    span: _Span | None
    reason: str = ""
    """Why no record can be read there."""

    @property
    def damage(self) -> str:
        if self.span is None:
            return f"its record cannot be read: {self.reason}"
        topic, queue_id, queue_offset, _ = self.span
        shown = topic[:_TOPIC_SHOWN].decode("utf-8", "replace")
        return f"the record in its place is message {queue_offset} of queue {queue_id} of topic {shown}"


def survey(records: bytes, pulled: Pulled) -> list[SurveyedMessage]:
    """Return the messages of a pull, with ascending queue offsets.

    Raises:
        RecordMalformed: nothing that can be read lies there, and no queue offset is left for it to have had.
    """
    stretches = _stretches(records, pulled)
    found = max((_messages(stretches, fits, pulled) for fits in _judgements(stretches, pulled)), key=len)
    if not found:
        raise RecordMalformed(0, 0, stretches[0].reason or stretches[0].damage)
    return found


def _judgements(stretches: list[_Stretch], pulled: Pulled) -> Iterator[list[bool]]:
    """Ways to tell which records are the ones that were asked for; the one that accounts for most messages is right."""
    first = pulled.next_offset - len(stretches)
    if not pulled.filtered and all(stretch.span is not None for stretch in stretches):
        # Nothing is left out, so each has its number.
        yield [
            _may_be(stretch.span, pulled) and stretch.span.queue_offset == first + index
            for index, stretch in enumerate(stretches)
            if stretch.span is not None
        ]
    else:
        yield _ascending(stretches, pulled, of_equals_first=True)
        yield _ascending(stretches, pulled, of_equals_first=False)


def _messages(stretches: list[_Stretch], fits: list[bool], pulled: Pulled) -> list[SurveyedMessage]:
    """The messages if these records are the ones that were asked for."""
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
    """Give damaged stretches the queue offsets between what is sound before and after them."""
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
    """Split the bytes into records and what is between them."""
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
    """Return where the next record of the queue starts that can be read and has a sound body; the end without one."""
    end = len(records)
    for match in _MAGIC.finditer(records, position + 4):
        start = match.start() - 4
        (size,) = I32.unpack_from(records, start)
        if not RECORD_BYTES_MIN <= size <= end - start:
            continue
        row = scan_records(records, start, start + size)[0]
        if row and _may_be(_span(records, row), pulled) and not checksum_faults(records, row):
            return start
    return end


def _may_be(span: _Span, pulled: Pulled) -> bool:
    """Whether a record says that it is one of those that were asked for."""
    return (
        span.topic == pulled.topic.encode()
        and span.queue_id == pulled.queue_id
        and pulled.offset <= span.queue_offset < pulled.next_offset
    )


def _ascending(stretches: list[_Stretch], pulled: Pulled, *, of_equals_first: bool) -> list[bool]:
    """Which records ascend within what was asked for: as many as can be."""
    lowest_ends: list[int] = []  # the lowest queue offset that so many ascending records can end with
    holders: list[int] = []
    before: dict[int, int] = {}
    for number, (_, _, span, _) in enumerate(stretches):
        if span is None or not _may_be(span, pulled):
            continue
        length = bisect_left(lowest_ends, span.queue_offset)
        if length == len(lowest_ends):
            lowest_ends.append(span.queue_offset)
            holders.append(number)
        elif of_equals_first and lowest_ends[length] == span.queue_offset:
            continue
        else:
            lowest_ends[length] = span.queue_offset
            holders[length] = number
        before[number] = holders[length - 1] if length else -1
    fits = [False] * len(stretches)
    number = holders[-1] if holders else -1
    while number >= 0:
        fits[number] = True
        number = before[number]
    return fits
