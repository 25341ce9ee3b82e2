"""The synchronous offset stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reput_client import offset_store as asynchronous
from reput_client.blocking.client import blocking
from reput_client.blocking.pull_consumer import PullConsumer
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.offset_store import OffsetStore
from reput_protocol.record.message import MessageQueue


class BlockingOffsetStore:
    """An offset store with blocking reads and writes; see `reput_client.offset_store`."""

    def __init__(self, store: OffsetStore, runtime: BlockingRuntime) -> None:
        self._client = store
        self._runtime = runtime

    @property
    def asynchronous(self) -> OffsetStore:
        """The async store."""
        return self._client

    @property
    def failure(self) -> Exception | None:
        """Why the last `read` returned -1 or -2; None if there was simply no offset."""
        return self._client.failure

    read = blocking(OffsetStore.read)
    persist = blocking(OffsetStore.persist)
    persist_all = blocking(OffsetStore.persist_all)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Keep `offset` in memory; with `increase_only` a lower one is ignored."""
        self._client.update(queue, offset, increase_only=increase_only)

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue from memory; the stored offset remains."""
        self._client.remove(queue)

    def clone(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return a copy of the table, of one topic or of all."""
        return self._client.clone(topic)


class RemoteOffsetStore(BlockingOffsetStore):
    """Offsets at the broker, over the connection of a `PullConsumer`."""

    def __init__(self, group: PullConsumer) -> None:
        client, runtime = group._client, group._runtime
        super().__init__(asynchronous.RemoteOffsetStore(client), runtime)


class LocalFileOffsetStore(BlockingOffsetStore):
    """Offsets in a local file; see `reput_client.LocalFileOffsetStore`."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(asynchronous.LocalFileOffsetStore(path, in_thread=_at_once), BlockingRuntime())


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()
