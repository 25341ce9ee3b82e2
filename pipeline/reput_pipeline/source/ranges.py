"""Which messages of which queues a query reads: from its options and filters to ranges, in micro-batches and tasks.

Filters leave out messages that certainly fail one; Spark applies every filter again.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from reput_client.arrow.queues import Bounds, Generations, QueueKey, QueueRange
from reput_pipeline.source.bounds import EARLIEST, GROUP, LATEST, QueryBound
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.spark.errors import DataLost, NoSuchTopic
from reput_pipeline.spark.option_reader import OptionError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.datasource import InputPartition as InputPartition
else:
    try:
        from pyspark.sql.datasource import InputPartition
    except ModuleNotFoundError as missing:
        if missing.name != "pyspark":
            raise

        class InputPartition:
            """Part of a query, for jobs that run in their own process."""


_MEANING: Final = {
    "topic": "topic",
    "queueId": "queue",
    "partition": "queue",
    "queueOffset": "offset",
    "offset": "offset",
    "storeTimestamp": "time",
    "timestamp": "time",
    "tags": "tag",
    "keys": "key",
    "key": "key",
}


class Catalog(Protocol):
    """The queues of a store directory or a cluster."""

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        """Return the queues of the wanted topics that exist; an empty topic may have none."""
        ...

    def bounds(self, queues: Sequence[QueueKey]) -> dict[QueueKey, Bounds]:
        """Return the bounds of queues."""
        ...

    @property
    def generations(self) -> Generations:
        """The generations of the topics that `topic_queues` has returned."""
        ...

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the end of the queue."""
        ...

    def committed(self, queue: QueueKey) -> int | None:
        """Return the group's committed offset, or None."""
        ...


def wanted_queues(catalog: Catalog, options: SourceOptions) -> list[QueueKey]:
    """Return the queues that a query reads, in order.

    Raises:
        NoSuchTopic: a named topic or queue does not exist, and `failOnDataLoss` is true.
    """
    found = catalog.topic_queues(options)
    for topic in options.named_topics:
        if topic not in found:
            missing = NoSuchTopic(f"topic {topic!r}", options.where)
            if options.fail_on_data_loss:
                raise missing
            warnings.warn(str(missing), stacklevel=2)
    if not options.assigned:
        return sorted(queue for queues in found.values() for queue in queues)
    by_name = _by_name(queue for queues in found.values() for queue in queues)
    chosen: set[QueueKey] = set()
    for wanted in options.assigned:
        same = by_name.get(wanted, [])
        if not same and wanted.topic in found and options.fail_on_data_loss:
            raise NoSuchTopic(f"queue {wanted}", options.where)
        chosen.update(same)
    return sorted(chosen)


def _by_name(queues: Iterable[QueueKey]) -> dict[QueueKey, list[QueueKey]]:
    """Return the queues by key, with and without the broker's name."""
    named: dict[QueueKey, list[QueueKey]] = {}
    for queue in queues:
        named[queue] = [queue]
        if queue.broker:
            named.setdefault(queue._replace(broker=""), []).append(queue)
    return named


def batch_ranges(catalog: Catalog, options: SourceOptions) -> list[QueueRange]:
    """Return the ranges of a batch query.

    Raises:
        OptionError: a named queue does not exist, or an end is before its start.
        DataLost: a named offset does not exist, and `failOnDataLoss` is true.
        NoSuchTopic: a topic does not exist.
    """
    queues = wanted_queues(catalog, options)
    bounds = catalog.bounds(queues)
    check_named(options.start, queues)
    check_named(options.end, queues)
    starts = first_offsets(catalog, options, queues, bounds)
    ranges = []
    for queue in queues:
        start = starts[queue]
        end = resolve(catalog, options, options.end, queue, bounds[queue])
        if end < start and options.end.offset_of(queue) >= 0:
            raise OptionError("endingOffsets", f"{queue} would end at {end}, before its start at {start}")
        ranges.append(QueueRange(queue, start, max(start, end)))
    return ranges


def starting_offsets(
    catalog: Catalog, options: SourceOptions, queues: Sequence[QueueKey], bounds: Mapping[QueueKey, Bounds]
) -> dict[QueueKey, int]:
    """Return the first offset of a new stream in each queue. Raises as `batch_ranges`."""
    check_named(options.start, queues)
    return first_offsets(catalog, options, queues, bounds)


def first_offsets(
    catalog: Catalog, options: SourceOptions, queues: Sequence[QueueKey], bounds: Mapping[QueueKey, Bounds]
) -> dict[QueueKey, int]:
    """Return where each queue starts; one without a message of its starting time or later, at its end.

    Raises:
        DataLost: as `resolve`.
        OptionError: of all queues that have messages, none was stored at its starting time or later.
    """
    place = options.start
    found = {queue: resolve(catalog, options, place, queue, bounds[queue]) for queue in queues}
    timed = [queue for queue in queues if bounds[queue].low < bounds[queue].high]
    timed = [queue for queue in timed if place.timestamp_of(queue) is not None]
    if timed and not place.latest_if_none and all(found[queue] >= bounds[queue].high for queue in timed):
        others = ", as all others of the query," if len(timed) > 1 else ""
        raise OptionError(
            "startingTimestamp" if place.timestamp_ms is not None else f"{place.option}ByTimestamp",
            f"queue {timed[0]}{others} has no message stored at {place.timestamp_of(timed[0])} or later; "
            "startingOffsetsByTimestampStrategy=latest then starts at its end",
        )
    return found


def check_named(place: QueryBound, queues: Sequence[QueueKey]) -> None:
    """Check that the query reads every queue that an option names.

    Raises:
        OptionError: it does not.
    """
    by_name = _by_name(queues)
    for option, named in place.named_queues:
        if named not in by_name:
            raise OptionError(option, f"names queue {named}, which the query does not read or which is not there")


def resolve(catalog: Catalog, options: SourceOptions, place: QueryBound, queue: QueueKey, bounds: Bounds) -> int:
    """Return the offset of a place in a queue, within its bounds.

    Raises:
        DataLost: the offset does not exist, and `failOnDataLoss` is true.
    """
    when = place.timestamp_of(queue)
    if when is not None:
        return min(max(catalog.offset_at(queue, when), bounds.low), bounds.high)
    offset = place.offset_of(queue)
    if offset == GROUP:
        committed = catalog.committed(queue)
        offset = EARLIEST if committed is None else committed
    if offset == EARLIEST:
        return bounds.low
    if offset == LATEST:
        return bounds.high
    return within(options, queue, offset, bounds)


def within(options: SourceOptions, queue: QueueKey, offset: int, bounds: Bounds) -> int:
    """Return an offset within the bounds of its queue; the nearest bound if `failOnDataLoss` is false.

    Raises:
        DataLost: it is not within the bounds, and `failOnDataLoss` is true.
    """
    if bounds.low <= offset <= bounds.high:
        return offset
    if offset < bounds.low:
        reason = f"offset {offset} is gone, its first message is {bounds.low} now"
    else:
        reason = f"offset {offset} is beyond its end, {bounds.high}: it was deleted and created again, or lost messages"
    if options.fail_on_data_loss:
        raise DataLost(queue, reason)
    warnings.warn(f"queue {queue}: {reason}", stacklevel=2)
    return min(max(offset, bounds.low), bounds.high)


def narrowed(catalog: Catalog, part: QueueRange, narrowing: Narrowing) -> QueueRange:
    """Return the part of a range that the filters leave."""
    queue, start, end = part
    if not narrowing.wants(queue.topic, queue.queue_id):
        return QueueRange(queue, start, start)
    if narrowing.offset_low is not None:
        start = max(start, narrowing.offset_low)
    if narrowing.offset_high is not None:
        end = min(end, narrowing.offset_high)
    if start < end and narrowing.time_low_ms is not None:
        start = max(start, catalog.offset_at(queue, narrowing.time_low_ms))
    if start < end and narrowing.time_high_ms is not None:
        end = min(end, catalog.offset_at(queue, narrowing.time_high_ms))
    return QueueRange(queue, start, max(start, end))


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Conditions of all wanted messages; None: no condition. Low bounds are inclusive, high exclusive."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    offset_low: int | None = None
    offset_high: int | None = None
    time_low_ms: int | None = None
    time_high_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def __str__(self) -> str:
        """Return the conditions in words."""
        found = [
            f"{name} {' or '.join(map(str, sorted(values))) or 'none'}"
            for name, values in (
                ("topic", self.topics),
                ("queue", self.queue_ids),
                ("tag", self.tags),
                ("key", self.keys),
            )
            if values is not None
        ]
        found += [
            f"{name} from {'the first' if low is None else low} to {'the last' if high is None else high - 1}"
            for name, low, high in (
                ("offset", self.offset_low, self.offset_high),
                ("store time in ms", self.time_low_ms, self.time_high_ms),
            )
            if low is not None or high is not None
        ]
        return ", ".join(found) or "nothing"

    def wants(self, topic: str, queue_id: int) -> bool:
        """Return whether a message of this queue can pass."""
        return (self.topics is None or topic in self.topics) and (self.queue_ids is None or queue_id in self.queue_ids)


NOTHING_NARROWED: Final = Narrowing()


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """Return the conditions of filters that all hold; other filters are ignored."""
    from pyspark.sql import datasource as spark  # not needed to read without Spark

    result = NOTHING_NARROWED
    for condition in filters:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        meaning = _MEANING.get(str(attribute[0])) if len(attribute) == 1 else None
        if meaning is None:
            continue
        if isinstance(condition, (spark.EqualTo, spark.EqualNullSafe)):
            result = _among(result, meaning, [condition.value])
        elif isinstance(condition, spark.In):
            result = _among(result, meaning, list(condition.value))
        elif isinstance(condition, (spark.GreaterThan, spark.GreaterThanOrEqual)):
            inclusive = isinstance(condition, spark.GreaterThanOrEqual)
            result = _above(result, meaning, condition.value, inclusive)
        elif isinstance(condition, (spark.LessThan, spark.LessThanOrEqual)):
            inclusive = isinstance(condition, spark.LessThanOrEqual)
            result = _below(result, meaning, condition.value, inclusive)
    return result


def _among(known: Narrowing, meaning: str, values: list[Any]) -> Narrowing:
    if any(value is None for value in values):
        return known
    if meaning in ("offset", "time"):
        if not values:
            return known
        known = _above(known, meaning, min(values), True)
        return _below(known, meaning, max(values), True)
    if meaning == "queue":
        return replace(known, queue_ids=_both(known.queue_ids, frozenset(map(int, values))))
    texts = frozenset(_text(value) for value in values)
    if meaning == "topic":
        return replace(known, topics=_both(known.topics, texts))
    if meaning == "tag":
        return replace(known, tags=_both(known.tags, texts))
    # Of two conditions on keys, one is enough.
    return known if known.keys is not None else replace(known, keys=texts)


def _above(known: Narrowing, meaning: str, value: Any, inclusive: bool) -> Narrowing:
    if meaning == "offset":
        low = int(value) + (0 if inclusive else 1)
        return replace(known, offset_low=low if known.offset_low is None else max(low, known.offset_low))
    if meaning == "time" and isinstance(value, datetime):
        low = _floor_ms(value)
        return replace(known, time_low_ms=low if known.time_low_ms is None else max(low, known.time_low_ms))
    return known


def _below(known: Narrowing, meaning: str, value: Any, inclusive: bool) -> Narrowing:
    if meaning == "offset":
        high = int(value) + (1 if inclusive else 0)
        return replace(known, offset_high=high if known.offset_high is None else min(high, known.offset_high))
    if meaning == "time" and isinstance(value, datetime):
        high = _floor_ms(value) + 1  # Spark decides within the millisecond
        return replace(known, time_high_ms=high if known.time_high_ms is None else min(high, known.time_high_ms))
    return known


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _text(value: Any) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def _floor_ms(when: datetime) -> int:
    seconds = when.replace(microsecond=0)
    return int(seconds.timestamp()) * 1000 + when.microsecond // 1000


def pack(ranges: Iterable[QueueRange], parts: int) -> list[list[QueueRange]]:
    """Divide ranges into at most `parts` lists with nearly equal numbers of messages.

    A part holds pieces of several queues: an empty task costs as much as 50,000 messages.
    """
    waiting = [part for part in ranges if part.size > 0]
    total = sum(part.size for part in waiting)
    parts = max(1, min(parts, total))
    packed: list[list[QueueRange]] = []
    done = 0
    current: list[QueueRange] = []
    for queue, start, end in waiting:
        while start < end:
            goal = total * (len(packed) + 1) // parts
            stop = min(end, start + goal - done)
            if stop > start:
                current.append(QueueRange(queue, start, stop))
                done += stop - start
                start = stop
            if done >= goal:
                packed.append(current)
                current = []
    if current:
        packed.append(current)
    return packed


def limited(start: Mapping[QueueKey, int], available: Mapping[QueueKey, int], most: int) -> dict[QueueKey, int]:
    """Return the ends of a batch of about `most` messages, divided among the queues in proportion to their backlog.

    As in Spark's Kafka source, every queue with messages contributes at least one. A batch may exceed `most` by one
    message per queue.

    Args:
        start: where the batch begins.
        available: where each queue ends.
        most: number of messages.
    """
    backlog = {queue: end - start[queue] for queue, end in available.items() if end > start[queue]}
    total = sum(backlog.values())
    if total <= most:
        return dict(available)
    ends = {}
    for queue, end in available.items():
        share = most * backlog.get(queue, 0) / total
        ends[queue] = min(end, start[queue] + (math.ceil(share) if share < 1 else math.floor(share)))
    return ends


def cores() -> int:
    """Return the number of processors of this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover (not on every platform)
        return os.cpu_count() or 1
