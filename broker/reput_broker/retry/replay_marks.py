"""Which dead letters were replayed.

The message as which a dead letter is replayed names it, by a field and a property that no client can set. So it is the
mark itself: it is stored with the message or not at all, slaves copy it, and the dead letter outlives neither a crash
nor a failover without it, since it is before it in the log. All replays from a dead-letter topic have one key in the
index, by which a tenure as master finds them once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

import trio

from reput_broker.request import Refusal
from reput_broker.store.index.query import Doubt
from reput_broker.tenure.core import Core
from reput_protocol.errors import ErrorCode

_SETTLE_S: Final = 5.0
_LOOKS_AT_ONCE: Final = 2
_FORGET_AT_ONCE: Final = 1024


class LetterMarks:
    """The replayed letters of one dead-letter topic, by log offset: 16 bytes each.

    Attributes:
        lock: held while a letter is looked up and replayed.
        is_complete: whether those that the log had when the tenure began are here.
    """

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.is_complete = False
        self._letters = array("q")
        self._copies = array("q")

    def copy_of(self, letter_offset: int) -> int | None:
        """Return the log offset of the message as which a letter was replayed; None if it was not."""
        at = bisect_left(self._letters, letter_offset)
        return self._copies[at] if at < len(self._letters) and self._letters[at] == letter_offset else None

    def note(self, letter_offset: int, copy_offset: int) -> None:
        """Note that a letter was replayed; if it was before, this replay counts."""
        at = bisect_left(self._letters, letter_offset)
        if at < len(self._letters) and self._letters[at] == letter_offset:
            self._copies[at] = copy_offset
        else:
            self._letters.insert(at, letter_offset)
            self._copies.insert(at, copy_offset)

    def count_from(self, letter_offset: int) -> int:
        """Return how many letters from a log offset on were replayed. Those before are gone, and are forgotten."""
        at = bisect_left(self._letters, letter_offset)
        if at >= _FORGET_AT_ONCE:
            del self._letters[:at], self._copies[:at]
            at = 0
        return len(self._letters) - at


class ReplayMarks:
    """The marks of all dead-letter topics, in one tenure as master."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._begin_offset = core.store.max_physical_offset
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)
        self._by_topic: dict[str, LetterMarks] = {}

    async def of(self, topic: str) -> LetterMarks:
        """Return the marks of a dead-letter topic that exists.

        Raises:
            Refusal: it is not known which letters were replayed: for the moment (`NOT_READY`), or until the cause is
                repaired.
        """
        marks = self._by_topic.setdefault(topic, LetterMarks())
        if not marks.is_complete:
            async with marks.lock:
                if not marks.is_complete:
                    await self._load(topic, marks)
        return marks

    async def _load(self, topic: str, marks: LetterMarks) -> None:
        if not self._store.options.index_enabled:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "which dead letters were replayed is found by the index, which is disabled; set store.index",
            )
        await self._indexed()
        found = await trio.to_thread.run_sync(self._store.find_replays, topic, limiter=self._limiter)
        if found.doubt is not None:
            raise _unknown(found.doubt)
        for replay in reversed(found.replays):
            marks.note(replay.letter_offset, replay.physical_offset)
        marks.is_complete = True

    async def _indexed(self) -> None:
        """Return once the index has what the log had when the tenure began.

        Raises:
            Refusal: it takes too long, or there is no disk space for it.
        """
        with trio.move_on_after(_SETTLE_S):
            await self._core.puts.progress.dispatched.reached(self._begin_offset)
            self._core.puts.reput.complete_index("which dead letters were replayed")
            return
        raise Refusal(
            ErrorCode.NOT_READY,
            f"it is unknown which dead letters were replayed: the log is not readable to where it ended at the start "
            f"after {_SETTLE_S:.0f} s; ask again shortly",
        )


def _unknown(doubt: Doubt) -> Refusal:
    text = f"{doubt.value}, so it is unknown which dead letters were replayed"
    if doubt is Doubt.BEHIND:
        return Refusal(ErrorCode.NOT_READY, f"{text}; ask again shortly")
    return Refusal(
        ErrorCode.INTERNAL,
        f"{text}; stop the broker, follow what `reput store verify` reports, then run `reput store rebuild`",
    )
