"""Limits of connections: which one is closed if there are too many, what strangers may do, and the log lines about it.

Strangers are connections that have sent no request of a user yet, under access control. They have little memory, which
they share among themselves, small headers and a limited time. An address from which requests without a valid signature,
or malformed frames of strangers come is served with pauses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import structlog
import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.server.memory import HeldBytes

log = structlog.get_logger(__name__)

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


_AT_ONCE: Final = 20
_A_SECOND: Final = 1.0


class ConnectionRefusals:
    """Logs an event: for each reason 20 lines at once, then one a second.

    The line after lines that were left out has their number, `omitted`.
    """

    def __init__(self, event: str = "connection_refused", clock: Callable[[], float] = trio.current_time) -> None:
        self._event = event
        self._clock = clock
        self._left: dict[str, tuple[float, float, int]] = {}

    def refused(self, peer: str, reason: str, **facts: object) -> None:
        """Log a connection that is closed, or leave the line out.

        Args:
            peer: where it is from.
            reason: one of few words.
            facts: other fields of the line.
        """
        now = self._clock()
        left, at, omitted = self._left.get(reason, (float(_AT_ONCE), now, 0))
        left = min(_AT_ONCE, left + (now - at) * _A_SECOND)
        if left < 1.0:
            self._left[reason] = left, now, omitted + 1
            return
        self._left[reason] = left - 1.0, now, 0
        if omitted:
            facts["omitted"] = omitted
        log.warning(self._event, peer=peer, reason=reason, **facts)


HEADER_BYTES_MAX: Final = 1 << 16
UNAUTHENTICATED_MAX: Final = 8
"""Requests in a row without a valid signature after which a connection is closed."""
_REQUEST_BYTES: Final = 1 << 16
_PART_OF_MEMORY: Final = 16
_FREE_FAILURES: Final = 8
_PAUSE_S: Final = 0.01
_PAUSE_MAX_S: Final = 1.0
_HALF_LIFE_S: Final = 10.0
_ADDRESSES_MAX: Final = 4096


class Strangers(Generic[_T]):
    """The limits, and what the connections of strangers hold together.

    Attributes:
        frame_size: of the largest frame. A client of RocketMQ may begin with a message, a client of Reput begins with a
            small request.
        timeout_s: within which a connection sends the first request of a user.
        memory: what is held for them.
        penalties: of addresses.
        crowd: the connections of strangers.
    """

    def __init__(self, config: BrokerConfig, counters: Counters) -> None:
        message = config.store.message_size_max if config.access.accept_rocketmq_signatures else 0
        self.frame_size = min(config.limits.frame_size, message + _REQUEST_BYTES)
        self.timeout_s = config.access.first_signature_timeout
        self.memory = HeldBytes(counters, config.limits, part=_PART_OF_MEMORY, least=2 * self.frame_size)
        self.penalties = Penalties()
        self.crowd: Crowd[_T] = Crowd()


@dataclass(eq=False, repr=False)
class Penalties:
    """How many requests without a valid signature and malformed frames came lately from each network; few are free."""

    _clock: Callable[[], float] = trio.current_time
    _failures: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)

    def failed(self, host: str, count: int) -> None:
        """Note them of an address. The addresses that failed last are remembered."""
        if not count:
            return
        network = network_of(host)
        failures = self._decayed(network) + count
        self._failures.pop(network, None)
        self._failures[network] = failures, self._clock()
        if len(self._failures) > _ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]

    def pause_s(self, host: str) -> float:
        """Return for how long the next request of a stranger at an address waits."""
        over = self._decayed(network_of(host)) - _FREE_FAILURES
        return 0.0 if over < 1 else min(_PAUSE_MAX_S, _PAUSE_S * over)

    def _decayed(self, network: str) -> float:
        failures, at = self._failures.get(network, (0.0, 0.0))
        return failures and failures * 0.5 ** ((self._clock() - at) / _HALF_LIFE_S)
