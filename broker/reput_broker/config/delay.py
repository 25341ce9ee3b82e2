"""The options of delayed messages."""

from __future__ import annotations

from reput_broker.config.section import Section, option
from reput_broker.config.units import Duration, Size

_DAY = 86_400.0
_MIB = 1 << 20


class DelayConfig(Section):
    """Messages for later."""

    timer_wheel: bool = option(
        True, "take messages with a deliver time of their own, not only with a delay level", live=True
    )
    timer_max_delay: Duration = option(
        3 * _DAY, "how far ahead such a time may lie", live=True, ge=1.0, le=366 * _DAY
    )
    timer_log_file_size: Size = option(
        100 * _MIB,
        "size of one file of the timer log, 52 bytes a message; fixed once a store has one",
        ge=4096,
        le=(1 << 31) - 1,
    )
    flush_interval: Duration = option(
        1.0,
        "time between two looks whether the schedule's progress should be saved",
        live=True,
        ge=0.01,
        le=600.0,
    )
