"""Count the waiting messages of the delay levels by topic, by reading each once in the background.

For each level a mark moves along its queue, from the delivered offset to the end. Messages before it are subtracted
when they finish; messages that finish before it reaches them are never counted.
"""

from __future__ import annotations

from collections import Counter

from reput_broker.delay.levels import Level
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.store.message_store import MessageStore
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record.record import RecordView

_RECORDS_A_STEP = 64


class LevelCounts:
    """The marks of one store. One owner."""

    def __init__(
        self,
        state: DelayState,
        store: MessageStore,
        reader: RecordReader,
    ) -> None:
        self._levels = state.levels
        self._store = store
        self._reader = reader
        self._cancelled = state.cancelled
        self._stats = state.stats
        self._marks = dict.fromkeys((level.number for level in self._levels.levels), 0)
        self._counted: dict[int, Counter[str]] = {level.number: Counter() for level in self._levels.levels}

    def finished(self, topic: str, level: int, place: int) -> None:
        """Subtract a finished message if it has been counted.

        Args:
            topic: its destination.
            level, place: as in `Due`.
        """
        if level:
            if place >= self._marks[level]:
                return
            self._counted[level][topic] -= 1
        self._stats.waiting[topic] -= 1

    def recount(self, level: Level) -> None:
        """Count a level again, since the topics of its lost messages are unknown."""
        for topic, number in self._counted[level.number].items():
            self._stats.waiting[topic] -= number
        self._counted[level.number].clear()
        self._marks[level.number] = 0

    async def step(self) -> int:
        """Count some messages; return how many, 0 if all have been counted."""
        counted = 0
        for level, _ in self._levels.waiting():
            counted += await self._count(level)
        return counted

    async def _count(self, level: Level) -> int:
        mark = max(self._marks[level.number], level.next_offset)
        units = self._store.queue_units(SCHEDULE_TOPIC, level.queue_id, mark, _RECORDS_A_STEP)
        places = [(physical_offset, size) for physical_offset, size, _ in units]
        found = await self._reader.read(places)
        for number, (place, data) in enumerate(zip(places, found, strict=True), mark):
            if (
                number >= level.next_offset
                and number not in level.done_ahead
                and place[0] not in self._cancelled
            ):
                topic = None if data is None else find_property(RecordView(data, 0).properties, b"REAL_TOPIC")
                if topic is not None:
                    name = topic.decode("utf-8", "replace")
                    self._counted[level.number][name] += 1
                    self._stats.waiting[name] += 1
        self._marks[level.number] = mark + len(places)
        return len(places)
