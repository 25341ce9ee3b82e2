"""Derive from a query's filters which messages need not be read: those that certainly fail one.

Spark applies every filter again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


_MEANING: Final = {
    "topic": "topic",
    "queueId": "queue",
    "partition": "queue",
    "queueOffset": "offset",
    "offset": "offset",
    "storeTimestamp": "time",
    "timestamp": "time",
    "tags": "tag",
    "keys": "key",
    "key": "key",
}


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Conditions of all wanted messages; None: no condition. Low bounds are inclusive, high exclusive."""

    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    offset_low: int | None = None
    offset_high: int | None = None
    time_low_ms: int | None = None
    time_high_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def __str__(self) -> str:
        """Return the conditions in words."""
        found = [
            f"{name} {' or '.join(map(str, sorted(values))) or 'none'}"
            for name, values in (
                ("topic", self.topics),
                ("queue", self.queue_ids),
                ("tag", self.tags),
                ("key", self.keys),
            )
            if values is not None
        ]
        found += [
            f"{name} from {'the first' if low is None else low} to {'the last' if high is None else high - 1}"
            for name, low, high in (
                ("offset", self.offset_low, self.offset_high),
                ("store time in ms", self.time_low_ms, self.time_high_ms),
            )
            if low is not None or high is not None
        ]
        return ", ".join(found) or "nothing"

    def wants(self, topic: str, queue_id: int) -> bool:
        """Return whether a message of this queue can pass."""
        return (self.topics is None or topic in self.topics) and (
            self.queue_ids is None or queue_id in self.queue_ids
        )


NOTHING_NARROWED: Final = Narrowing()


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """Return the conditions of filters that all hold; other filters are ignored."""
    from pyspark.sql.datasource import (  # not needed to read without Spark
        EqualNullSafe,
        EqualTo,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )

    result = NOTHING_NARROWED
    for condition in filters:
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        meaning = _MEANING.get(str(attribute[0])) if len(attribute) == 1 else None
        if meaning is None:
            continue
        if isinstance(condition, (EqualTo, EqualNullSafe)):
            result = _among(result, meaning, [condition.value])
        elif isinstance(condition, In):
            result = _among(result, meaning, list(condition.value))
        elif isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
            result = _above(result, meaning, condition.value, isinstance(condition, GreaterThanOrEqual))
        elif isinstance(condition, (LessThan, LessThanOrEqual)):
            result = _below(result, meaning, condition.value, isinstance(condition, LessThanOrEqual))
    return result


def _among(known: Narrowing, meaning: str, values: list[Any]) -> Narrowing:
    if any(value is None for value in values):
        return known
    if meaning in ("offset", "time"):
        if not values:
            return known
        known = _above(known, meaning, min(values), True)
        return _below(known, meaning, max(values), True)
    if meaning == "queue":
        return replace(known, queue_ids=_both(known.queue_ids, frozenset(map(int, values))))
    texts = frozenset(_text(value) for value in values)
    if meaning == "topic":
        return replace(known, topics=_both(known.topics, texts))
    if meaning == "tag":
        return replace(known, tags=_both(known.tags, texts))
    # Of two conditions on keys, one is enough.
    return known if known.keys is not None else replace(known, keys=texts)


def _above(known: Narrowing, meaning: str, value: Any, inclusive: bool) -> Narrowing:
    if meaning == "offset":
        low = int(value) + (0 if inclusive else 1)
        return replace(known, offset_low=low if known.offset_low is None else max(low, known.offset_low))
    if meaning == "time" and isinstance(value, datetime):
        low = _floor_ms(value)
        return replace(known, time_low_ms=low if known.time_low_ms is None else max(low, known.time_low_ms))
    return known


def _below(known: Narrowing, meaning: str, value: Any, inclusive: bool) -> Narrowing:
    if meaning == "offset":
        high = int(value) + (1 if inclusive else 0)
        return replace(known, offset_high=high if known.offset_high is None else min(high, known.offset_high))
    if meaning == "time" and isinstance(value, datetime):
        high = _floor_ms(value) + 1  # Spark decides within the millisecond
        return replace(
            known, time_high_ms=high if known.time_high_ms is None else min(high, known.time_high_ms)
        )
    return known


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _text(value: Any) -> str:
    return (
        bytes(value).decode("utf-8", "replace")
        if isinstance(value, (bytes, bytearray, memoryview))
        else str(value)
    )


def _floor_ms(when: datetime) -> int:
    seconds = when.replace(microsecond=0)
    return int(seconds.timestamp()) * 1000 + when.microsecond // 1000
