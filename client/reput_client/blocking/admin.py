"""The blocking admin client."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from reput_client import admin as asynchronous
from reput_client.backoff import Backoff
from reput_client.blocking.admin_groups import BlockingGroupAdmin
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.pull_result import FoundMessages
from reput_client.received import ReceivedMessage
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from reput_protocol.bodies_delay import CancelledMessage, DelayedMessage
from reput_protocol.bodies_route import ClusterInfo, TopicRoute
from reput_protocol.bodies_topic import TopicConfig, TopicStats
from reput_protocol.codes import BoundaryType, Perm


class Admin(BlockingGroupAdmin):
    """Asks and tells one broker; a context manager. Arguments and errors are those of `reput_client.Admin`."""

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._admin = asynchronous.Admin(
            address,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        self._groups = self._admin
        super().__init__(self._admin, runtime)

    def create_topic(self, topic: str, *, queues: int = 4, perm: int = Perm.READ_WRITE) -> None:
        """Create a topic, or change the queues and permission of one that exists."""
        self._runtime.run(self._admin.create_topic(topic, queues=queues, perm=perm))

    def alter_topic(
        self, topic: str, *, read_queues: int, write_queues: int, perm: int = Perm.READ_WRITE
    ) -> None:
        """Set a topic's queues apart for readers and writers."""
        self._runtime.run(
            self._admin.alter_topic(topic, read_queues=read_queues, write_queues=write_queues, perm=perm)
        )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, its queues and every group's offsets in it."""
        self._runtime.run(self._admin.delete_topic(topic))

    def list_topics(self) -> list[str]:
        """Return the names of all topics, system ones included, sorted."""
        return self._runtime.run(self._admin.list_topics())

    def topic_config(self, topic: str) -> TopicConfig:
        """Return a topic's settings; raises `TopicNotFound`."""
        return self._runtime.run(self._admin.topic_config(topic))

    def topic_stats(self, topic: str) -> TopicStats:
        """Return the bounds and the last change of every queue of a topic."""
        return self._runtime.run(self._admin.topic_stats(topic))

    def route(self, topic: str) -> TopicRoute:
        """Return which brokers hold a topic and with how many queues; raises `TopicNotFound`."""
        return self._runtime.run(self._admin.route(topic))

    def broker_status(self) -> dict[str, str]:
        """Return the broker's own figures by name; all values are text."""
        return self._runtime.run(self._admin.broker_status())

    def cluster_info(self) -> ClusterInfo:
        """Return the brokers of the cluster and their addresses."""
        return self._runtime.run(self._admin.cluster_info())

    def min_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset of the first message that is still in the queue."""
        return self._runtime.run(self._admin.min_offset(topic, queue_id, broker_name=broker_name))

    def max_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset that the queue's next message will get."""
        return self._runtime.run(self._admin.max_offset(topic, queue_id, broker_name=broker_name))

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
            self._admin.offset_by_time(topic, queue_id, when, boundary, broker_name=broker_name)
        )

    def earliest_message_time_ms(
        self, topic: str, queue_id: int, *, broker_name: str | None = None
    ) -> int | None:
        """Return when the first message of the queue was stored, in ms since 1970, or None if it is empty."""
        return self._runtime.run(
            self._admin.earliest_message_time_ms(topic, queue_id, broker_name=broker_name)
        )

    def find_messages(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
    ) -> FoundMessages:
        """Return messages with this unique id or key, newest first; see `reput_client.Admin.find_messages`."""
        return self._runtime.run(
            self._admin.find_messages(topic, key, max_messages=max_messages, begin=begin, end=end)
        )

    def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """Return the message with this offset message id; raises `NotFound` or `InvalidMessage`."""
        return self._runtime.run(self._admin.view_message(offset_message_id))

    def list_delayed(
        self, *, topic: str | None = None, key: str | None = None, max_messages: int = 1000
    ) -> list[DelayedMessage]:
        """Return messages that wait for their time, the soonest first: all, or those of a topic, or with a key."""
        return self._runtime.run(self._admin.list_delayed(topic=topic, key=key, max_messages=max_messages))

    def cancel_delayed(self, topic: str, key: str) -> list[CancelledMessage]:
        """Cancel the messages that wait for `topic` with this unique id or key; raises `NotFound`."""
        return self._runtime.run(self._admin.cancel_delayed(topic, key))
