"""Connections by where they are from: which one is closed if there are too many."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)


def network_of(host: str) -> str:
    """Return an IPv4 address itself, and the network of an IPv6 address that one client has: its first 64 bits."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


class Crowd(Generic[_T]):
    """Members by network. Every operation takes the same time, however many there are."""

    def __init__(self) -> None:
        self._network_of: dict[_T, str] = {}
        self._members: dict[str, dict[_T, None]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._largest = 0

    def __len__(self) -> int:
        return len(self._network_of)

    def add(self, member: _T, host: str) -> None:
        """Add a member, which is not one yet, from the address `host`."""
        network = self._network_of[member] = network_of(host)
        members = self._members.setdefault(network, {})
        members[member] = None
        self._resize(network, len(members) - 1, len(members))
        self._largest = max(self._largest, len(members))

    def discard(self, member: _T) -> bool:
        """Remove a member; return whether it was one."""
        network = self._network_of.pop(member, None)
        if network is None:
            return False
        members = self._members[network]
        del members[member]
        self._resize(network, len(members) + 1, len(members))
        if not members:
            del self._members[network]
        if self._largest not in self._by_size:
            self._largest -= 1  # the size that this network has now
        return True

    def pop_greediest(self) -> tuple[_T, str, int] | None:
        """Remove the oldest member of the network with most of them.

        Returns:
            The member, its network, and how many members that had; None without any.
        """
        if not self._largest:
            return None
        size, network = self._largest, next(iter(self._by_size[self._largest]))
        member = next(iter(self._members[network]))
        self.discard(member)
        return member, network, size

    def _resize(self, network: str, before: int, now: int) -> None:
        if before:
            networks = self._by_size[before]
            del networks[network]
            if not networks:
                del self._by_size[before]
        if now:
            self._by_size.setdefault(now, {})[network] = None
