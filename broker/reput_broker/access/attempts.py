"""Limits how often a secret can be tried at a login."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from ipaddress import IPv6Address
from typing import Final

from reput_protocol.rights import source_of

_WINDOW_S: Final = 300.0
_OF_ONE_USER: Final = 5
_OF_ONE_ADDRESS: Final = 50
"""Behind a proxy, all browsers have its address."""
_KEPT_MAX: Final = 4096
_PREFIX_BITS: Final = 64
"""Of an IPv6 address: a host has this network to itself."""


class Attempts:
    """Wrong secrets of the last five minutes, by address, and by address and user.

    After 5 for one user, or 50 in all, an address has to wait until the oldest of them is five minutes old. A right
    secret does not count then either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[Hashable, deque[float]] = OrderedDict()

    def wait_s(self, host: str, user: str) -> float:
        """Return how long an address has to wait before it may try a secret of a user; 0 if it may."""
        now, address = self._clock(), _network(host)
        wait = 0.0
        for key, limit in ((address, _OF_ONE_ADDRESS), ((address, user), _OF_ONE_USER)):
            times = self._wrong.get(key)
            while times and times[0] <= now - _WINDOW_S:
                times.popleft()
            if times and len(times) >= limit:
                wait = max(wait, times[-limit] + _WINDOW_S - now)
        return wait

    def wrong(self, host: str, user: str) -> None:
        """Count a wrong secret."""
        now, address = self._clock(), _network(host)
        for key in (address, (address, user)):
            times = self._wrong.setdefault(key, deque(maxlen=_OF_ONE_ADDRESS))
            times.append(now)
            self._wrong.move_to_end(key)
        while len(self._wrong) > _KEPT_MAX:
            self._wrong.popitem(last=False)

    def right(self, host: str, user: str) -> None:
        """Forget the wrong secrets of a user at an address: this one was right."""
        self._wrong.pop((_network(host), user), None)


def _network(host: str) -> Hashable:
    address = source_of(host)
    if isinstance(address, IPv6Address):
        return int(address) >> (128 - _PREFIX_BITS)
    return address or host
