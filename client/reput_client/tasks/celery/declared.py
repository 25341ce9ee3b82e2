"""What a connection has declared, and the requests about topics and groups that declarations need."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

from reput_client.blocking import Admin
from reput_client.tasks.celery.receiving import TransientQueue
from reput_protocol.commands.group_description import GroupQueue
from reput_protocol.errors import GroupNotFound, TopicNotFound
from reput_protocol.record.message import MessageQueue


class Declared:
    """Topics that exist, and the transient queues of one connection.

    Attributes:
        transient: readers of the transient queues, by name.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._admin = Admin(**options)
        self._topics: set[str] = set()
        self._lock = Lock()
        self.transient: dict[str, TransientQueue] = {}

    def open(self) -> None:
        """Connect; raises `ConnectFailed`."""
        self._admin.__enter__()

    def close(self) -> None:
        """End the transient queues, and close the connection."""
        for reader in self.transient.values():
            reader.close()
        self.transient.clear()
        self._admin.close()

    def has_topic(self, topic: str) -> bool:
        """Whether a topic exists; one that did is not asked for again."""
        if topic in self._topics:
            return True
        if not topic:
            return False
        try:
            self._admin.topic_config(topic)
        except TopicNotFound:
            return False
        self._topics.add(topic)
        return True

    def ensure_topic(self, topic: str, *, queues: int, message_type: str | None = None) -> None:
        """Create a topic unless it exists.

        Raises:
            PermissionDenied: it does not, and the user may not create it.
        """
        with self._lock:
            if topic not in self._topics:
                self._admin.ensure_topic(topic, queues=queues, message_type=message_type)
                self._topics.add(topic)

    def forget(self, topic: str) -> None:
        """Ask for a topic again, because it was deleted."""
        self._topics.discard(topic)

    def begin_at_end(self, group: str, topic: str) -> None:
        """Let a group that has no progress in a topic begin with what comes from now on."""
        for queue, bounds in self._admin.topic_stats(topic).offset_table.items():
            at = {"broker_name": queue.broker_name}
            if self._admin.committed_offset(group, topic, queue.queue_id, **at) is None:
                self._admin.commit_offset(group, topic, queue.queue_id, bounds.max_offset, **at)

    def ready(self, group: str) -> int:
        """Return how many messages of a queue nothing has received, redelivered ones among them."""
        return sum(each.lag for each in self._progress(group))

    def skip_all(self, group: str) -> int:
        """Let a group continue at the end of all its topics; return how many messages it skips."""
        progress = self._progress(group)
        ends = {
            MessageQueue(each.topic, each.broker_name, each.queue_id): each.end_offset for each in progress
        }
        try:
            self._admin.set_offsets(group, ends)
        except GroupNotFound:  # nothing was ever received
            for queue, end in ends.items():
                self._admin.commit_offset(
                    group, queue.topic, queue.queue_id, end, broker_name=queue.broker_name
                )
        return sum(each.lag for each in progress)

    def _progress(self, group: str) -> list[GroupQueue]:
        """Return the progress of a group in all its topics; in the queue's own topic it may have none yet."""
        try:
            progress = self._admin.describe_group(group).queues
        except GroupNotFound:
            progress = []
        if all(each.topic != group for each in progress):
            with suppress(TopicNotFound):
                progress += [
                    GroupQueue(
                        topic=group,
                        queue_id=queue.queue_id,
                        start_offset=bounds.min_offset,
                        end_offset=bounds.max_offset,
                        broker_name=queue.broker_name,
                    )
                    for queue, bounds in self._admin.topic_stats(group).offset_table.items()
                ]
        return progress

    def delete(self, topic: str, *, group: bool = True) -> None:
        """Delete a topic, and the group of the same name."""
        self._topics.discard(topic)
        self._admin.delete_topic(topic)
        if group:
            self._admin.delete_group(topic)
