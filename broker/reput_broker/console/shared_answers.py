"""Answers shared by all browsers: ten that poll a page cost as much as one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

import trio

_AT_ONCE: Final = 4
"""Pages that are computed at the same time."""
_SHARE: Final = 20
"""An answer is reused for this multiple of the time that computing it took. However many browsers poll a page,
computing it takes at most this part of the time."""
_KEPT_MIN_S: Final = 1.0
_KEPT_MAX: Final = 64


class SharedAnswers:
    """Computes answers, each once at a time, and keeps them for a moment.

    Args:
        at_once: how many are computed at the same time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, at_once: int = _AT_ONCE) -> None:
        self._clock = clock
        self._at_once = trio.CapacityLimiter(at_once)
        self._answers: dict[Hashable, _Answer] = {}
        self._changes = 0

    def expire(self) -> None:
        """Reuse no answer that was computed, or begun, before now: something was changed."""
        self._changes += 1
        for answer in self._answers.values():
            answer.until = -1.0

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer of this key, computed now if there is no fresh one. Errors are not kept."""
        answer = self._answers.get(key)
        if answer is None:
            self._make_room()
            answer = self._answers[key] = _Answer()
        answer.waiting += 1
        try:
            async with answer.turn:
                if self._clock() >= answer.until:
                    async with self._at_once:
                        began_at, changes = self._clock(), self._changes
                        answer.body = await compute()
                        now = self._clock()
                    if changes == self._changes:
                        answer.until = now + max(_KEPT_MIN_S, _SHARE * (now - began_at))
                return answer.body
        finally:
            answer.waiting -= 1

    def _make_room(self) -> None:
        """Forget the oldest answers that no request waits for."""
        for key in [key for key, answer in self._answers.items() if not answer.waiting]:
            if len(self._answers) < _KEPT_MAX:
                return
            del self._answers[key]


class _Answer:
    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.body = b""
        self.until = -1.0
        self.waiting = 0
