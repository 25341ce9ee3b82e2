"""Clients that consume for a group without being its members: they pull, pop or commit, and send no heartbeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SILENT_MS: Final = 600_000
"""A connection that has asked for nothing for so long consumes no more. A worker that pops asks again when it has
finished a message; the connections of a proxy stay when its clients leave."""


class GroupReaders:
    """Open connections that have pulled, popped, acknowledged or committed, by group. Those of members are among them.

    Args:
        clock_ms: the time of day.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._asked_ms: dict[str, dict[str, int]] = {}
        self._groups: dict[str, set[str]] = {}
        self.last_asked_ms: dict[str, int] = {}
        """Of a group without an open connection: when the last one asked last, in ms since 1970."""

    def asked(self, group: str, peer: str) -> None:
        """Note a request of the connection of `peer` for an existing group."""
        peers = self._asked_ms.get(group)
        if peers is None:
            peers = self._asked_ms[group] = {}
            self.last_asked_ms.pop(group, None)
        if peer not in peers:
            self._groups.setdefault(peer, set()).add(group)
        peers[peer] = self._clock_ms()

    def gone(self, peer: str) -> None:
        """Forget a closed connection."""
        for group in self._groups.pop(peer, ()):
            self._drop(group, peer)

    def is_read(self, group: str, after_ms: int) -> bool:
        """Whether a connection consumes for a group: it has asked for something after a time in ms since 1970."""
        return any(asked_ms > after_ms for asked_ms in self._asked_ms.get(group, {}).values())

    def expire(self) -> None:
        """Forget connections that have been silent for too long."""
        since_ms = self._clock_ms() - _SILENT_MS
        for group, peers in [*self._asked_ms.items()]:
            for peer in [peer for peer, asked_ms in peers.items() if asked_ms < since_ms]:
                self._drop(group, peer)
                self._leave(group, peer)

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        for peer in self._asked_ms.pop(group, {}):
            self._leave(group, peer)
        self.last_asked_ms.pop(group, None)

    def _drop(self, group: str, peer: str) -> None:
        peers = self._asked_ms[group]
        asked_ms = peers.pop(peer)
        if not peers:
            del self._asked_ms[group]
            self.last_asked_ms[group] = asked_ms

    def _leave(self, group: str, peer: str) -> None:
        groups = self._groups[peer]
        groups.discard(group)
        if not groups:
            del self._groups[peer]
