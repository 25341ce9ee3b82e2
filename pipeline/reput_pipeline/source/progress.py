"""Commit the progress of a streaming query as the offsets of a consumer group, from the driver.

The source does this with the option `groupId`, but one batch late, since Spark reports a batch to it while it plans the
next. A listener is called after every batch.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from reput_client.blocking.bulk import BulkReader
from reput_pipeline.notes import note
from reput_pipeline.source.stream_offsets import OffsetsUnreadable, decode_offsets
from reput_protocol.errors import ReputError


class GroupProgress(StreamingQueryListener):
    """Commits offsets after each batch: `spark.streams.addListener(GroupProgress(...))`.

    A failure is logged; the next batch commits again.

    Args:
        name_server: address of the broker.
        group: the consumer group.
        query: name of the query; None: every query over this source.
    """

    def __init__(self, name_server: str, group: str, query: str | None = None) -> None:
        self._name_server = name_server
        self._group = group
        self._query = query

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Commit the ends of the batch."""
        if self._query is not None and event.progress.name != self._query:
            return
        for source in event.progress.sources:
            self.publish(source.endOffset)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the last batch has been committed."""

    def publish(self, end_offset: str | None) -> None:
        """Commit offsets from the JSON of a checkpoint or progress event; other sources' are ignored."""
        try:
            offsets = decode_offsets(json.loads(end_offset or "null") or {}).queues
        except (ValueError, AttributeError, OffsetsUnreadable):
            return
        try:
            with BulkReader(self._name_server) as reader:
                for queue, offset in offsets.items():
                    reader.commit(self._group, queue.topic, queue.queue_id, offset, queue.broker)
        except ReputError as error:
            note(f"progress of group {self._group} not published: {error}")
