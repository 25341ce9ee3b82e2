"""A store directory as a `Catalog`."""

from __future__ import annotations

from reput_client.arrow.directory import StoreDirectory
from reput_client.arrow.queues import QueueKey
from reput_pipeline.source.options import SourceOptions


class OfflineStore(StoreDirectory):
    """The queues of one directory; a context manager that closes its files."""

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        """Return the queues of the wanted topics."""
        own_names = self.clusters
        found: dict[str, list[QueueKey]] = {
            topic: [] for topic in self.topics if options.is_wanted(topic, own_names)
        }
        for queue in self.queue_keys():
            if queue.topic in found:
                found[queue.topic].append(queue)
        return found

    def committed(self, queue: QueueKey) -> int | None:
        """Raise NotImplementedError: a directory is read without a group, so the planning never asks."""
        raise NotImplementedError(
            f"a store directory is read without a group, and {queue} has no offset of one"
        )
