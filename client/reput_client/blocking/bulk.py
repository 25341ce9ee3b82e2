"""What the pipeline uses: the synchronous bulk reader and staging producer, and repeating what brokers refuse."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, ParamSpec, TypeVar

from reput_client.blocking.client import BlockingClient, blocking, constructor, locked
from reput_client.blocking.producer import Producer
from reput_client.consume.fetch_records import BulkReader as AsyncBulkReader
from reput_client.produce.staging_producer import StagingProducer as AsyncStagingProducer
from reput_client.transport.backoff import Backoff
from reput_protocol.errors import ReputError


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


P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_FIRST_S: Final = 0.01
_PAUSE_MAX_S: Final = 1.0


class Attempts(NamedTuple):
    """How requests are repeated: for `for_s` seconds, and then `retries` times.

    A request that waits takes all of that time itself; a broker that is starting, or a group without a master, refuses
    at once.
    """

    retries: int = 3
    interval_s: float = 0.01
    for_s: float = 0.0

    def __call__(self, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call `ask`, again while its error is retryable.

        Raises:
            ReputError: of the last attempt.
        """
        pause_s = max(self.interval_s, _PAUSE_FIRST_S)
        pauses = Backoff(pause_s, max(pause_s, _PAUSE_MAX_S))
        until, retries = time.monotonic() + self.for_s, self.retries
        while True:
            try:
                return ask(*arguments, **named)
            except ReputError as error:
                if not error.retryable:
                    raise
                if time.monotonic() >= until:
                    if not retries:
                        raise
                    retries -= 1
            time.sleep(pauses.next_delay_s())
