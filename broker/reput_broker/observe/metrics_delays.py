"""The series of delayed messages: how many wait, what became of the others, how late they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Metric

from reput_broker.observe.delay_stats import DelayStats
from reput_broker.observe.metrics_families import Budget, by_one, one, pieces

if TYPE_CHECKING:
    from reput_broker.tables.topics import TopicConfigManager

_SERIES_OF_TOPIC = 3


@dataclass(slots=True)
class DelaySources:
    """Where the numbers come from."""

    stats: DelayStats
    due_s: Callable[[], float]
    """How late the most overdue message is."""


def delay_families(
    sources: DelaySources | None, topics: TopicConfigManager | None, budget: Budget
) -> Iterator[Metric]:
    """Walk over the families, as far as the budget goes; of a deleted topic only while messages for it wait."""
    stats = DelayStats() if sources is None else sources.stats
    known = [
        topic
        for topic in stats.topics()
        if stats.waiting[topic] > 0 or topics is None or topics.get(topic) is not None
    ]
    shown = [topic for topic in known if budget.take(_SERIES_OF_TOPIC)]
    for name, counts in (
        ("reput_delayed_messages", stats.waiting),
        ("reput_delayed_delivered_total", stats.delivered),
        ("reput_delayed_cancelled_total", stats.cancelled),
    ):
        yield from pieces(name, (((topic,), max(0, counts[topic])) for topic in shown))
    yield one("reput_delayed_due_seconds", 0.0 if sources is None else sources.due_s())
    yield from pieces("reput_delayed_dropped_total", by_one(stats.dropped))
    yield one("reput_delay_error_seconds", stats.error_seconds)
