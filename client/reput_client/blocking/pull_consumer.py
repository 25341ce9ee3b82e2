"""The synchronous pull consumer."""

from __future__ import annotations

from typing import Generic

from reput_client.blocking.client import BlockingClient, blocking, constructor
from reput_client.consume.pull_consumer import PullConsumer as AsyncPullConsumer
from reput_client.received import V


class PullConsumer(BlockingClient[AsyncPullConsumer[V]], Generic[V]):
    """Pulls messages; a context manager. Arguments and errors are those of `reput_client.PullConsumer`.

    Threads may share one; their pulls wait concurrently on one connection.
    """

    @constructor(AsyncPullConsumer)
    def __init__(self, client: AsyncPullConsumer[V]) -> None:
        super().__init__(client)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    queues = blocking(AsyncPullConsumer.queues)
    pull = blocking(AsyncPullConsumer[V].pull)
    pull_columns = blocking(AsyncPullConsumer.pull_columns)
    commit = blocking(AsyncPullConsumer.commit)
    committed = blocking(AsyncPullConsumer.committed)
    min_offset = blocking(AsyncPullConsumer.min_offset)
    max_offset = blocking(AsyncPullConsumer.max_offset)
    offset_by_time = blocking(AsyncPullConsumer.offset_by_time)
