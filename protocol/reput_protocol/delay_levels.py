"""The fixed delays of RocketMQ's delay levels, and what they make of a ConsumeQueue unit.

(RocketMQ: DefaultMessageStore, ScheduleMessageService.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

DELAY_LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""Level 1 is the first; the broker parks a message of level n in queue n - 1 of `SCHEDULE_TOPIC_XXXX`."""


_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays, in ms, that RocketMQ's option messageDelayLevel lists: `1s 5s 10m 2h`.

    (RocketMQ: ScheduleMessageService.parseDelayLevel.)

    Raises:
        ValueError: naming what is no delay.
    """
    delays: list[int] = []
    for word in text.split():
        count, unit = word[:-1], word[-1]
        if unit not in _UNITS_MS or not (count.isascii() and count.isdecimal() and 0 < int(count) < 1 << 31):
            raise ValueError(f"{word!r} is no delay: write a number and s, m, h or d, such as 1s 5s 10m 2h")
        delays.append(int(count) * _UNITS_MS[unit])
    if not delays:
        raise ValueError(
            "there is no delay in it: write a number and s, m, h or d for each, such as 1s 5s 10m 2h"
        )
    return tuple(delays)


def deliver_time(delay: bytes | None, store_timestamp_ms: int, levels_ms: Sequence[int]) -> int | None:
    """Return when a parked message with the property `DELAY` is due, in ms; None without a level above 0.

    A level beyond the table counts as its last one. Text that is no number counts as no level.
    """
    if not delay or not delay.isdigit() or len(delay) > 10:
        return None
    level = min(int(delay), len(levels_ms))
    if level <= 0:
        return None
    # Wraps as Java's does: a damaged timestamp must not be one that a unit's 64 bits cannot hold.
    return (store_timestamp_ms + levels_ms[level - 1] + (1 << 63)) % (1 << 64) - (1 << 63)
