"""The series of consumer groups: members, changes, how old and how much is not consumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Metric

from reput_broker.observe.counters import REBALANCE_REASONS, Counters
from reput_broker.observe.metrics_families import Budget, Labels, one, pieces
from reput_broker.observe.metrics_store import StoreFigures
from reput_protocol.names import is_system_group

if TYPE_CHECKING:
    from reput_broker.groups.consumer_groups import ConsumerGroups
    from reput_broker.groups.lag import LagFigures
    from reput_broker.groups.progress import GroupProgress
    from reput_broker.tables.offsets import ConsumerOffsetManager
    from reput_broker.tables.subscription_groups import SubscriptionGroupManager

_SERIES_OF_GROUP = 2 + len(REBALANCE_REASONS)
_SERIES_OF_TOPIC = 3


@dataclass(slots=True)
class GroupSources:
    """Where the numbers come from."""

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
    store: StoreFigures | None,
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


def _ready(places: _Places, progress: GroupProgress, store: StoreFigures) -> Iterator[tuple[Labels, int]]:
    for group, topic, queues in places:
        ready = 0
        for queue_id, committed in queues.items():
            taken = committed + progress.in_flight(group, topic, queue_id, committed)
            start = max(taken, store.min_offset_in_queue(topic, queue_id))
            ready += max(0, store.max_offset_in_queue(topic, queue_id) - start)
        yield (group, topic), ready
