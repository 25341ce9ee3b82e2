"""A consumer group's progress as a Spark query has it, published batch by batch from the driver.

With the option `groupId` the source does so by itself, but one batch late, since Spark tells it of a batch while it
plans the next one. This listener is told of each batch when it is done, the last one included.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from reput_client.blocking.bulk import BulkReader
from reput_pipeline.source.notes import note
from reput_pipeline.source.stream_offsets import OffsetsUnreadable, decode_offsets
from reput_protocol.errors import ReputError


class GroupProgress(StreamingQueryListener):
    """Commits how far a query has read as a group's offsets: `spark.streams.addListener(GroupProgress(...))`.

    A failure is noted and changes nothing in the query; the next batch commits again.

    Args:
        name_server: address of the broker.
        group: whose offsets these are.
        query: name of the query; without it every query over this source counts.
    """

    def __init__(self, name_server: str, group: str, query: str | None = None) -> None:
        self._name_server = name_server
        self._group = group
        self._query = query

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Do nothing yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Commit where the batch ended."""
        if self._query is not None and event.progress.name != self._query:
            return
        for source in event.progress.sources:
            self.publish(source.endOffset)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing more: the last batch has been committed."""

    def publish(self, end_offset: str | None) -> None:
        """Commit the offsets of a checkpoint's or a progress's JSON text; those of other sources are passed over."""
        try:
            offsets = decode_offsets(json.loads(end_offset or "null") or {}).queues
        except (ValueError, AttributeError, OffsetsUnreadable):
            return
        try:
            with BulkReader(self._name_server) as reader:
                for queue, offset in offsets.items():
                    reader.commit(self._group, queue.topic, queue.queue_id, offset)
        except ReputError as error:
            note(f"progress of group {self._group} not published: {error}")
