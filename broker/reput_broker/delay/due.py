"""One parked message whose time has come, or comes soon, as the schedule hands it to delivery."""

from __future__ import annotations

from typing import NamedTuple


class Due(NamedTuple):
    """A parked message and when it fires. The order is that of delivery: by time, then by age."""

    due_ms: int
    """The message's own deliver time; of one that rolls, its slot's."""
    physical_offset: int
    """Where the parked record lies in the log: what tells it from every other."""
    size: int
    level: int
    """The delay level, 0 for a time of its own."""
    place: int
    """Queue offset in the queue of its level; or the time of its slot in the wheel."""
    rolls: bool = False
    """Whether it is parked anew instead of delivered: its own time is further ahead than the wheel looks."""
