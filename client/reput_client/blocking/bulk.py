"""The synchronous bulk reader and batch writer, which the pipeline uses."""

from __future__ import annotations

from reput_client.blocking.client import BlockingClient, blocking, constructor, locked
from reput_client.consume import bulk_reader
from reput_client.produce import batch_writer


class BulkReader(BlockingClient[bulk_reader.BulkReader]):
    """Reads queues in bulk; a context manager. See `reput_client.consume.bulk_reader`."""

    @constructor(bulk_reader.BulkReader)
    def __init__(self, client: bulk_reader.BulkReader) -> None:
        super().__init__(client)

    cluster = blocking(bulk_reader.BulkReader.cluster)
    brokers = blocking(bulk_reader.BulkReader.brokers)
    topics = blocking(bulk_reader.BulkReader.topics)
    queue_bounds = blocking(bulk_reader.BulkReader.queue_bounds)
    offset_by_time = blocking(bulk_reader.BulkReader.offset_by_time)
    committed = blocking(bulk_reader.BulkReader.committed)
    commit = blocking(bulk_reader.BulkReader.commit)
    fetch = blocking(bulk_reader.BulkReader.fetch)
    prefetch = blocking(bulk_reader.BulkReader.prefetch)


class BatchWriter(BlockingClient[batch_writer.BatchWriter]):
    """Writes blocks in bulk; a context manager. See `reput_client.produce.batch_writer`."""

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
