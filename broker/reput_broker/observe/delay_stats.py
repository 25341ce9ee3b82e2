"""What the schedule counts: how many messages wait, were delivered, cancelled or dropped, and how late they were."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final

from reput_broker.observe.counters import Histogram

DELAY_ERROR_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0)
UNKNOWN_TOPIC = "unknown"
"""Stands for a topic of which only a hash is known."""
DROP_REASONS = ("no_topic", "lost", "unreadable", "refused")
"""Why a parked message was not delivered: its topic has been deleted; its record has left the log or is damaged; it
does not say where it goes; the store does not take it."""

_DROPPED_MAX: Final = 65_536


class DelayStats:
    """Plain numbers. One owner: the event loop."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        """Messages that wait, by the topic that they are for; complete a while after the start."""
        self.delivered: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.dropped: dict[str, int] = dict.fromkeys(DROP_REASONS, 0)
        self.dropped_places: OrderedDict[int, None] = OrderedDict()
        """Log offsets of the parked records that were dropped last in this run: they were not delivered."""
        self.rolled = 0
        """Messages parked anew on their way."""
        self.error_seconds = Histogram(DELAY_ERROR_SECONDS)
        """Delivered minus due."""

    def note_dropped(self, reason: str, physical_offset: int) -> None:
        """Count a message that is not delivered and never will be."""
        self.dropped[reason] += 1
        self.dropped_places[physical_offset] = None
        if len(self.dropped_places) > _DROPPED_MAX:
            self.dropped_places.popitem(last=False)

    def topics(self) -> list[str]:
        """Return the topics that there are numbers of."""
        return sorted({*(t for t, n in self.waiting.items() if n), *self.delivered, *self.cancelled})
