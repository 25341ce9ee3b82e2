"""Make the wheel from the timer log: which units of slots that are not done with belong to which second.

The whole log is read, in memory that does not grow with it: the chains are in the units, so that a slot's last unit is
all that has to be found for it, and its first and their number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reput_broker.delivery.offset_set import OffsetSet
from reput_broker.delivery.timer_log import TimerLog, Units, slots_of
from reput_broker.delivery.timer_unit import MAGIC_DELETE, NO_POSITION
from reput_broker.delivery.timer_wheel import PRECISION_MS, SLOT_DTYPE


class WheelImage:
    """The slots of a wheel, and for whom the messages in them are."""

    def __init__(self, slots: int) -> None:
        self.slots: NDArray[np.void] = np.zeros(slots, SLOT_DTYPE)
        """As the file holds them; `last` is -1 where there is no chain."""
        self.slots["first"] = self.slots["last"] = NO_POSITION
        self.waiting: dict[int, int] = {}
        """For the hash of each topic how many messages wait for it."""
        self.first_ms: int | None = None
        """The time of the first slot with a message that waits; None if none does."""
        self.consumed_ms: int | None = None
        """The time of the last slot that holds a message which was done with before its slot was; None if none does."""

    def take(self, positions: NDArray[np.int64], units: Units) -> None:
        """Put units into their slots; later ones come later."""
        seconds = slots_of(units) // PRECISION_MS
        index = seconds % len(self.slots)
        first_of, at = np.unique(index, return_index=True)
        new = self.slots["last"][first_of] < 0
        self.slots["first"][first_of[new]] = positions[at[new]]
        self.slots["second"][index] = seconds
        self.slots["last"][index] = positions
        signs = np.where(units["magic"] & MAGIC_DELETE, -1, 1)
        np.add.at(self.slots["number"], index, signs)
        hashes, which = np.unique(units["topic_hash"].astype(np.int64), return_inverse=True)
        for topic_hash, number in zip(hashes.tolist(), np.bincount(which, signs).tolist(), strict=True):
            self.waiting[topic_hash] = self.waiting.get(topic_hash, 0) + int(number)
        first_ms = int(seconds.min()) * PRECISION_MS
        self.first_ms = first_ms if self.first_ms is None else min(self.first_ms, first_ms)


def image_of(log: TimerLog, slots: int, read_ms: int, consumed: OffsetSet) -> WheelImage:
    """Return the wheel that a timer log makes. Blocks.

    Args:
        log: what to read.
        slots: of the wheel.
        read_ms: slots before this time are done with.
        consumed: log offsets of parked records that have been delivered, parked anew or cancelled. Their units stay in
            their chains and count for nothing.
    """
    image = WheelImage(slots)
    done = consumed.array()
    for positions, units in log.columns():
        slots_ms = slots_of(units)
        ahead = slots_ms >= read_ms
        if len(done):
            is_done = np.isin(units["physical_offset"].astype(np.int64), done) & ahead
            if is_done.any():
                last = int(slots_ms[is_done].max())
                image.consumed_ms = max(last, image.consumed_ms or last)
            ahead &= ~is_done
        if ahead.any():
            image.take(positions[ahead], units[ahead])
    return image
