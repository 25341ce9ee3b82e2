"""How far each group is, how many messages it has not consumed, the age of the oldest of them, and since when it is
that one.

What was delivered, and when a group committed, is for monitoring, in memory only, and unknown after a restart until
members pull and commit again. (RocketMQ keeps only the pull offsets: ConsumerOffsetManager.pullOffsetTable.)

Finding the oldest message reads the store for each queue that is behind, so a background task does it every
`groups.lag_refresh_interval`, and not a metrics scrape. A queue whose group has not advanced is not read again, since
the message at an offset never changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import Extent, GetStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_protocol.errors import ReputError
from reput_protocol.names import is_system_group
from reput_protocol.record.layout import STORE_TIME_BYTES, store_timestamp_at

log = structlog.get_logger(__name__)

_QUEUES_A_STEP = 64
_READS_AT_ONCE = 2

QueuePlace = tuple[str, str, int]
"""Group, topic, queue id."""


class QueueProgress:
    """One group in one queue.

    `first_offset` is where the group pulled first, `pull_offset` the next offset that it will pull, both -1 before its
    first pull; `peer` is the connection that pulled last; `committed_at_ms` is the time of the last commit, 0 before
    the first.
    """

    __slots__ = ("committed_at_ms", "first_offset", "peer", "pull_offset")

    def __init__(self) -> None:
        self.first_offset = self.pull_offset = -1
        self.peer = ""
        self.committed_at_ms = 0


_NONE: Final[Mapping[int, QueueProgress]] = {}


class GroupProgress:
    """All groups in all queues. Only for existing groups and queues: the table grows with every name."""

    def __init__(self) -> None:
        self._table: defaultdict[tuple[str, str], defaultdict[int, QueueProgress]]
        self._table = defaultdict(lambda: defaultdict(QueueProgress))

    def pulled(self, group: str, topic: str, queue_id: int, offset: int, next_offset: int, peer: str) -> int:
        """Record a pull at `offset`, and where the member pulls next; return how many messages it pulls again."""
        progress = self._table[group, topic][queue_id]
        before = progress.pull_offset
        if before < 0:
            progress.first_offset = before = offset
        progress.pull_offset = next_offset
        progress.peer = peer
        return max(0, min(before, next_offset) - offset)

    def committed(self, group: str, topic: str, queue_id: int, now_ms: int) -> None:
        """Record a commit."""
        self._table[group, topic][queue_id].committed_at_ms = now_ms

    def get(self, group: str, topic: str, queue_id: int) -> QueueProgress | None:
        """Return a group's progress in a queue, if known."""
        queues = self._table.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def items(self) -> Iterator[tuple[str, str, Mapping[int, QueueProgress]]]:
        """Iterate over (group, topic, queue id -> progress); concurrent changes may or may not be
        seen."""
        for (group, topic), queues in list(self._table.items()):
            yield group, topic, queues

    def of_topic(self, group: str, topic: str) -> Mapping[int, QueueProgress]:
        """Return a group's progress in a topic by queue, as far as known."""
        return self._table.get((group, topic), _NONE)

    def forget_queues(self, group: str, topic: str, queue_ids: Iterable[int]) -> None:
        """Forget the progress of queues whose offsets were reset."""
        queues: dict[int, QueueProgress] = self._table.get((group, topic), {})
        for queue_id in queue_ids:
            queues.pop(queue_id, None)

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        for key in [key for key in self._table if key[0] == group]:
            del self._table[key]

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for key in [key for key in self._table if key[1] == topic]:
            del self._table[key]


@dataclass(eq=False, repr=False)
class GroupPositions:
    """Where each group is in each queue: its committed offset, or where the members that are online have pulled first.

    A member that hangs in its first message has committed nothing, and would not be seen without the latter. Groups
    that broadcast keep their offsets themselves.
    """

    _offsets: ConsumerOffsetManager
    _progress: GroupProgress
    _online: ConsumerGroups

    def items(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """Iterate over (group, topic, queue id -> offset), as `ConsumerOffsetManager.items`."""
        seen = set()
        for group, topic, queues in self._offsets.items():
            seen.add((group, topic))
            yield group, topic, {**self._pulled(group, topic), **queues}
        for group, topic, _ in self._progress.items():
            if (group, topic) not in seen and (pulled := self._pulled(group, topic)):
                yield group, topic, pulled

    def for_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return the positions of `group`: topic -> queue id -> offset."""
        found = self._offsets.for_group(group)
        online = self._online.get(group)
        for topic in () if online is None else online.subscriptions:
            if pulled := self._pulled(group, topic):
                found[topic] = {**pulled, **found.get(topic, {})}
        return found

    def _pulled(self, group: str, topic: str) -> dict[int, int]:
        online = self._online.get(group)
        if online is None or online.is_broadcasting or topic not in online.subscriptions:
            return {}
        return {
            queue_id: progress.first_offset
            for queue_id, progress in self._progress.of_topic(group, topic).items()
            if progress.first_offset >= 0
        }


class Unconsumed(NamedTuple):
    """The oldest message of a queue that a group has not committed; `seen_ms` is when it was looked up first."""

    offset: int
    store_timestamp_ms: int
    seen_ms: int


class GroupLag(NamedTuple):
    """The messages that a group has not committed, in all of its queues, and the age of the oldest."""

    messages: int
    age_s: float


_NO_LAG = GroupLag(0, 0.0)


class LagFigures:
    """The results of the last refresh."""

    def __init__(self) -> None:
        self.oldest: dict[QueuePlace, Unconsumed] = {}
        self.seconds: dict[tuple[str, str], float] = {}
        """By group and topic: the age of the oldest uncommitted message, 0 if there is none."""
        self.of_group: dict[str, GroupLag] = {}
        self.all_of_users = GroupLag(0, 0.0)
        """Of all groups but the system's."""
        self.looked_up_at_s = 0.0

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        self.oldest = {place: found for place, found in self.oldest.items() if place[0] != group}
        self.seconds = {key: age for key, age in self.seconds.items() if key[0] != group}
        self.of_group.pop(group, None)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic: a new one of that name has other messages at the same offsets."""
        self.oldest = {place: found for place, found in self.oldest.items() if place[1] != topic}
        self.seconds = {key: age for key, age in self.seconds.items() if key[1] != topic}


class StoreTimes:
    """Looks up store times of single messages without blocking the event loop.

    Records outside the page cache are read in a worker thread, because a page fault would stop every task.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._cold_reads = trio.CapacityLimiter(_READS_AT_ONCE)

    async def at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of a message in milliseconds, -1 if there is no such message."""
        store = self._store
        if store.is_in_memory(topic, queue_id, offset):
            return store.store_timestamp(topic, queue_id, offset)
        found = store.get_message(topic, queue_id, offset, 1, 1)
        if found.status is not GetStatus.FOUND:
            return -1
        physical_offset, size = found.extents[0]
        try:
            held = store.hold_extents([Extent(physical_offset, min(size, STORE_TIME_BYTES))])
        except FileMissing:
            return -1

        def read() -> bytes:
            with held:
                return held.read()

        try:
            head = await trio.to_thread.run_sync(read, limiter=self._cold_reads)
        finally:
            held.release()
        return store_timestamp_at(head)


class LagService:
    """Keeps the figures up to date."""

    def __init__(
        self, store: MessageStore, positions: GroupPositions, times: StoreTimes, *, clock_ms: Callable[[], int]
    ) -> None:
        self.figures = LagFigures()
        self._store = store
        self._positions = positions
        self._times = times
        self._clock_ms = clock_ms

    async def refresh(self) -> None:
        """Look up every queue in which a group has a position."""
        oldest: dict[QueuePlace, Unconsumed] = {}
        seconds: dict[tuple[str, str], float] = {}
        of_group: dict[str, GroupLag] = {}
        looked = 0
        for group, topic, queues in self._positions.items():
            first_ms: int | None = None
            messages = 0
            for queue_id, committed in list(queues.items()):
                found = await self._unconsumed(group, topic, queue_id, committed)
                if found is not None:
                    oldest[group, topic, queue_id] = found
                    stored_ms = found.store_timestamp_ms
                    first_ms = stored_ms if first_ms is None else min(first_ms, stored_ms)
                messages += self._behind(topic, queue_id, committed)
                looked += 1
                if looked % _QUEUES_A_STEP == 0:
                    await trio.lowlevel.checkpoint()
            age_ms = 0 if first_ms is None else max(0, self._clock_ms() - first_ms)
            seconds[group, topic] = age_ms / 1000
            before = of_group.get(group, _NO_LAG)
            of_group[group] = GroupLag(before.messages + messages, max(before.age_s, age_ms / 1000))
        figures = self.figures
        figures.oldest, figures.seconds, figures.of_group = oldest, seconds, of_group
        of_users = [lag for group, lag in of_group.items() if not is_system_group(group)]
        figures.all_of_users = GroupLag(
            sum(lag.messages for lag in of_users), max((lag.age_s for lag in of_users), default=0.0)
        )
        figures.looked_up_at_s = self._clock_ms() / 1000

    def _behind(self, topic: str, queue_id: int, committed: int) -> int:
        offset = max(committed, self._store.min_offset_in_queue(topic, queue_id))
        return max(0, self._store.max_offset_in_queue(topic, queue_id) - offset)

    async def _unconsumed(self, group: str, topic: str, queue_id: int, committed: int) -> Unconsumed | None:
        store = self._store
        offset = max(committed, store.min_offset_in_queue(topic, queue_id))
        if offset >= store.max_offset_in_queue(topic, queue_id):
            return None
        known = self.figures.oldest.get((group, topic, queue_id))
        if known is not None and known.offset == offset:
            return known
        try:
            timestamp_ms = await self._times.at(topic, queue_id, offset)
        except ReputError as error:
            # An unreadable queue must not hide the lag of the others.
            log.warning("lag_unknown", topic=topic, queue_id=queue_id, offset=offset, detail=str(error))
            return None
        if timestamp_ms < 0:
            return None
        return Unconsumed(offset, timestamp_ms, self._clock_ms())
