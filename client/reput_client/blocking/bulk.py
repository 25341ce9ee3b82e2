"""The synchronous bulk reader and staging producer, which the pipeline uses."""

from __future__ import annotations

from reput_client.blocking.client import BlockingClient, blocking, constructor, locked
from reput_client.blocking.producer import Producer
from reput_client.consume import fetch_records as asynchronous
from reput_client.produce import staging_producer


class BulkReader(BlockingClient[asynchronous.BulkReader]):
    """Reads queues in bulk; a context manager. See `reput_client.consume.fetch_records`."""

    @constructor(asynchronous.BulkReader)
    def __init__(self, client: asynchronous.BulkReader) -> None:
        super().__init__(client)

    cluster = blocking(asynchronous.BulkReader.cluster)
    brokers = blocking(asynchronous.BulkReader.brokers)
    topics = blocking(asynchronous.BulkReader.topics)
    queue_bounds = blocking(asynchronous.BulkReader.queue_bounds)
    offset_by_time = blocking(asynchronous.BulkReader.offset_by_time)
    committed = blocking(asynchronous.BulkReader.committed)
    commit = blocking(asynchronous.BulkReader.commit)
    fetch = blocking(asynchronous.BulkReader.fetch)
    prefetch = blocking(asynchronous.BulkReader.prefetch)


class StagingProducer(Producer):
    """Stages messages and publishes them as a batch; a context manager. See `reput_client.produce.staging_producer`."""

    @constructor(staging_producer.StagingProducer)
    def __init__(self, client: staging_producer.StagingProducer) -> None:
        BlockingClient.__init__(self, client)  # not Producer's, which makes a client without staging

    write_queues = blocking(staging_producer.StagingProducer.write_queues)
    begin = locked(staging_producer.StagingProducer.begin)
    stage = blocking(staging_producer.StagingProducer.stage)
    wait_staged = blocking(staging_producer.StagingProducer.wait_staged)
    end = blocking(staging_producer.StagingProducer.end)
    commit = blocking(staging_producer.StagingProducer.commit)
    abort = blocking(staging_producer.StagingProducer.abort)
    query_staged = blocking(staging_producer.StagingProducer.query_staged)
    limits = blocking(staging_producer.StagingProducer.limits)
    post_block = blocking(staging_producer.StagingProducer.post_block)
