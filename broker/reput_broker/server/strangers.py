"""Limits of connections that have sent no request of a user yet, under access control.

They have little memory, which they share among themselves, small headers and a limited time. An address from which
requests without a valid signature, or malformed frames of strangers come is served with pauses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.server.crowd import Crowd, network_of
from reput_broker.server.memory import HeldBytes

if TYPE_CHECKING:
    from reput_broker.server.connection import Connection

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


class Strangers:
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
        self.crowd: Crowd[Connection] = Crowd()


class Penalties:
    """How many requests without a valid signature and malformed frames came lately from each network; few are free."""

    def __init__(self, clock: Callable[[], float] = trio.current_time) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[float, float]] = {}

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
