"""The age of the oldest message that each group has not consumed, and since when it is that one.

Finding it reads the store for each queue that is behind, so a background task does it every
`groups.lag_refresh_interval`, and not a metrics scrape. A queue whose group has not advanced is not read again, since
the message at an offset never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import structlog
import trio

from reput_broker.groups.progress import GroupPositions
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import Extent, GetStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError
from reput_protocol.names import is_system_group
from reput_protocol.record.layout import STORE_TIME_BYTES, store_timestamp_at

log = structlog.get_logger(__name__)

_QUEUES_A_STEP = 64
_READS_AT_ONCE = 2

QueuePlace = tuple[str, str, int]
"""Group, topic, queue id."""


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
        self,
        store: MessageStore,
        positions: GroupPositions,
        times: StoreTimes,
        *,
        clock_ms: Callable[[], int],
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
