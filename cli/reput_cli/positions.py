"""START:END of a queue on the command line: a word, an offset, a count from the end, or a time."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

import click

_AGE = re.compile(r"-(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class QueueBounds(Protocol):
    """The offsets of a queue; `Admin` implements it."""

    def min_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the first offset that can be read."""

    def max_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset that the next message will get."""

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, broker_name: str | None = None
    ) -> int:
        """Return the offset of the first message stored at or after a time."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position as the user wrote it: `earliest`, `latest`, `120`, `-10`, `@TIME`, `@-15m`."""

    word: str | None = None
    offset: int | None = None
    timestamp_ms: int | None = None

    def resolve(self, bounds: QueueBounds, topic: str, queue_id: int, broker_name: str | None = None) -> int:
        """Return the offset in a queue, moved to its nearest end if outside."""
        low = bounds.min_offset(topic, queue_id, broker_name=broker_name)
        high = bounds.max_offset(topic, queue_id, broker_name=broker_name)
        if self.timestamp_ms is not None:
            return bounds.offset_by_time(topic, queue_id, self.timestamp_ms, broker_name=broker_name)
        if self.offset is not None:
            wanted = self.offset if self.offset >= 0 else high + self.offset
            return min(max(wanted, low), high)
        return low if self.word == "earliest" else high


class TimeType(click.ParamType[int]):
    """A time in RFC 3339, or an age such as `-15m`, both with or without `@`; the value is in ms since 1970."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time; other text is refused with the valid forms."""
        if isinstance(value, int):
            return value
        position = RangeType.parse("@" + str(value).removeprefix("@"))
        if position is None or position.timestamp_ms is None:
            raise click.BadParameter(
                f"{str(value)!r} is not a time: write 2026-01-02T03:04:05Z, or -15m for 15 minutes ago",
                ctx,
                param,
            )
        return position.timestamp_ms


TIME = TimeType()


class RangeType(click.ParamType["tuple[Position, Position | None]"]):
    """`START` or `START:END`; the value is a pair of positions, the second None without an end."""

    name = "start"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Position, Position | None]:
        """Return the positions; other text is refused with the valid forms."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        whole = self.parse(text)
        if whole is not None:
            return whole, None
        for cut in (match.start() for match in re.finditer(":", text)):
            start = self.parse(text[:cut] or "earliest")
            end = self.parse(text[cut + 1 :] or "latest")
            if start is not None and end is not None:
                return start, end
        raise click.BadParameter(
            f"{text!r} is not a position: write earliest, latest, an offset, -N for the last N of each queue, "
            "@2026-01-02T03:04:05Z, @-15m, or START:END of these",
            ctx,
            param,
        )

    @staticmethod
    def parse(text: str) -> Position | None:
        """Return the position that the text stands for, None if it is not one."""
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
