"""A cluster as a `Catalog`: its queues, their bounds, and the committed offsets of a group; and planning over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from reput_client.arrow.queues import Bounds, Generations, QueueKey, QueueRange, TopicKey
from reput_client.blocking.bulk import Attempts, BulkReader
from reput_client.transport.address import parse_addresses
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import InputPartition, Narrowing, batch_ranges, cores, narrowed, pack
from reput_pipeline.spark.option_reader import credentials_for, naming_tls_options

P = ParamSpec("P")
T = TypeVar("T")
_CONNECT_TIMEOUT_S = 5.0
_TASK_MESSAGES_MIN: Final = 25_000
"""Fewer messages are not worth a task: an empty one costs as much as some 50,000."""


def connect(options: SourceOptions) -> BulkReader:
    """Return a reader of the cluster's brokers; it connects at its first request."""
    assert options.name_servers is not None, "a live cluster has an address"
    return BulkReader(
        options.name_servers,
        timeout_s=options.pull_timeout_s,
        connect_timeout_s=min(_CONNECT_TIMEOUT_S, options.pull_timeout_s),
        tls=options.tls,
        credentials=credentials_for(options.user),
    )


class _Attempts(Attempts):
    """Errors of TLS name the options of the source."""

    def __call__(self, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        with naming_tls_options():
            return super().__call__(ask, *arguments, **named)


def attempts_of(options: SourceOptions) -> Attempts:
    """Return how requests are repeated: until `pullTimeoutMs` is over, then `fetchOffset.numRetries` times."""
    return _Attempts(options.fetch_retries, options.fetch_retry_interval_s, options.pull_timeout_s)


class LiveCluster:
    """The brokers behind `nameServer`; a context manager that closes their connections.

    If another broker of a name becomes its master, requests follow it.
    """

    def __init__(self, options: SourceOptions) -> None:
        assert options.name_servers is not None, "a live cluster has an address"
        self._options = options
        self._attempts = attempts_of(options)
        self._reader = connect(options)
        self._addresses: dict[str, str] = {}
        self._own_names: set[str] = set()
        self._topics: set[str] = set()
        self._bounds: dict[QueueKey, Bounds] = {}
        self._generations: dict[TopicKey, str] = {}

    def __enter__(self) -> LiveCluster:
        """Connect and fetch the list of brokers. An address that may be wrong is not waited for.

        Raises:
            ConnectFailed: no address answers.
            BrokerNotFound: the name service lists no broker.
        """
        at_once = self._attempts._replace(for_s=0.0)
        try:
            at_once(self._connect)
            self._learn_brokers(at_once)
        except BaseException:
            self.close()
            raise
        return self

    def _connect(self) -> None:
        """Connect with a new reader, since a failed one is closed."""
        self._reader = connect(self._options)
        self._reader.__enter__()

    def _learn_brokers(self, attempts: Attempts) -> None:
        """Add the brokers that there are now; one that has gone is waited for, its queues are not forgotten."""
        info = attempts(self._reader.cluster)
        self._own_names |= info.own_names
        given = {str(address) for address in parse_addresses(str(self._options.name_servers))}
        for name, data in sorted(info.broker_addr_table.items()):
            self._addresses[name] = " ".join(sorted({*data.broker_addrs.values(), *given}))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._reader.close()

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of every broker by name, with spaces between them: also of its slaves, and those given.

        So a broker is known by one of them if the others change.
        """
        return self._addresses

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        """Return the queues of the wanted topics, and fetch bounds and generations."""
        found: dict[str, list[QueueKey]] = {}
        self._bounds, self._generations = {}, {}
        self._learn_brokers(self._attempts)
        topics: Sequence[str] = options.named_topics
        if options.pattern is not None:
            # A name service forgets the topics of a broker that is away. If they were deleted, the broker says so.
            there = {*self._attempts(self._reader.topics), *self._topics}
            topics = sorted(name for name in there if options.is_wanted(name, self._own_names))
        for broker in self._addresses:
            table = self._attempts(self._reader.queue_bounds, topics, broker)
            self._generations.update(((topic, broker), generation) for topic, generation in table.generations.items())
            for topic, queues in table.topics.items():
                keys = found.setdefault(topic, [])
                for queue_id, low, high in queues:
                    keys.append(QueueKey(topic, broker, queue_id))
                    self._bounds[keys[-1]] = Bounds(low, high)
        self._topics = {*found}
        return found

    def bounds(self, queues: Sequence[QueueKey]) -> dict[QueueKey, Bounds]:
        """Return the bounds as of the last `topic_queues`."""
        return {queue: self._bounds[queue] for queue in queues}

    @property
    def generations(self) -> Generations:
        """The generations as of the last `topic_queues`."""
        return self._generations

    def offset_at(self, queue: QueueKey, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the end of the queue."""
        ask = self._reader.offset_by_time
        return self._attempts(ask, queue.topic, queue.queue_id, timestamp_ms, queue.broker)

    def committed(self, queue: QueueKey) -> int | None:
        """Return the group's committed offset, or None."""
        group = self._options.group_id
        assert group is not None, "a group was asked for and is named"
        return self._attempts(self._reader.committed, group, queue.topic, queue.queue_id, queue.broker)

    def commit(self, queue: QueueKey, offset: int) -> None:
        """Commit the group's offset."""
        group = self._options.group_id
        assert group is not None, "a group was asked for and is named"
        self._attempts(self._reader.commit, group, queue.topic, queue.queue_id, offset, queue.broker)


@dataclass
class LivePartition(InputPartition):
    """A task that fetches ranges of queues."""

    ranges: list[QueueRange]
    generations: Generations
    """Of the ranges' topics, if known."""


def plan_batch(options: SourceOptions, narrowing: Narrowing) -> list[InputPartition]:
    """Return the tasks of a batch query.

    Raises:
        NoSuchTopic, DataLost, OptionError: the query cannot be answered.
        ConnectFailed, RequestTimeout, BrokerError: a broker does not answer, or refuses.
    """
    with LiveCluster(options) as cluster:
        ranges = [narrowed(cluster, part, narrowing) for part in batch_ranges(cluster, options)]
        return tasks_of(ranges, cluster.generations, options.min_partitions)


def tasks_of(ranges: Iterable[QueueRange], generations: Generations, parts: int | None) -> list[InputPartition]:
    """Divide ranges into `parts` tasks; by default one per core, fewer for few messages."""
    wanted = [part for part in ranges if part.size > 0]
    total = sum(part.size for part in wanted)
    if parts is None:
        parts = min(cores(), max(1, total // _TASK_MESSAGES_MIN))
    return [live_partition(part, generations) for part in pack(wanted, parts)]


def live_partition(ranges: Sequence[QueueRange], generations: Generations) -> LivePartition:
    """Return a task for ranges, with their generations."""
    topics = {(part.queue.topic, part.queue.broker) for part in ranges}
    return LivePartition(list(ranges), {topic: generations[topic] for topic in topics if topic in generations})
