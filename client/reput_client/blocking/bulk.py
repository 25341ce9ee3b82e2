"""The synchronous bulk reader and staging producer, which the pipeline uses."""

from __future__ import annotations

from reput_client.blocking.client import BlockingClient, blocking, constructor, locked
from reput_client.blocking.producer import Producer
from reput_client.consume.fetch_records import BulkReader as AsyncBulkReader
from reput_client.produce.staging_producer import StagingProducer as AsyncStagingProducer


class BulkReader(BlockingClient[AsyncBulkReader]):
    """Reads queues in bulk; a context manager. See `reput_client.consume.fetch_records`."""

    @constructor(AsyncBulkReader)
    def __init__(self, client: AsyncBulkReader) -> None:
        super().__init__(client)

    cluster = blocking(AsyncBulkReader.cluster)
    brokers = blocking(AsyncBulkReader.brokers)
    topics = blocking(AsyncBulkReader.topics)
    queue_bounds = blocking(AsyncBulkReader.queue_bounds)
    offset_by_time = blocking(AsyncBulkReader.offset_by_time)
    committed = blocking(AsyncBulkReader.committed)
    commit = blocking(AsyncBulkReader.commit)
    fetch = blocking(AsyncBulkReader.fetch)
    prefetch = blocking(AsyncBulkReader.prefetch)


class StagingProducer(Producer):
    """Stages messages and publishes them as a batch; a context manager. See `reput_client.produce.staging_producer`."""

    @constructor(AsyncStagingProducer)
    def __init__(self, client: AsyncStagingProducer) -> None:
        BlockingClient.__init__(self, client)  # not Producer's, which makes a client without staging

    write_queues = blocking(AsyncStagingProducer.write_queues)
    begin = locked(AsyncStagingProducer.begin)
    stage = blocking(AsyncStagingProducer.stage)
    wait_staged = blocking(AsyncStagingProducer.wait_staged)
    end = blocking(AsyncStagingProducer.end)
    commit = blocking(AsyncStagingProducer.commit)
    abort = blocking(AsyncStagingProducer.abort)
    query_staged = blocking(AsyncStagingProducer.query_staged)
    limits = blocking(AsyncStagingProducer.limits)
    post_block = blocking(AsyncStagingProducer.post_block)
