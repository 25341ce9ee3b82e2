"""Committing: where a group's offsets are kept, and when the progress of a member is written there.

They are kept by the broker, in a store that the application gave, or, where members broadcast, in a file of
this machine that one consumer at a time may write. (RocketMQ: LocalFileOffsetStore keeps
`~/.rocketmq_offsets/<ip@instance>/<group>/offsets.json`, for any number of writers.)
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from reput_client.consume.group.assigned import AssignedQueue
from reput_client.consume.group.fetching import Fetcher
from reput_client.consume.offsets import OffsetRequests
from reput_client.errors import OffsetStoreInUse
from reput_client.offset_store import OffsetStore, ReadOffsetType
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.record.message import MessageQueue

log = logging.getLogger("reput_client")

DIRECTORY_VARIABLE: Final = "REPUT_OFFSETS_DIR"


def offset_file(group: str, instance: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where `instance` keeps the offsets of `group` on this machine, for this user."""
    base = environment.get(DIRECTORY_VARIABLE)
    directory = Path(base) if base else Path.home() / ".reput_offsets"
    return directory / instance / group / "offsets.json"


class FileOwner:
    """Keeps others from writing an offset file, in this process and in others, from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the file for us; twice does no harm.

        Raises:
            OffsetStoreInUse: another consumer has it.
            OSError: the directory cannot be made or written to.
        """
        if self._descriptor is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise OffsetStoreInUse(str(self._path)) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Leave the file to others."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class KeptOffsets(Protocol):
    """The offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the group's offset, or None if it has none.

        Raises:
            ReputError, OSError: it could not be found out.
        """

    async def write(
        self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None
    ) -> None:
        """Keep an offset, durably; with `increase_only` not if a higher one is kept.

        Raises:
            ReputError, OSError: it may or may not be kept.
        """


class BrokerOffsets:
    """Offsets with the broker, for members that share the work (RocketMQ: RemoteBrokerOffsetStore)."""

    def __init__(self, offsets: OffsetRequests, group: str) -> None:
        self._offsets = offsets
        self._group = group

    async def read(self, queue: MessageQueue) -> int | None:
        """See `KeptOffsets`."""
        return await self._offsets.committed(self._group, queue)

    async def write(
        self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None
    ) -> None:
        """See `KeptOffsets`."""
        await self._offsets.commit(
            self._group, queue, offset, increase_only=increase_only, timeout_s=timeout_s
        )


class StoredOffsets:
    """Offsets in an `OffsetStore`, such as a file of each member that reads everything."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store

    async def read(self, queue: MessageQueue) -> int | None:
        """See `KeptOffsets`."""
        offset = await self._store.read(queue, ReadOffsetType.READ_FROM_STORE)
        if offset >= 0:
            return offset
        if self._store.failure is not None:
            raise self._store.failure  # there may be one all the same
        return None

    async def write(
        self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None
    ) -> None:
        """See `KeptOffsets`. A store of one's own knows no other member that could be further."""
        del increase_only, timeout_s
        self._store.update(queue, offset)
        await self._store.persist(queue)


class Commits:
    """Commits what is handled, every `interval_s` and when it is asked to; a chore of the background.

    With an interval of 0 the caller commits each time that it asks for a message.
    """

    def __init__(self, session: Session, fetcher: Fetcher, kept: KeptOffsets, interval_s: float) -> None:
        self._session = session
        self._fetcher = fetcher
        self._kept = kept
        self._interval_s = interval_s
        self._turn: Event | None = None
        self._due_at = math.inf

    def begin(self) -> None:
        """From now on commits fall due."""
        self._due_at = self._session.runtime.now() + self._interval_s if self._interval_s else math.inf

    def soon(self) -> None:
        """There is something that should not wait for its turn: where the group begins in a queue."""
        self._due_at = self._session.runtime.now()

    def next_due(self) -> float:
        """See `Chore`."""
        return self._due_at

    async def do(self) -> None:
        """See `Chore`."""
        self.begin()
        # Without a connection it would only hold up what comes after it.
        if self._session.connected:
            await self.commit_quietly(self._fetcher.queues.values())

    @property
    def each_time(self) -> bool:
        """Whether to commit whenever a message is asked for."""
        return not self._interval_s

    def dirty(self) -> bool:
        """Whether there is progress that no commit has told."""
        return any(assigned.confirmed and assigned.uncommitted for assigned in self._fetcher.queues.values())

    async def commit(self, queues: Iterable[AssignedQueue], timeout_s: float | None = None) -> None:
        """Commit the progress of `queues`, one caller at a time; each may take `timeout_s`.

        What fails holds up no queue of another broker.

        Raises:
            ReputError, OSError: the store could not take all of it; that progress is kept and committed later.
        """
        while self._turn is not None:
            await self._turn.wait(math.inf)
        self._turn = turn = self._session.runtime.event()
        failure: ReputError | OSError | None = None
        silent: set[str] = set()
        try:
            for assigned in list(queues):
                # What is not known to be ours may have been set further, or back, by another member.
                if not assigned.confirmed or not assigned.uncommitted:
                    continue
                if assigned.queue.broker_name in silent:
                    continue
                try:
                    await self._commit_one(assigned, timeout_s)
                except (ReputError, OSError) as error:
                    failure = failure or error
                    if not isinstance(error, BrokerError):
                        silent.add(assigned.queue.broker_name)
        finally:
            self._turn = None
            turn.set()
        if failure is not None:
            raise failure

    async def _commit_one(self, assigned: AssignedQueue, timeout_s: float | None) -> None:
        position = assigned.progress.position
        rewound, assigned.rewound = assigned.rewound, False
        try:
            await self._kept.write(assigned.queue, position, increase_only=not rewound, timeout_s=timeout_s)
        except BaseException:
            assigned.rewound |= rewound
            raise
        assigned.committed = position

    async def commit_quietly(self, queues: Iterable[AssignedQueue], timeout_s: float | None = None) -> None:
        """As `commit`, but a failure is only logged."""
        try:
            await self.commit(queues, timeout_s)
        except (ReputError, OSError) as error:
            log.warning("offsets not committed, trying again later: %s", error)

    def forget(self) -> None:
        """In a forked child: the task or thread that was committing is in the parent."""
        self._turn = None
        self._due_at = math.inf
