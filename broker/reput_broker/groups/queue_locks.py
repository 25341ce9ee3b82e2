"""Locks of queues for ordered consumers (RocketMQ: RebalanceLockManager).

A lock belongs to a client id in a group and lasts for `groups.lock_timeout` from its last renewal, whatever happens to
the connection: a member that has died may still be handling messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from reput_broker.config.sections import GroupsConfig
from reput_broker.remoting.request import Refusal
from reput_protocol.errors import ErrorCode

QueueKey = tuple[str, int]
"""Topic and queue id."""


@dataclass(slots=True)
class QueueLock:
    """One lock: its client id, and when it expires, in seconds of the table's clock."""

    client_id: str
    expires_at: float


@dataclass(eq=False, repr=False)
class QueueLocks:
    """The locks of all groups. Only for existing groups and queues: the table grows with every name."""

    _options: GroupsConfig
    _clock: Callable[[], float]
    _locks: dict[str, dict[QueueKey, QueueLock]] = field(default_factory=dict, init=False)
    _count: int = field(default=0, init=False)

    @property
    def lifetime_s(self) -> float:
        """How long a lock lasts without renewal."""
        return self._options.lock_timeout

    def lock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> list[QueueKey]:
        """Lock queues for a member, or renew its locks; return those that it holds now.

        Raises:
            Refusal: there are `groups.locks_max` locks, and the member holds none of these queues.
        """
        now = self._clock()
        expires_at = now + self.lifetime_s
        locks = self._locks.setdefault(group, {})
        owned = []
        room = self._options.locks_max - len(self)
        is_full = False
        for queue in queues:
            held = locks.get(queue)
            if held is None:
                if room <= 0:
                    is_full = True
                    continue
                room -= 1
                self._count += 1
                locks[queue] = QueueLock(client_id, expires_at)
            elif held.client_id == client_id or held.expires_at <= now:
                held.client_id, held.expires_at = client_id, expires_at
            else:
                continue
            owned.append(queue)
        self._tidy(group)
        if is_full and not owned:
            raise Refusal(
                ErrorCode.BUSY,
                f"all groups together hold {len(self)} locks of queues (groups.locks_max); lock again once others have "
                "released some, or raise the option",
            )
        return owned

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Release a member's locks; those of others remain."""
        locks = self._locks.get(group, {})
        self._drop(group, [queue for queue in queues if queue in locks and locks[queue].client_id == client_id])

    def unlock_all(self, group: str, client_id: str) -> int:
        """Release all locks of a member of a group; return how many there were."""
        locks = self._locks.get(group, {})
        own = [queue for queue, held in locks.items() if held.client_id == client_id]
        self.unlock(group, client_id, own)
        return len(own)

    def owner(self, group: str, queue: QueueKey) -> str | None:
        """Return the client id that holds a queue's lock; None if there is none that has not expired."""
        held = self._locks.get(group, {}).get(queue)
        return None if held is None or held.expires_at <= self._clock() else held.client_id

    def has_locks(self, group: str) -> bool:
        """Whether a group holds a lock that has not expired, which means that it consumes in order."""
        now = self._clock()
        return any(held.expires_at > now for held in self._locks.get(group, {}).values())

    def forget_group(self, group: str) -> None:
        """Remove the locks of a deleted group."""
        self._count -= len(self._locks.pop(group, ()))

    def forget_topic(self, topic: str) -> None:
        """Remove all locks of a deleted topic."""
        for group in list(self._locks):
            self._drop(group, [queue for queue in self._locks[group] if queue[0] == topic])

    def expire(self) -> None:
        """Remove expired locks, to free their memory."""
        now = self._clock()
        for group in list(self._locks):
            locks = self._locks[group]
            self._drop(group, [queue for queue, held in locks.items() if held.expires_at <= now])

    def __len__(self) -> int:
        return self._count

    def _drop(self, group: str, queues: Iterable[QueueKey]) -> None:
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.pop(queue, None) is not None:
                self._count -= 1
        self._tidy(group)

    def _tidy(self, group: str) -> None:
        if group in self._locks and not self._locks[group]:
            del self._locks[group]
