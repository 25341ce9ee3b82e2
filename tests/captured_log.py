"""The broker's log of a test, as events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reput_broker.observe.log import Event, log


@contextmanager
def captured_log(output: Callable[[Event], None] | None = None) -> Iterator[list[Event]]:
    """Yield the list to which every event is added, of any level, or pass each to `output`; nothing is written."""
    events: list[Event] = []
    before = log.output, log.level
    log.output, log.level = output or events.append, "debug"
    try:
        yield events
    finally:
        log.output, log.level = before
