"""Make the wheel from the timer log: which units of slots that are not done with belong to which second.

The whole log is read, in memory that does not grow with it: the chains are in the units, so that a slot's last unit is
all that has to be found for it, and its first and their number.
"""

from __future__ import annotations

from reput_broker.delivery.offset_set import OffsetSet
from reput_broker.delivery.timer_log import TimerLog
from reput_broker.delivery.timer_wheel import SLOT_BYTES
from reput_protocol.kernel import chain_timer_units


class WheelImage:
    """The slots of a wheel, and for whom the messages in them are."""

    def __init__(self, slots: int) -> None:
        self.slots = bytearray(slots * SLOT_BYTES)
        """As the file holds them."""
        self.waiting: dict[int, int] = {}
        """For the hash of each topic how many messages wait for it."""
        self.first_ms: int | None = None
        """The time of the first slot with a message that waits; None if none does."""
        self.consumed_ms: int | None = None
        """The time of the last slot that holds a message which was done with before its slot was; None if none does."""


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
    for position, units in log.pieces():
        first_ms, consumed_ms = chain_timer_units(
            image.slots, units, position, max(read_ms, 0), consumed.ascending, image.waiting
        )
        if first_ms >= 0:
            image.first_ms = first_ms if image.first_ms is None else min(image.first_ms, first_ms)
        if consumed_ms >= 0:
            image.consumed_ms = max(consumed_ms, image.consumed_ms or 0)
    return image
