"""The series of consumer groups, retries, dead letters, transactions and delayed messages.

A group has series from its creation, and those of retries for every topic in which it has an offset, so that the first
dead letter is an increase that an alert sees. A topic has those of transactions from its first half message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Metric

from reput_broker.observe.counters import (
    CHECK_RESULTS,
    REBALANCE_REASONS,
    TRANSACTION_RESULTS,
    Counters,
    DelayStats,
    RetryCounts,
)
from reput_broker.observe.families import Budget, Labels, by_one, one, pieces
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

if TYPE_CHECKING:
    from reput_broker.groups.consumer_groups import ConsumerGroups
    from reput_broker.groups.lag import LagFigures
    from reput_broker.groups.progress import GroupProgress
    from reput_broker.store.message_store import MessageStore
    from reput_broker.tables.offsets import ConsumerOffsetManager
    from reput_broker.tables.subscription_groups import SubscriptionGroupManager
    from reput_broker.tables.topics import TopicConfigManager

_SERIES_OF_GROUP = 2 + len(REBALANCE_REASONS)
_SERIES_OF_TOPIC = 3


@dataclass(slots=True)
class GroupSources:
    """Where the numbers of groups come from."""

    settings: SubscriptionGroupManager
    online: ConsumerGroups
    progress: GroupProgress
    lag: LagFigures


_FAMILIES = (
    "reput_consumer_members",
    "reput_rebalances_total",
    "reput_subscription_conflicts_total",
    "reput_consumer_lag_seconds",
    "reput_consumer_lag_refresh_time_seconds",
    "reput_consumer_inflight_messages",
    "reput_consumer_ready_messages",
)


def group_families(
    sources: GroupSources | None,
    offsets: ConsumerOffsetManager | None,
    store: MessageStore | None,
    counters: Counters,
    budget: Budget,
) -> Iterator[Metric]:
    """Walk over the families, as far as the budget goes. Every group has its series from its beginning."""
    if sources is None or offsets is None or store is None:  # the broker is still recovering
        for name in _FAMILIES:
            yield from pieces(name, ())
        return
    names = {name for name in sources.settings.all() if not is_system_group(name)}
    names |= {*offsets.groups(), *(group.name for group in sources.online)}
    groups = [name for name in sorted(names) if budget.take(_SERIES_OF_GROUP)]
    yield from pieces(
        "reput_consumer_members", (((name,), _members(sources.online, name)) for name in groups)
    )
    yield from pieces(
        "reput_rebalances_total",
        (
            ((name, reason), counters.rebalances.get((name, reason), 0))
            for name in groups
            for reason in REBALANCE_REASONS
        ),
    )
    yield from pieces(
        "reput_subscription_conflicts_total",
        (((name,), counters.subscription_conflicts.get(name, 0)) for name in groups),
    )
    places = [
        (group, topic, dict(queues))
        for group, topic, queues in offsets.items()
        if budget.take(_SERIES_OF_TOPIC)
    ]
    seconds = sources.lag.seconds
    yield from pieces(
        "reput_consumer_lag_seconds",
        (((group, topic), seconds.get((group, topic), 0.0)) for group, topic, _ in places),
    )
    yield one("reput_consumer_lag_refresh_time_seconds", sources.lag.looked_up_at_s)
    yield from pieces("reput_consumer_inflight_messages", _in_flight(places, sources.progress))
    yield from pieces("reput_consumer_ready_messages", _ready(places, sources.progress, store))


def _members(online: ConsumerGroups, group: str) -> int:
    found = online.get(group)
    return 0 if found is None else len(found.client_ids())


_Places = Sequence[tuple[str, str, Mapping[int, int]]]


def _in_flight(places: _Places, progress: GroupProgress) -> Iterator[tuple[Labels, int]]:
    for group, topic, queues in places:
        of_queues = (progress.in_flight(group, topic, queue_id, at) for queue_id, at in queues.items())
        yield (group, topic), sum(of_queues)


def _ready(places: _Places, progress: GroupProgress, store: MessageStore) -> Iterator[tuple[Labels, int]]:
    for group, topic, queues in places:
        ready = 0
        for queue_id, committed in queues.items():
            taken = committed + progress.in_flight(group, topic, queue_id, committed)
            start = max(taken, store.min_offset_in_queue(topic, queue_id))
            ready += max(0, store.max_offset_in_queue(topic, queue_id) - start)
        yield (group, topic), ready


_SERIES_OF_PLACE = 2
_SERIES_OF_TRANSACTIONS = 1 + len(TRANSACTION_RESULTS) + len(CHECK_RESULTS)

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
    shown = [topic for topic in sorted(topics) if budget.take(_SERIES_OF_TRANSACTIONS)]
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
    consumed = {
        (group, topic)
        for group, topic, _ in (() if offsets is None else offsets.items())
        if not is_system_group(group)
        and not is_system_topic(topic)
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    }
    return sorted({*consumed, *counts.retries, *counts.dead_letters})


_SERIES_OF_DELAYS = 3


@dataclass(slots=True)
class DelaySources:
    """Where the numbers of delayed messages come from."""

    stats: DelayStats
    due_s: Callable[[], float]
    """Returns how late the most overdue message is, in seconds."""


def delay_families(
    sources: DelaySources | None, topics: TopicConfigManager | None, budget: Budget
) -> Iterator[Metric]:
    """Yield the families of delayed messages within the budget; of a deleted topic only while messages wait for it."""
    stats = DelayStats() if sources is None else sources.stats
    known = [
        topic
        for topic in stats.topics()
        if stats.waiting[topic] > 0 or topics is None or topics.get(topic) is not None
    ]
    shown = [topic for topic in known if budget.take(_SERIES_OF_DELAYS)]
    for name, counts in (
        ("reput_delayed_messages", stats.waiting),
        ("reput_delayed_delivered_total", stats.delivered),
        ("reput_delayed_cancelled_total", stats.cancelled),
    ):
        yield from pieces(name, (((topic,), max(0, counts[topic])) for topic in shown))
    yield one("reput_delayed_due_seconds", 0.0 if sources is None else sources.due_s())
    yield from pieces("reput_delayed_dropped_total", by_one(stats.dropped))
    yield one("reput_delay_error_seconds", stats.error_seconds)
