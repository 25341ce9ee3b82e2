"""The blocking consumer."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from datetime import datetime
from typing import Self

from reput_client import consumer as asynchronous
from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.offset_store import BlockingOffsetStore
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.received import ReceivedMessage
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S


class Consumer(BlockingClient):
    """Reads every queue of a topic on behalf of a group; a context manager and an iterator.

    Arguments, errors and what counts as handled are those of `reput_client.Consumer`. One thread iterates; any thread
    may close the consumer, which ends the iteration. Progress is committed by the iterating thread itself, so a
    thread that keeps a message for long keeps its commits back too.
    """

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        group: str,
        topic: str,
        tags: str = "*",
        sql: str | None = None,
        start: str | datetime | int = "earliest",
        prefetch_messages: int = 2048,
        prefetch_bytes: int = 16 * 1024 * 1024,
        commit_interval_s: float = 5.0,
        offset_store: BlockingOffsetStore | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._consumer = asynchronous.Consumer(
            address,
            group=group,
            topic=topic,
            tags=tags,
            sql=sql,
            start=start,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            commit_interval_s=commit_interval_s,
            offset_store=offset_store.asynchronous if offset_store is not None else None,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        super().__init__(self._consumer, runtime)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._consumer.group

    @property
    def topic(self) -> str:
        """The topic."""
        return self._consumer.topic

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        message = self.receive()
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """Return the next message, or None when time is up or the consumer was closed.

        Asking for a message says that the one before is handled.
        """
        return self._runtime.run(self._consumer.receive(timeout_s))

    def take(self, timeout_s: float = math.inf) -> ReceivedMessage | None:
        """As `receive`, but the message counts as handled only when `done` is called with it."""
        return self._runtime.run(self._consumer.take(timeout_s))

    def done(self, message: ReceivedMessage) -> None:
        """A message from `take` is handled; any thread may say so."""
        self._runtime.call(lambda: self._consumer.done(message))

    def commit(self) -> None:
        """Commit all progress now, the message last received through iteration included."""
        self._runtime.run(self._consumer.commit())

    def rewind(self) -> None:
        """Hand out again, next, what was taken and is not handled."""
        self._runtime.call(self._consumer.rewind)

    def run(self, handler: Callable[[ReceivedMessage], object], *, concurrency: int = 1) -> None:
        """Call `handler` with every message, in `concurrency` threads, until the consumer is closed.

        With `concurrency=1` the handler runs in the calling thread. The first exception of a handler ends `run` once
        the handlers in progress are done, and comes out; its message is not handled.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        try:
            if concurrency == 1:
                while (message := self.take()) is not None:
                    handler(message)
                    self.done(message)
            else:
                self._run_in_threads(handler, concurrency)
        finally:
            self.rewind()

    def _run_in_threads(self, handler: Callable[[ReceivedMessage], object], concurrency: int) -> None:
        slots = threading.Semaphore(concurrency)
        failed = threading.Event()

        def handle(message: ReceivedMessage) -> None:
            try:
                handler(message)
                self.done(message)
            except BaseException:
                failed.set()
                raise
            finally:
                slots.release()

        futures: set[Future[None]] = set()
        with ThreadPoolExecutor(concurrency) as pool:
            while True:
                slots.acquire()
                # A handler may fail while no message comes; a bounded wait notices that.
                message = None
                while message is None and not failed.is_set() and not self._consumer.closed:
                    message = self.take(_LOOK_ROUND_S)
                if message is None or failed.is_set():
                    break
                futures = {future for future in futures if not future.done() or future.exception()}
                futures.add(pool.submit(handle, message))
            wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.result()


_LOOK_ROUND_S = 0.5
