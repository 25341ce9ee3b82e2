"""The synchronous pull consumer."""

from __future__ import annotations

from typing import Generic

from reput_client.blocking.client import BlockingClient, blocking, constructor
from reput_client.consume import pull_consumer as asynchronous
from reput_client.received import V


class PullConsumer(BlockingClient[asynchronous.PullConsumer[V]], Generic[V]):
    """Pulls messages; a context manager. Arguments and errors are those of `reput_client.PullConsumer`.

    Threads may share one; their pulls wait concurrently on one connection.
    """

    @constructor(asynchronous.PullConsumer)
    def __init__(self, client: asynchronous.PullConsumer[V]) -> None:
        super().__init__(client)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    queues = blocking(asynchronous.PullConsumer.queues)
    pull = blocking(asynchronous.PullConsumer[V].pull)
    pull_columns = blocking(asynchronous.PullConsumer.pull_columns)
    commit = blocking(asynchronous.PullConsumer.commit)
    committed = blocking(asynchronous.PullConsumer.committed)
    min_offset = blocking(asynchronous.PullConsumer.min_offset)
    max_offset = blocking(asynchronous.PullConsumer.max_offset)
    offset_by_time = blocking(asynchronous.PullConsumer.offset_by_time)
