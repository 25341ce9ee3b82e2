"""A position in a queue as an operator writes it: a word, an offset, a count from the end, or a time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from reput_client.blocking import Admin

_AGE: Final = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EARLIEST_MS: Final = 0
_LATEST_MS: Final = -1


@dataclass(frozen=True, slots=True)
class Position:
    """A position as it was written: `earliest`, `latest`, `120`, `-10`, `@TIME`, `@-15m`."""

    word: str | None = None
    offset: int | None = None
    timestamp_ms: int | None = None

    @staticmethod
    def parse(text: str) -> Position | None:
        """Return the position that a text stands for, None if it is not one."""
        if text in ("earliest", "latest"):
            return Position(word=text)
        if re.fullmatch(r"-?\d+", text):
            return Position(offset=int(text))
        if not text.startswith("@"):
            return None
        age = _AGE.fullmatch(text[1:])
        if age is not None:
            return Position(timestamp_ms=int((time.time() - float(age[1]) * _SECONDS[age[2]]) * 1000))
        try:
            moment = datetime.fromisoformat(text[1:])
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return Position(timestamp_ms=int(moment.timestamp() * 1000))

    @staticmethod
    def parse_time(text: str) -> int | None:
        """Return the time in ms since 1970 of `TIME` or `-15m`, with or without `@`; None if it is neither."""
        position = Position.parse("@" + text.removeprefix("@"))
        return None if position is None else position.timestamp_ms

    def resolve(self, bounds: Admin, topic: str, queue_id: int, broker_name: str | None = None) -> int:
        """Return the offset in a queue, moved to its nearest end if outside."""
        low = bounds.min_offset(topic, queue_id, broker_name=broker_name)
        high = bounds.max_offset(topic, queue_id, broker_name=broker_name)
        if self.timestamp_ms is not None:
            return bounds.offset_by_time(topic, queue_id, self.timestamp_ms, broker_name=broker_name)
        if self.offset is not None:
            wanted = self.offset if self.offset >= 0 else high + self.offset
            return min(max(wanted, low), high)
        return low if self.word == "earliest" else high

    def of_reset(self) -> dict[str, Any]:
        """Return the arguments of `Admin.plan_reset` that stand for it."""
        if self.timestamp_ms is not None:
            return {"when": self.timestamp_ms}
        if self.offset is not None:
            return {"offset": self.offset}
        return {"when": _EARLIEST_MS if self.word == "earliest" else _LATEST_MS}
