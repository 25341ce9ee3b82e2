"""The history of a simulation, in memory, in the form that the judges of `tests/histories` read."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from histories.history import Event
from simulation.scheduling import current_process

ITS_GROUP: Final = "*"
"""Stands for the group of the member that writes an event down."""


class History:
    """Takes events down; those of killed processes are not."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.groups: dict[str, str] = {}
        self._disturbances: set[str] = set()

    def note(self, what: str, **facts: Any) -> float:
        """Write an event of the current process down; return its time."""
        at = time.monotonic()
        process = current_process()
        if process is not None and process.is_killed:
            return at
        who = "runner" if process is None else process.name
        if facts.get("group") == ITS_GROUP:
            facts["group"] = self.groups[who]
        self.events.append(Event(round(at, 6), who, what, facts))
        return at

    def disturb(self, name: str, how: str) -> None:
        """Clients may notice from now on that the broker, or the way to it, is disturbed."""
        if not self._disturbances:
            self.note("broker-down", how=how)
        self._disturbances.add(name)
        self.note("fault", name=name, how=how)

    def calm(self, name: str) -> None:
        """A disturbance has no effects any more."""
        if name in self._disturbances:
            self._disturbances.remove(name)
            if not self._disturbances:
                self.note("broker-up")

    def text(self) -> str:
        """Return all events, one JSON object a line."""
        return "".join(
            json.dumps({"at": event.at, "who": event.who, "what": event.what, **event.facts}) + "\n"
            for event in self.events
        )
