"""The producers of each producer group (RocketMQ: ProducerManager), which transactions are checked
with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reput_broker.groups.client_table import ClientChannel

ENTRY_BYTES: Final = 512
"""Approximate size of a client's group without its name."""


def size_of(group: str) -> int:
    """Return approximately how many bytes a client of a producer group takes."""
    return ENTRY_BYTES + len(group)


class _Producers:
    __slots__ = ("last_heard", "name", "next")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last_heard: dict[ClientChannel, float] = {}
        self.next = 0


class ProducerGroups:
    """The clients of each producer group."""

    def __init__(self) -> None:
        self._groups: dict[str, _Producers] = {}
        self.held_bytes = 0
        """Approximate size of all producers."""

    def register(self, group: str, channel: ClientChannel, now: float) -> None:
        """Record a heartbeat of a producer."""
        producers = self._groups.get(group)
        if producers is None:
            producers = self._groups[group] = _Producers(group)
        if channel not in producers.last_heard:
            size = channel.producer_groups[producers.name] = size_of(group)
            self.held_bytes += size
        producers.last_heard[channel] = now

    def unregister(self, group: str, channel: ClientChannel) -> None:
        """Remove a producer; it need not be registered."""
        producers = self._groups.get(group)
        if producers is not None and producers.last_heard.pop(channel, None) is not None:
            self.held_bytes -= channel.producer_groups.pop(group)
            if not producers.last_heard:
                del self._groups[group]

    def gone(self, channel: ClientChannel) -> None:
        """Remove a client whose connection has ended."""
        for group in list(channel.producer_groups):
            self.unregister(group, channel)

    def expire(self, heard_before: float) -> list[ClientChannel]:
        """Remove and return producers whose last heartbeat for a group is too old."""
        expired = []
        for group, producers in list(self._groups.items()):
            for channel in [c for c, heard in producers.last_heard.items() if heard < heard_before]:
                self.unregister(group, channel)
                expired.append(channel)
        return expired

    def producers(self, group: str) -> list[ClientChannel]:
        """Return the clients of a group."""
        producers = self._groups.get(group)
        return [] if producers is None else list(producers.last_heard)

    def pick(self, group: str) -> ClientChannel | None:
        """Return the next client of a group (round robin), by its latest connection; None if there is none."""
        producers = self._groups.get(group)
        if producers is None:
            return None
        heard, latest = producers.last_heard, dict[str, ClientChannel]()
        for channel in heard:
            before = latest.get(channel.client_id, channel)
            if not channel.client.is_closed and heard[channel] >= heard[before]:
                latest[channel.client_id] = channel
        channels = [*latest.values()]
        if not channels:
            return None
        producers.next = (producers.next + 1) % len(channels)
        return channels[producers.next]

    def items(self) -> Iterator[tuple[str, list[ClientChannel]]]:
        """Iterate over the groups and their producers."""
        for group, producers in list(self._groups.items()):
            yield group, list(producers.last_heard)

    def __len__(self) -> int:
        return len(self._groups)
