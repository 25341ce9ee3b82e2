"""The synchronous offset stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reput_client import offset_store as asynchronous
from reput_client.blocking.client import blocking
from reput_client.blocking.runtime import BlockingRuntime
from reput_protocol.record.message import MessageQueue

if TYPE_CHECKING:
    from reput_client.blocking.pull_consumer import PullConsumer


class OffsetStore:
    """An offset store with blocking reads and writes; see `reput_client.offset_store`."""

    _client: asynchronous.OffsetStore
    _runtime: BlockingRuntime

    @property
    def failure(self) -> Exception | None:
        """Why the last `read` returned -1 or -2; None if there was simply no offset."""
        return self._client.failure

    read = blocking(asynchronous.OffsetStore.read)
    persist = blocking(asynchronous.OffsetStore.persist)
    persist_all = blocking(asynchronous.OffsetStore.persist_all)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Keep `offset` in memory; with `increase_only` a lower one is ignored."""
        self._client.update(queue, offset, increase_only=increase_only)

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue from memory; the stored offset remains."""
        self._client.remove(queue)

    def clone(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return a copy of the table, of one topic or of all."""
        return self._client.clone(topic)


class RemoteOffsetStore(OffsetStore):
    """Offsets at the broker, over the connection of a `PullConsumer`."""

    def __init__(self, group: PullConsumer) -> None:
        self._client, self._runtime = asynchronous.RemoteOffsetStore(group._client), group._runtime


class LocalFileOffsetStore(OffsetStore):
    """Offsets in a local file; see `reput_client.LocalFileOffsetStore`."""

    def __init__(self, path: str | Path) -> None:
        self._client = asynchronous.LocalFileOffsetStore(path, in_thread=_at_once)
        self._runtime = BlockingRuntime()


async def _at_once(work: Callable[[], Any]) -> Any:
    return work()
