"""When the messages of many clients leave the proxy: in blocks, since one costs a broker about as much as a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from reput_client import Producer

_LINGER_S: Final = 0.0006
"""How long a message waits for those of others at most, for each other send that may be under way. It takes the proxy
about as long to pass one on."""
_LINGER_MAX_S: Final = 0.01
_PAUSE_S: Final = 0.0005
"""Nothing more is waited for when for so long no send has begun, and as many are under way as before."""
_FORGOTTEN: Final = 1 / 8
"""By how much each send lowers the number of those that may be under way, until as many are again."""


class GatheredSends:
    """The sends of one producer. A client that sends alone waits for no other."""

    def __init__(self, producer: Producer) -> None:
        self._gathering = producer._gathering
        self._under_way = 0
        self._most = 0.0
        """How many were under way lately."""
        self._begun_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count a send while it is under way, and set how long it and the next ones wait."""
        self._under_way += 1
        self._most = max(self._under_way, self._most - _FORGOTTEN)
        self._gathering.linger_s = min(_LINGER_S * (self._most - 1), _LINGER_MAX_S)
        if self._most > 1:
            loop = asyncio.get_running_loop()
            self._begun_at = loop.time()
            if self._timer is None and self._under_way >= self._most:
                self._timer = loop.call_later(_PAUSE_S, self._look)
        try:
            yield
        finally:
            self._under_way -= 1

    def _look(self) -> None:
        """Let the messages leave, unless further sends have begun meanwhile."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._begun_at + _PAUSE_S:
            self._timer = loop.call_at(self._begun_at + _PAUSE_S, self._look)
        else:
            self._timer = None
            self._gathering.send_now()
