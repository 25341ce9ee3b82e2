"""Turn options into ranges: which messages of which queues a query reads, decided when it is planned."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from reput_client.arrow.queues import Bounds, Generations, QueueKey, QueueRange
from reput_pipeline.source.bounds import EARLIEST, GROUP, LATEST, QueryBound
from reput_pipeline.source.narrowing import Narrowing
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.spark.errors import DataLost, NoSuchTopic
from reput_pipeline.spark.option_reader import OptionError


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
            raise OptionError(
                option, f"names queue {named}, which the query does not read or which is not there"
            )


def resolve(
    catalog: Catalog, options: SourceOptions, place: QueryBound, queue: QueueKey, bounds: Bounds
) -> int:
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
