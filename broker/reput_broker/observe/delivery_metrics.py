"""The series of consumer groups, retries, dead letters, transactions and delayed messages.

A group has series from its creation, and those of retries for every topic in which it has an offset, so that the first
dead letter is an increase that an alert sees. A topic has those of transactions from its first half message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reput_broker.observe.counters import (
    ACK_RESULTS,
    CHECK_RESULTS,
    REBALANCE_REASONS,
    TRANSACTION_RESULTS,
    Counters,
    DelayStats,
    RetryCounts,
)
from reput_broker.observe.exposition import Budget, Family, Labels, by_label, one
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic

if TYPE_CHECKING:
    from reput_broker.groups.consumer_groups import ConsumerGroups
    from reput_broker.groups.lag import LagFigures
    from reput_broker.groups.producer_groups import ProducerGroups
    from reput_broker.groups.progress import GroupProgress
    from reput_broker.store.message_store import MessageStore
    from reput_broker.tables.offsets import ConsumerOffsetManager
    from reput_broker.tables.subscription_groups import SubscriptionGroupManager
    from reput_broker.tables.topics import TopicConfigManager

_SERIES_OF_GROUP = 2 + len(REBALANCE_REASONS) + len(ACK_RESULTS)
_SERIES_OF_TOPIC = 3


@dataclass(slots=True)
class GroupSources:
    """Where the numbers of groups come from."""

    settings: SubscriptionGroupManager
    online: ConsumerGroups
    producers: ProducerGroups
    progress: GroupProgress
    lag: LagFigures


_FAMILIES = (
    "reput_consumer_members",
    "reput_acks_total",
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
    bounds: QueueBounds,
    counters: Counters,
    budget: Budget,
) -> Iterator[Family]:
    """Walk over the families, as far as the budget goes. Every group has its series from its beginning."""
    if sources is None or offsets is None:  # the broker is still recovering
        for name in _FAMILIES:
            yield name, ()
        return
    known = (*sources.settings.all(), *offsets.groups(), *(group.name for group in sources.online))
    groups = budget.fit(
        list(dict.fromkeys(name for name in known if not is_system_group(name))), _SERIES_OF_GROUP
    )
    yield "reput_consumer_members", (((name,), _members(sources.online, name)) for name in groups)
    yield "reput_acks_total", _acks(counters, groups)
    yield (
        "reput_rebalances_total",
        (
            ((name, reason), counters.rebalances.get((name, reason), 0))
            for name in groups
            for reason in REBALANCE_REASONS
        ),
    )
    yield (
        "reput_subscription_conflicts_total",
        (((name,), counters.subscription_conflicts.get(name, 0)) for name in groups),
    )
    places = budget.fit(
        [place for place in offsets.items() if not is_system_group(place[0])], _SERIES_OF_TOPIC
    )
    seconds = sources.lag.seconds
    yield (
        "reput_consumer_lag_seconds",
        (((group, topic), seconds.get((group, topic), 0.0)) for group, topic, _ in places),
    )
    yield one("reput_consumer_lag_refresh_time_seconds", sources.lag.looked_up_at_s)
    yield "reput_consumer_inflight_messages", in_flight_messages(places, sources.progress)
    yield "reput_consumer_ready_messages", ready_messages(places, sources.progress, bounds)


def _members(online: ConsumerGroups, group: str) -> int:
    found = online.get(group)
    return 0 if found is None else len(found.client_ids())


def _acks(counters: Counters, groups: Sequence[str]) -> Iterator[tuple[Labels, int]]:
    for group in groups:
        for result in ACK_RESULTS:
            count = counters.retry.nacks[group] if result == "nack" else counters.acks.get((group, result), 0)
            yield (group, result), count


Places = Sequence[tuple[str, str, Mapping[int, int]]]
"""Group, topic, and committed offset by queue."""


class QueueBounds(dict[tuple[str, int], tuple[int, int]]):
    """First and next offset by topic and queue, each looked up once in a scrape; a closed store has (0, 0)."""

    def __init__(self, store: Callable[[], MessageStore | None]) -> None:
        super().__init__()
        self._store = store

    def __missing__(self, queue: tuple[str, int]) -> tuple[int, int]:
        store = self._store()
        bounds = (0, 0)
        if store is not None:
            bounds = store.min_offset_in_queue(*queue), store.max_offset_in_queue(*queue)
        self[queue] = bounds
        return bounds


def lag_messages(places: Places, bounds: QueueBounds) -> Iterator[tuple[Labels, int]]:
    """Yield by group and topic how many messages are not committed."""
    for group, topic, queues in places:
        yield (group, topic), sum(max(0, bounds[topic, at][1] - offset) for at, offset in queues.items())


def in_flight_messages(places: Places, progress: GroupProgress) -> Iterator[tuple[Labels, int]]:
    """Yield by group and topic how many messages were pulled and not committed."""
    for group, topic, queues in places:
        pulled = progress.of_topic(group, topic)
        yield (group, topic), sum(max(0, pulled[at].pull_offset - queues.get(at, 0)) for at in pulled)


def ready_messages(
    places: Places, progress: GroupProgress, bounds: QueueBounds
) -> Iterator[tuple[Labels, int]]:
    """Yield by group and topic how many messages could be pulled now."""
    for group, topic, queues in places:
        pulled = progress.of_topic(group, topic)
        ready = 0
        for at, committed in queues.items():
            start, end = bounds[topic, at]
            of_queue = pulled.get(at)
            taken = committed if of_queue is None else max(committed, of_queue.pull_offset)
            ready += max(0, end - max(taken, start))
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
) -> Iterator[Family]:
    """Walk over the families, as far as the budget goes."""
    places = budget.fit(_places(counts, offsets), _SERIES_OF_PLACE)
    yield "reput_retries_total", ((place, counts.retries[place]) for place in places)
    yield "reput_dead_letters_total", ((place, counts.dead_letters[place]) for place in places)
    open_now = {} if open_transactions is None else dict(open_transactions())
    topics = dict.fromkeys((*open_now, *(topic for topic, _ in (*counts.transactions, *counts.checks))))
    shown = budget.fit(list(topics), _SERIES_OF_TRANSACTIONS)
    yield "reput_transactions_open", (((topic,), open_now.get(topic, 0)) for topic in shown)
    yield (
        "reput_transactions_total",
        (
            ((topic, result), counts.transactions[topic, result])
            for topic in shown
            for result in TRANSACTION_RESULTS
        ),
    )
    yield (
        "reput_transaction_checks_total",
        (((topic, result), counts.checks[topic, result]) for topic in shown for result in CHECK_RESULTS),
    )


def _places(counts: RetryCounts, offsets: ConsumerOffsetManager | None) -> list[tuple[str, str]]:
    consumed = (
        (group, topic)
        for group, topic, _ in (() if offsets is None else offsets.items())
        if not is_system_group(group)
        and not is_system_topic(topic)
        and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    )
    return list(dict.fromkeys((*consumed, *counts.retries, *counts.dead_letters)))


_SERIES_OF_DELAYS = 3


@dataclass(slots=True)
class DelaySources:
    """Where the numbers of delayed messages come from."""

    stats: DelayStats
    due_s: Callable[[], float]
    """Returns how late the most overdue message is, in seconds."""
    timers_behind: Callable[[], int]
    """Returns how many messages with a deliver time are not in the timer wheel yet."""


def delay_families(
    sources: DelaySources | None, topics: TopicConfigManager | None, budget: Budget
) -> Iterator[Family]:
    """Yield the families of delayed messages within the budget; of a deleted topic only while messages wait for it."""
    stats = DelayStats() if sources is None else sources.stats
    known = [
        topic
        for topic in stats.topics()
        if stats.waiting[topic] > 0 or topics is None or topics.get(topic) is not None
    ]
    shown = budget.fit(known, _SERIES_OF_DELAYS)
    for name, counts in (
        ("reput_delayed_messages", stats.waiting),
        ("reput_delayed_delivered_total", stats.delivered),
        ("reput_delayed_cancelled_total", stats.cancelled),
    ):
        yield name, _of_topics(counts, shown)
    yield one("reput_delayed_due_seconds", 0.0 if sources is None else sources.due_s())
    yield by_label("reput_delayed_dropped_total", stats.dropped)
    yield one("reput_delay_error_seconds", stats.error_seconds)


def _of_topics(counts: Mapping[str, int], topics: Sequence[str]) -> Iterator[tuple[Labels, int]]:
    return (((topic,), max(0, counts[topic])) for topic in topics)


@dataclass(slots=True)
class PopSources:
    """Where the numbers of popped messages come from."""

    in_flight: Callable[[], Iterator[tuple[Labels, int]]]
    """Yields by group and topic how many messages are popped and neither acknowledged nor redelivered."""
    due_s: Callable[[], float]
    """Returns how long the most overdue check point has been due, in seconds."""


def pop_families(sources: PopSources | None, budget: Budget) -> Iterator[Family]:
    """Yield the families of popped messages within the budget."""
    places = [] if sources is None else list(sources.in_flight())
    yield "reput_popped_messages", budget.fit(places, 1)
    yield one("reput_pop_revive_due_seconds", 0.0 if sources is None else sources.due_s())
