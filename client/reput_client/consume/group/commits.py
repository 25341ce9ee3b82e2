"""Where a group's offsets are kept, and when a member's progress is committed.

At the broker, in a store of the application, or, for broadcasting, in a local file that one consumer at a time may
write (RocketMQ's LocalFileOffsetStore: any number).
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.fetcher import Fetcher
from reput_client.consume.group.membership import Membership
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.offsets import OffsetRequests
from reput_client.errors import BrokerNotFound, OffsetStoreInUse
from reput_client.offset_store import OffsetStore, ReadOffsetType
from reput_client.transport.address import Address
from reput_client.transport.background import Chore
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.record.message import MessageQueue

log = logging.getLogger("reput_client")

DIRECTORY_VARIABLE: Final = "REPUT_OFFSETS_DIR"


def offset_file(group: str, instance: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return this user's file for the offsets of `group` and `instance`."""
    base = environment.get(DIRECTORY_VARIABLE)
    directory = Path(base) if base else Path.home() / ".reput_offsets"
    return directory / instance / group / "offsets.json"


@dataclass(eq=False, repr=False)
class FileOwner:
    """Exclusive use of an offset file among all processes."""

    _path: Path
    _descriptor: int | None = field(default=None, init=False)

    def acquire(self) -> None:
        """Lock the file. Idempotent.

        Raises:
            OffsetStoreInUse: another consumer has it.
            OSError: the directory cannot be created or written to.
        """
        if self._descriptor is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            raise OffsetStoreInUse(str(self._path)) from None
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> None:
    """Lock an open file until it is closed; BlockingIOError or PermissionError if it is locked."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class CommittedOffsets(Protocol):
    """The committed offsets of one group, wherever they are stored."""

    @property
    def needs_master(self) -> bool:
        """Whether the master of a queue's broker stores its offset."""

    async def read(self, queue: MessageQueue, slave: Address | None) -> int | None:
        """Return the group's offset, or None; raises `ReputError` or `OSError` if it cannot be read.

        `slave` is where to ask if the master is away.
        """

    async def write(self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None) -> None:
        """Store an offset durably; with `increase_only` unless a higher one is stored.

        After `ReputError` or `OSError` it may or may not be stored.
        """


@dataclass(eq=False, repr=False)
class OffsetsAtBroker(CommittedOffsets):
    """Offsets at the broker (RocketMQ: RemoteBrokerOffsetStore)."""

    needs_master = True

    _offsets: OffsetRequests
    _group: str

    @override
    async def read(self, queue: MessageQueue, slave: Address | None) -> int | None:
        return await self._offsets.committed(self._group, queue, slave=slave)

    @override
    async def write(self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None) -> None:
        await self._offsets.commit(self._group, queue, offset, increase_only=increase_only, timeout_s=timeout_s)


@dataclass(eq=False, repr=False)
class OffsetsInStore(CommittedOffsets):
    """Offsets in an `OffsetStore`, such as the file of a broadcasting member."""

    needs_master = False

    _store: OffsetStore

    @override
    async def read(self, queue: MessageQueue, slave: Address | None) -> int | None:
        del slave
        offset = await self._store.read(queue, ReadOffsetType.READ_FROM_STORE)
        if offset >= 0:
            return offset
        if self._store.failure is not None:
            raise self._store.failure  # an offset may be stored nevertheless
        # Else the next write, of a lower offset, would store what is in memory again.
        self._store.remove(queue)
        return None

    @override
    async def write(self, queue: MessageQueue, offset: int, *, increase_only: bool, timeout_s: float | None) -> None:
        """What the store holds in memory decides which offset is higher."""
        del timeout_s
        self._store.update(queue, offset, increase_only=increase_only)
        await self._store.persist(queue)


class Commits(Chore):
    """Commits progress every `interval_s` and on request; a background chore.

    With an interval of 0 the caller commits each time it asks for a message.

    Attributes:
        offsets: where they are stored.
    """

    def __init__(
        self, session: Session, options: ConsumerOptions[Any], fetcher: Fetcher, membership: Membership
    ) -> None:
        self._session = session
        self._membership = membership
        self._fetcher = fetcher
        self.offsets: CommittedOffsets = OffsetsAtBroker(OffsetRequests(session), options.group)
        if options.offset_store is not None:
            self.offsets = OffsetsInStore(options.offset_store)
        self._interval_s = options.commit_interval_s
        self._committing: Event | None = None
        self._due_at = math.inf

    def begin(self) -> None:
        """Start the interval."""
        self._due_at = self._session.runtime.now() + self._interval_s if self._interval_s else math.inf

    def soon(self) -> None:
        """Commit now, so that where the group begins in a queue is stored immediately."""
        self._due_at = self._session.runtime.now()

    @override
    def next_due(self) -> float:
        return self._due_at

    @override
    async def do(self) -> None:
        self.begin()
        # Without a connection it would only delay the other chores.
        if self._session.connected:
            await self.commit_quietly(self._fetcher.queues.values())

    @property
    def each_time(self) -> bool:
        """Whether to commit whenever a message is requested."""
        return not self._interval_s

    def dirty(self) -> bool:
        """Whether there is uncommitted progress."""
        return any(assigned.confirmed and assigned.uncommitted for assigned in self._fetcher.queues.values())

    async def commit(self, queues: Iterable[AssignedQueue], timeout_s: float | None = None) -> None:
        """Commit the progress of `queues`; `timeout_s` is for each. Concurrent calls wait for each other.

        A failure at one broker does not affect queues of others.

        Raises:
            ReputError, OSError: some progress was not stored; it is kept and committed later.
        """
        while self._committing is not None:
            await self._committing.wait(math.inf)
        self._committing = committing = self._session.runtime.event()
        failure: ReputError | OSError | None = None
        silent: set[str] = set()
        try:
            for assigned in list(queues):
                # Another member may have the queue and have set its offset.
                if not assigned.confirmed or not assigned.uncommitted:
                    continue
                topic, broker_name, _ = assigned.queue
                if broker_name in silent:
                    continue
                if (
                    assigned.committed is None
                    and self.offsets.needs_master
                    and not self._membership.at_master(broker_name)
                ):
                    # A slave knew no offset. The master may know one, and it may be lower.
                    failure = failure or BrokerNotFound(broker_name, topic)
                    continue
                try:
                    await self._commit_one(assigned, timeout_s)
                except (ReputError, OSError) as error:
                    failure = failure or error
                    if not isinstance(error, BrokerError):
                        silent.add(broker_name)
        finally:
            self._committing = None
            committing.set()
        if failure is not None:
            raise failure

    async def _commit_one(self, assigned: AssignedQueue, timeout_s: float | None) -> None:
        position = assigned.progress.position
        rewound, assigned.rewound = assigned.rewound, False
        try:
            await self.offsets.write(assigned.queue, position, increase_only=not rewound, timeout_s=timeout_s)
        except BaseException:
            assigned.rewound |= rewound
            raise
        assigned.committed = position

    async def commit_quietly(self, queues: Iterable[AssignedQueue], timeout_s: float | None = None) -> None:
        """Like `commit`, but only logs failures. Progress whose master is away is kept."""
        if self.offsets.needs_master:
            queues = [assigned for assigned in queues if self._membership.at_master(assigned.queue.broker_name)]
        try:
            await self.commit(queues, timeout_s)
        except (ReputError, OSError) as error:
            log.warning("offsets not committed, trying again later: %s", error)

    def forget(self) -> None:
        """In a forked child: the committing task or thread exists in the parent only."""
        self._committing = None
        self._due_at = math.inf
