"""Log lines about connections that are refused: of many in a short time, some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 20
_A_SECOND: Final = 1.0


class ConnectionRefusals:
    """Logs an event: for each reason 20 lines at once, then one a second.

    The line after lines that were left out has their number, `omitted`.
    """

    def __init__(
        self, event: str = "connection_refused", clock: Callable[[], float] = trio.current_time
    ) -> None:
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
