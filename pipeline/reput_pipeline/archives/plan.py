"""Plan the next batch of an archive: each queue from its archived end on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from reput_client.arrow.queues import Generations, QueueKey, QueueRange, is_remade
from reput_pipeline.archives.manifests import ArchiveBatch
from reput_pipeline.source.live_cluster import LiveCluster
from reput_pipeline.source.offline_store import OfflineStore
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import limited, pack
from reput_pipeline.source.resolve import Catalog, check_named, first_offsets, resolve, wanted_queues
from reput_pipeline.spark.errors import BrokerGone, DataLost, RemadeTopic
from reput_protocol.printable import counted

_TASK_MESSAGES_MIN = 10_000
_GONE_LINES_MAX = 20


@contextmanager
def catalog_of(options: SourceOptions) -> Iterator[Catalog]:
    """Open the broker or directory of the options.

    Raises:
        NotAStore, ConnectFailed: it cannot be opened.
    """
    if options.path is not None:
        with OfflineStore(options.path) as store:
            yield store
    else:
        with LiveCluster(options) as cluster:
            yield cluster


def addresses_of(catalog: Catalog) -> dict[str, str]:
    """Return the brokers' addresses by name; none for a store directory."""
    return dict(catalog.addresses) if isinstance(catalog, LiveCluster) else {}


def check_brokers(batch: ArchiveBatch, addresses: Mapping[str, str]) -> None:
    """Check that the cluster has all brokers of a batch.

    Raises:
        BrokerGone: one is missing.
    """
    for part in batch.ranges:
        if part.queue.broker not in addresses:
            raise BrokerGone(part, sorted(addresses))


def open_ranges(
    catalog: Catalog, options: SourceOptions, done: Mapping[QueueKey, int], known: Generations
) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Return where the archive continues in each queue, and where the queue ends now.

    New queues start where the options say. With `failOnDataLoss=false` the archive continues after deleted messages,
    which `gone` returns.

    Args:
        catalog: the broker or directory.
        options: of the source.
        done: the archived ends of queues.
        known: the generations of their topics.

    Raises:
        NoSuchTopic, DataLost, OptionError: as `resolve.batch_ranges`; also if messages were deleted before they were
            archived, or a queue is not the one that was archived.
    """
    queues = wanted_queues(catalog, options)
    check_named(options.start, queues)
    check_named(options.end, queues)
    bounds = catalog.bounds(queues)
    new = first_offsets(catalog, options, [queue for queue in queues if queue not in done], bounds)
    start: dict[QueueKey, int] = {}
    end: dict[QueueKey, int] = {}
    for queue in queues:
        low, high = bounds[queue]
        at = done.get(queue)
        if at is None:
            at = new[queue]
        elif is_remade(queue, known, catalog.generations):
            raise RemadeTopic(queue, at)
        elif at > high:
            raise DataLost(
                queue,
                f"{counted(at, 'message')} of it archived, but it ends at {high}: its topic was created again",
            )
        elif at < low and options.fail_on_data_loss:
            raise DataLost(queue, f"messages {at} to {low - 1} are gone and not in the archive")
        start[queue] = max(at, low)
        end[queue] = max(start[queue], resolve(catalog, options, options.end, queue, bounds[queue]))
    return start, end


def next_tasks(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], *, most: int, file_messages: int, parts: int
) -> list[list[QueueRange]]:
    """Return the ranges of each task of the next batch; empty if there is nothing to archive.

    Args:
        start: where each queue continues.
        end: where each queue ends.
        most: approximate number of messages of the batch.
        file_messages: highest number of messages in a file.
        parts: number of tasks that run at once.
    """
    ends = limited(start, end, most)
    ranges = [QueueRange(queue, start[queue], ends[queue]) for queue in sorted(start)]
    total = sum(part.size for part in ranges)
    tasks = pack(ranges, min(parts, max(1, total // _TASK_MESSAGES_MIN)))
    return [[piece for part in task for piece in _pieces(part, file_messages)] for task in tasks]


def gone(done: Mapping[QueueKey, int], start: Mapping[QueueKey, int]) -> list[QueueRange]:
    """Return the messages that were deleted before they were archived: those between archived ends and new starts."""
    return [
        QueueRange(queue, done[queue], at) for queue, at in sorted(start.items()) if done.get(queue, at) < at
    ]


def gone_lines(lost: Sequence[QueueRange]) -> list[str]:
    """Return a line for each range of `gone`, and one for those that are too many."""
    lines = [
        f"queue {part.queue}: messages {part.start} to {part.end - 1} are gone and not in the archive"
        for part in lost[:_GONE_LINES_MAX]
    ]
    rest = lost[_GONE_LINES_MAX:]
    if rest:
        messages = counted(sum(part.size for part in rest), "message")
        lines.append(f"{counted(len(rest), 'other queue')}: {messages} are gone and not in the archive")
    return lines


def _pieces(part: QueueRange, size: int) -> Sequence[QueueRange]:
    return [
        QueueRange(part.queue, start, min(start + size, part.end))
        for start in range(part.start, part.end, size)
    ]
