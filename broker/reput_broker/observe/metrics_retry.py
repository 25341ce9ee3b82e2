"""The series of retries, dead letters and transactions.

A group has its series for every topic that it has an offset of, from the beginning, so that the first dead letter is an
increase that an alert sees. A topic has those of transactions from its first half message on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import Metric

from reput_broker.observe.metrics_families import Budget, pieces
from reput_broker.observe.retry_counts import CHECK_RESULTS, TRANSACTION_RESULTS, RetryCounts
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

if TYPE_CHECKING:
    from reput_broker.tables.offsets import ConsumerOffsetManager

_SERIES_OF_PLACE = 2
_SERIES_OF_TOPIC = 1 + len(TRANSACTION_RESULTS) + len(CHECK_RESULTS)

OpenTransactions = Callable[[], Mapping[str, int]]
"""Returns how many transactions are open, by topic."""


def retry_families(
    counts: RetryCounts,
    open_transactions: OpenTransactions | None,
    offsets: ConsumerOffsetManager | None,
    budget: Budget,
) -> Iterator[Metric]:
    """Walk over the families, as far as the budget goes."""
    places = [place for place in _places(counts, offsets) if budget.take(_SERIES_OF_PLACE)]
    yield from pieces("reput_retries_total", ((place, counts.retries[place]) for place in places))
    yield from pieces("reput_dead_letters_total", ((place, counts.dead_letters[place]) for place in places))
    open_now = {} if open_transactions is None else dict(open_transactions())
    topics = {*open_now, *(topic for topic, _ in (*counts.transactions, *counts.checks))}
    shown = [topic for topic in sorted(topics) if budget.take(_SERIES_OF_TOPIC)]
    yield from pieces("reput_transactions_open", (((topic,), open_now.get(topic, 0)) for topic in shown))
    yield from pieces(
        "reput_transactions_total",
        (
            ((topic, result), counts.transactions[topic, result])
            for topic in shown
            for result in TRANSACTION_RESULTS
        ),
    )
    yield from pieces(
        "reput_transaction_checks_total",
        (((topic, result), counts.checks[topic, result]) for topic in shown for result in CHECK_RESULTS),
    )


def _places(counts: RetryCounts, offsets: ConsumerOffsetManager | None) -> list[tuple[str, str]]:
    """Return the pairs of group and topic that have series."""
    consumed = {
        (group, topic)
        for group, topic, _ in (() if offsets is None else offsets.items())
        if not is_system_group(group)
        and not is_system_topic(topic)
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    }
    return sorted({*consumed, *counts.retries, *counts.dead_letters})
