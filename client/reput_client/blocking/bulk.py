"""The blocking clients for reading and writing in bulk, which the pipeline uses."""

from __future__ import annotations

from reput_client.blocking.client import BlockingClient, blocking, constructor, locked
from reput_client.consume import bulk
from reput_client.produce import batch_writer


class BulkReader(BlockingClient[bulk.BulkReader]):
    """Reads queues in bulk; a context manager. Arguments, errors: `reput_client.consume.bulk.BulkReader`."""

    @constructor(bulk.BulkReader)
    def __init__(self, client: bulk.BulkReader) -> None:
        super().__init__(client)

    cluster = blocking(bulk.BulkReader.cluster)
    topics = blocking(bulk.BulkReader.topics)
    queue_bounds = blocking(bulk.BulkReader.queue_bounds)
    offset_by_time = blocking(bulk.BulkReader.offset_by_time)
    committed = blocking(bulk.BulkReader.committed)
    commit = blocking(bulk.BulkReader.commit)
    fetch = blocking(bulk.BulkReader.fetch)
    prefetch = blocking(bulk.BulkReader.prefetch)


class BatchWriter(BlockingClient[batch_writer.BatchWriter]):
    """Writes blocks in bulk; a context manager. Arguments, errors: `reput_client.produce.batch_writer`."""

    @constructor(batch_writer.BatchWriter)
    def __init__(self, client: batch_writer.BatchWriter) -> None:
        super().__init__(client)

    write_queues = blocking(batch_writer.BatchWriter.write_queues)
    begin = locked(batch_writer.BatchWriter.begin)
    stage = blocking(batch_writer.BatchWriter.stage)
    end = blocking(batch_writer.BatchWriter.end)
    commit = blocking(batch_writer.BatchWriter.commit)
    abort = blocking(batch_writer.BatchWriter.abort)
    staged = blocking(batch_writer.BatchWriter.staged)
    put = blocking(batch_writer.BatchWriter.put)
    drain = blocking(batch_writer.BatchWriter.drain)
