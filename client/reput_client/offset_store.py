"""Where a group's progress is kept: with the broker, or in a local file (RocketMQ: OffsetStore).

Both keep a table in memory that `update` changes and `persist` writes down. `read` answers the two ways in which
there is no offset by numbers, as RocketMQ's clients do: -1 when none is kept or the broker answers with an error, -2
when no answer came or the file cannot be read.
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
    """What a remote store asks: a group's offsets at the brokers. `PullConsumer` is one."""

    async def committed(
        self, topic: str, queue_id: int, *, broker_name: str | None, set_zero_if_not_found: bool
    ) -> int | None:
        """Return the committed offset, or None."""

    async def commit(self, topic: str, queue_id: int, offset: int, *, broker_name: str | None) -> None:
        """Commit an offset."""


class OffsetStore(ABC):
    """The table in memory, and what both kinds of store have in common.

    Attributes:
        failure: the error because of which the last `read` answered -1 or -2; None if there simply is no offset.
    """

    def __init__(self) -> None:
        self._table: dict[MessageQueue, int] = {}
        self.failure: Exception | None = None

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        """Keep `offset` in memory; with `increase_only` a lower one than the known is ignored."""
        if increase_only and offset <= self._table.get(queue, OFFSET_NOT_FOUND):
            return
        self._table[queue] = offset

    async def read(self, queue: MessageQueue, kind: ReadOffsetType) -> int:
        """Return the queue's offset; -1 if none is kept or the broker refuses to tell, -2 if no answer came.

        `failure` tells these apart, and says why.

        What is read from the store is kept in memory.
        """
        if kind is not ReadOffsetType.READ_FROM_STORE:
            offset = self._table.get(queue)
            if offset is not None:
                return offset
            if kind is ReadOffsetType.READ_FROM_MEMORY:
                return OFFSET_NOT_FOUND
        self.failure = None
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
        """Write one queue's offset down; nothing if there is none in memory."""
        if queue in self._table:
            await self._write([queue])

    async def persist_all(self, queues: Iterable[MessageQueue]) -> None:
        """Write the offsets of `queues` down and forget those of all others in memory."""
        kept = set(queues)
        for queue in [queue for queue in self._table if queue not in kept]:
            del self._table[queue]
        if self._table:
            await self._write(list(self._table))

    def remove(self, queue: MessageQueue) -> None:
        """Forget a queue in memory; what is stored stays."""
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
    """Offsets kept by the broker, for a group whose members share the work (RocketMQ: RemoteBrokerOffsetStore).

    As there, a group that has committed nothing reads 0 where the queue still has all its messages and they are recent.
    """

    def __init__(self, group: GroupOffsets) -> None:
        """Keep the offsets of `group`, for instance a `PullConsumer`."""
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
    """Offsets kept in a file of this machine, for readers that each read everything (RocketMQ: broadcasting).

    The file is JSON, replaced whole, with the previous version next to it as `.bak`, which is read when the file
    itself is damaged. One process at a time may write it.
    """

    def __init__(
        self, path: str | Path, *, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
    ) -> None:
        """Keep the offsets in the file `path`, made at the first `persist`. `in_thread` runs blocking work."""
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
        import anyio.to_thread  # not at the top: the blocking API loads no event loop

        return await anyio.to_thread.run_sync(work)

    def _save(self, changed: dict[MessageQueue, int]) -> None:
        table = self._load()
        table.update(changed)
        replace_file(self.path, _encode(table))

    def _load(self) -> dict[MessageQueue, int]:
        """Return what the file holds, or its backup; empty when there is neither.

        Raises:
            OffsetStoreDamaged: there is one, and none can be read.
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
    """Make `data` the content of `path`; what it held before becomes `path.bak`. Durable when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    backup = path.with_name(path.name + ".bak")
    with suppress(FileNotFoundError):
        # A link first: at no moment is there neither the file nor its backup.
        with suppress(FileNotFoundError):
            backup.unlink()
        os.link(path, backup)
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
