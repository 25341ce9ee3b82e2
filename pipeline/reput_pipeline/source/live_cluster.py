"""A cluster as a `Catalog`: its queues, their bounds, and the committed offsets of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import ParamSpec, TypeVar

from reput_client.blocking.bulk import BulkReader
from reput_client.errors import ConnectFailed, ConnectionLost, RequestTimeout
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.places import Generations, QueueKey, TopicKey
from reput_pipeline.source.ranges import Bounds
from reput_protocol.errors import BrokerError

P = ParamSpec("P")
T = TypeVar("T")
_CONNECT_TIMEOUT_S = 5.0


def connect(address: str, options: SourceOptions) -> BulkReader:
    """Return a reader of one broker; it connects at its first request."""
    return BulkReader(
        address,
        timeout_s=options.pull_timeout_s,
        connect_timeout_s=min(_CONNECT_TIMEOUT_S, options.pull_timeout_s),
    )


def repeated(options: SourceOptions, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `ask`, again up to `fetchRetries` times if there is no answer or a retryable error.

    Raises:
        ConnectFailed, ConnectionLost, RequestTimeout, BrokerError: of the last attempt.
    """
    for _ in range(options.fetch_retries):
        try:
            return ask(*arguments, **named)
        except (ConnectFailed, ConnectionLost, RequestTimeout):
            pass
        except BrokerError as error:
            if not error.retryable:
                raise
        time.sleep(options.fetch_retry_interval_s)
    return ask(*arguments, **named)


class LiveCluster:
    """The brokers behind `nameServer`; a context manager that closes their connections.

    A single broker is reached under the given addresses, several under those that they register.
    """

    def __init__(self, options: SourceOptions) -> None:
        assert options.name_servers is not None, "a live cluster has an address"
        self._options = options
        self._seed = connect(options.name_servers, options)
        self._readers: dict[str, BulkReader] = {}
        self._addresses: dict[str, str] = {}
        self._own_names: set[str] = set()
        self._bounds: dict[QueueKey, Bounds] = {}
        self._generations: dict[TopicKey, str] = {}

    def __enter__(self) -> LiveCluster:
        """Connect and fetch the list of brokers.

        Raises:
            ConnectFailed: no address answers.
        """
        try:
            repeated(self._options, self._connect)
            info = repeated(self._options, self._seed.cluster)
            brokers, self._own_names = info.masters, info.own_names
            if len(brokers) == 1:
                (name,) = brokers
                self._readers = {name: self._seed}
                self._addresses = {name: str(self._options.name_servers)}
            else:
                self._addresses = brokers
                self._readers = {name: connect(address, self._options) for name, address in brokers.items()}
        except BaseException:
            self.close()
            raise
        return self

    def _connect(self) -> None:
        """Connect with a new reader, since a failed one is closed."""
        assert self._options.name_servers is not None, "a live cluster has an address"
        self._seed = connect(self._options.name_servers, self._options)
        self._seed.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for reader in {id(reader): reader for reader in (self._seed, *self._readers.values())}.values():
            reader.close()

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address of every broker by name."""
        return self._addresses

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        """Return the queues of the wanted topics, and fetch bounds and generations."""
        found: dict[str, list[QueueKey]] = {}
        self._bounds, self._generations = {}, {}
        for broker, reader in self._readers.items():
            topics: Sequence[str] = options.named_topics
            if options.pattern is not None:
                there = repeated(options, reader.topics)
                topics = [name for name in there if options.is_wanted(name, self._own_names)]
            table = repeated(options, reader.queue_bounds, topics)
            self._generations.update(
                ((topic, broker), generation) for topic, generation in table.generations.items()
            )
            for topic, queues in table.topics.items():
                keys = found.setdefault(topic, [])
                for queue_id, low, high in queues:
                    keys.append(QueueKey(topic, broker, queue_id))
                    self._bounds[keys[-1]] = Bounds(low, high)
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
        reader = self._readers[queue.broker]
        return repeated(self._options, reader.offset_by_time, queue.topic, queue.queue_id, timestamp_ms)

    def committed(self, queue: QueueKey) -> int | None:
        """Return the group's committed offset, or None."""
        assert self._options.group_id is not None, "a group was asked for and is named"
        group, reader = self._options.group_id, self._readers[queue.broker]
        return repeated(self._options, reader.committed, group, queue.topic, queue.queue_id)

    def commit(self, queue: QueueKey, offset: int) -> None:
        """Commit the group's offset."""
        assert self._options.group_id is not None, "a group was asked for and is named"
        group, reader = self._options.group_id, self._readers[queue.broker]
        repeated(self._options, reader.commit, group, queue.topic, queue.queue_id, offset)
