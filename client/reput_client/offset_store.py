"""Where a group's progress is kept: at the broker, or in a local file (RocketMQ: OffsetStore).

Both keep a table in memory that `update` changes and `persist` stores. For a missing offset `read` returns numbers, as
RocketMQ's clients do.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import structs

from reput_client.errors import OffsetStoreDamaged
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.record.message import MessageQueue

OFFSET_NOT_FOUND: Final = -1
OFFSET_UNKNOWN: Final = -2
_FORMAT_VERSION: Final = 1


class ReadOffsetType(Enum):
    """Where `read` looks (RocketMQ: ReadOffsetType)."""

    READ_FROM_MEMORY = "memory"
    READ_FROM_STORE = "store"
    MEMORY_FIRST_THEN_STORE = "memory, then store"


class GroupOffsets(Protocol):
    """A group's offsets at the brokers, for a remote store. `PullConsumer` has these methods."""

    async def committed(
        self, topic: str, queue_id: int, *, broker_name: str | None, set_zero_if_not_found: bool
    ) -> int | None:
        """Return the committed offset, or None."""

    async def commit(self, topic: str, queue_id: int, offset: int, *, broker_name: str | None) -> None:
        """Commit an offset."""


class OffsetStore(ABC):
    """The table in memory, and the common part of both stores.

    Attributes:
        failure: why the last `read` returned -1 or -2; None if there was simply no offset.
    """

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self.failure: Exception | None = None

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Keep `offset` in memory; with `increase_only` a lower one is ignored."""
        if increase_only and offset <= self._table.get(queue, OFFSET_NOT_FOUND):
            return
        self._table[queue] = offset

    async def read(self, queue: MessageQueue, kind: ReadOffsetType) -> int:
        """Return the queue's offset; -1: none is stored, or the broker refuses; -2: no answer, or an unreadable file.

        `failure` tells these apart. A stored offset is then kept in memory.
        """
        self.failure = None
        if kind is not ReadOffsetType.READ_FROM_STORE:
            offset = self._table.get(queue)
            if offset is not None:
                return offset
            if kind is ReadOffsetType.READ_FROM_MEMORY:
                return OFFSET_NOT_FOUND
        try:
            stored = await self._read_stored(queue)
        except (ReputError, OSError) as error:
            self.failure = error
            return OFFSET_NOT_FOUND if isinstance(error, BrokerError) else OFFSET_UNKNOWN
        if stored is None:
            return OFFSET_NOT_FOUND
        self._table[queue] = stored
        return stored

    async def persist(self, queue: MessageQueue) -> None:
        """Store one queue's offset, if there is one in memory."""
        if queue in self._table:
            await self._write([queue])

    async def persist_all(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets of `queues`; remove all others from memory."""
        kept = set(queues)
        for queue in [queue for queue in self._table if queue not in kept]:
            del self._table[queue]
        if self._table:
            await self._write(list(self._table))

    def remove(self, queue: MessageQueue) -> None:
        """Remove a queue from memory; the stored offset remains."""
        self._table.pop(queue, None)

    def clone(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return a copy of the table, of one topic or of all."""
        return {queue: offset for queue, offset in self._table.items() if topic in (None, queue.topic)}

    @abstractmethod
    async def _read_stored(self, queue: MessageQueue) -> int | None:
        """Return the stored offset, or None."""

    @abstractmethod
    async def _write(self, queues: list[MessageQueue]) -> None:
        """Store the offsets of `queues`."""


class RemoteOffsetStore(OffsetStore):
    """Offsets kept by the broker, for clustering groups (RocketMQ: RemoteBrokerOffsetStore).

    As there, a group without an offset reads 0 if the queue still has all its messages and they are recent.
    """

    def __init__(self, group: GroupOffsets) -> None:
        """Keep the offsets of `group`, such as a `PullConsumer`."""
        super().__init__()
        self._group = group

    async def _read_stored(self, queue: MessageQueue) -> int | None:
        return await self._group.committed(
            queue.topic, queue.queue_id, broker_name=queue.broker_name, set_zero_if_not_found=True
        )

    async def _write(self, queues: list[MessageQueue]) -> None:
        for queue in queues:
            offset = self._table[queue]
            await self._group.commit(queue.topic, queue.queue_id, offset, broker_name=queue.broker_name)


class LocalFileOffsetStore(OffsetStore):
    """Offsets kept in a local file, for broadcasting consumers (RocketMQ: LocalFileOffsetStore).

    A JSON file, replaced as a whole; the previous version is kept as `.bak` and read if the file is damaged. One
    process at a time may write it.
    """

    def __init__(
        self, path: str | Path, *, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    ) -> None:
        """Keep the offsets in the file `path`, created by the first `persist`. `in_thread` runs blocking work."""
        super().__init__()
        self.path = Path(path)
        self._in_thread = in_thread

    async def _read_stored(self, queue: MessageQueue) -> int | None:
        table: dict[MessageQueue, int] = await self._run(self._load)
        return table.get(queue)

    async def _write(self, queues: list[MessageQueue]) -> None:
        changed = {queue: self._table[queue] for queue in queues}
        await self._run(lambda: self._save(changed))

    async def _run(self, work: Callable[[], Any]) -> Any:
        if self._in_thread is not None:
            return await self._in_thread(work)
        import anyio.to_thread  # not at the top: the synchronous API imports no event loop

        return await anyio.to_thread.run_sync(work)

    def _save(self, changed: dict[MessageQueue, int]) -> None:
        table = self._load()
        table.update(changed)
        replace_file(self.path, _encode(table))

    def _load(self) -> dict[MessageQueue, int]:
        """Return the content of the file or its backup; empty if neither exists.

        Raises:
            OffsetStoreDamaged: no existing one is readable.
        """
        reasons = []
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            try:
                return _decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError) as error:
                reasons.append(f"{path.name}: {error}")
        if reasons:
            raise OffsetStoreDamaged(str(self.path), "; ".join(reasons))
        return {}


def _encode(table: dict[MessageQueue, int]) -> bytes:
    rows = [{**structs.asdict(queue), "offset": offset} for queue, offset in sorted(table.items())]
    return json.dumps({"version": _FORMAT_VERSION, "offsets": rows}, indent=1).encode()


def _decode(data: bytes) -> dict[MessageQueue, int]:
    document = json.loads(data)
    if document["version"] != _FORMAT_VERSION:
        raise ValueError(f"version {document['version']} is not known")
    return {
        MessageQueue(row["topic"], row["broker_name"], int(row["queue_id"])): int(row["offset"])
        for row in document["offsets"]
    }


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of `path`; the previous file becomes `path.bak`. Durable on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    with suppress(FileNotFoundError):
        # A link, so that the file or its backup exists at any time.
        with suppress(FileNotFoundError):
            backup.unlink()
        os.link(path, backup)
    os.replace(temporary, path)
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows, where a directory cannot be opened
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
