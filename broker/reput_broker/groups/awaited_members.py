"""Members of groups that a new master knows from the one before, until they have connected to it.

Each member computes its queues from the list of members. A list with only those that have come already would give them
the queues of the others, which still consume them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

AWAITED_S: Final = 30.0
"""How long a member is awaited: RocketMQ's clients send their heartbeats so often."""


class AwaitedMembers:
    """The client ids that are awaited, by group."""

    def __init__(self) -> None:
        self._groups: dict[str, set[str]] = {}
        self._until = 0.0

    def expect(self, groups: Mapping[str, Iterable[str]], until: float) -> None:
        """Await these members until a time, in the clock of `expired`."""
        self._groups = {group: set(client_ids) for group, client_ids in groups.items()}
        self._until = until

    def of(self, group: str) -> set[str]:
        """Return the client ids that a group still awaits."""
        return self._groups.get(group, set())

    def came(self, group: str, client_id: str) -> None:
        """Note that a member has come, or has left for good."""
        self.of(group).discard(client_id)

    def forget_group(self, group: str) -> None:
        """Await no member of a group."""
        self._groups.pop(group, None)

    def expired(self, now: float) -> list[str]:
        """Return the groups whose other members do not have to be awaited any more; each once."""
        if now < self._until or not self._groups:
            return []
        groups, self._groups = self._groups, {}
        return [group for group, client_ids in groups.items() if client_ids]
