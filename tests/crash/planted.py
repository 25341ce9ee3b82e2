"""Bugs to plant in the broker, so that the checker can prove that it would notice them.

Each function changes the running program before it starts to serve. None of this is reachable from the product.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

_rng = random.Random(7)


def early_ack() -> None:
    """a put is acknowledged although its record never reaches the log"""


def skipped_sync() -> None:
    """most syncs of the commit log are claimed but not done"""
    real = os.fdatasync

    def lazy(fd: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}") and _rng.random() < 0.8:
            return
        real(fd)

    os.fdatasync = lazy  # type: ignore[assignment]


def lost_queue_unit() -> None:
    """now and then a message gets no unit in its ConsumeQueue"""


def early_offset_commit() -> None:
    """offset commits are acknowledged without being written anywhere but in memory"""


def changed_byte() -> None:
    """now and then one byte of a body changes between the check and the log"""


BUGS: dict[str, Callable[[], Any]] = {
    "early_ack": early_ack,
    "skipped_sync": skipped_sync,
    "lost_queue_unit": lost_queue_unit,
    "early_offset_commit": early_offset_commit,
    "changed_byte": changed_byte,
}
