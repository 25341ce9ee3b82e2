"""The blocking pull consumer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from reput_client import pull_consumer as asynchronous
from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.column_pulls import COLUMN_BYTES, ColumnsResult
from reput_client.pull_result import PullResult
from reput_client.pulling import PULL_BYTES_MAX, PULL_MESSAGES_MAX
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from reput_protocol.codes import BoundaryType
from reput_protocol.message import MessageQueue


class PullConsumer(BlockingClient):
    """Pulls messages; a context manager. Arguments and errors are those of `reput_client.PullConsumer`.

    Threads may share one: their pulls wait side by side on one connection.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._consumer = asynchronous.PullConsumer(
            address,
            group=group,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        super().__init__(self._consumer, runtime)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._consumer.group

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of `topic`."""
        return self._runtime.run(self._consumer.queues(topic))

    def pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_messages: int = PULL_MESSAGES_MAX,
        wait_s: float = 15.0,
        tags: str = "*",
        sql: str | None = None,
        max_bytes: int = PULL_BYTES_MAX,
        read_ahead: bool = False,
        broker_name: str | None = None,
    ) -> PullResult:
        """Return messages of one queue from `offset` on; see `reput_client.PullConsumer.pull`."""
        return self._runtime.run(
            self._consumer.pull(
                topic,
                queue_id,
                offset,
                max_messages=max_messages,
                wait_s=wait_s,
                tags=tags,
                sql=sql,
                max_bytes=max_bytes,
                read_ahead=read_ahead,
                broker_name=broker_name,
            )
        )

    def pull_columns(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        wait_s: float = 15.0,
        tags: str = "*",
        max_bytes: int = COLUMN_BYTES,
        read_ahead: bool = True,
        broker_name: str | None = None,
    ) -> ColumnsResult:
        """Return messages of one queue as columns; see `reput_client.PullConsumer.pull_columns`."""
        return self._runtime.run(
            self._consumer.pull_columns(
                topic,
                queue_id,
                offset,
                wait_s=wait_s,
                tags=tags,
                max_bytes=max_bytes,
                read_ahead=read_ahead,
                broker_name=broker_name,
            )
        )

    def commit(self, topic: str, queue_id: int, offset: int, *, broker_name: str | None = None) -> None:
        """Commit that the group goes on at `offset`; once this returns it survives a killed broker."""
        self._runtime.run(self._consumer.commit(topic, queue_id, offset, broker_name=broker_name))

    def committed(
        self,
        topic: str,
        queue_id: int,
        *,
        broker_name: str | None = None,
        set_zero_if_not_found: bool = False,
    ) -> int | None:
        """Return the group's committed offset, or None; see `reput_client.PullConsumer.committed`."""
        return self._runtime.run(
            self._consumer.committed(
                topic, queue_id, broker_name=broker_name, set_zero_if_not_found=set_zero_if_not_found
            )
        )

    def min_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset of the first message that is still in the queue."""
        return self._runtime.run(self._consumer.min_offset(topic, queue_id, broker_name=broker_name))

    def max_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset that the queue's next message will get."""
        return self._runtime.run(self._consumer.max_offset(topic, queue_id, broker_name=broker_name))

    def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        when: datetime | int,
        boundary: str = BoundaryType.LOWER,
        *,
        broker_name: str | None = None,
    ) -> int:
        """Return the offset of the first message stored at or after `when` (datetime, or ms since 1970)."""
        return self._runtime.run(
            self._consumer.offset_by_time(topic, queue_id, when, boundary, broker_name=broker_name)
        )
