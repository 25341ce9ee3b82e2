"""Figures for metrics pages; reading a page, and comparing it with the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import cast

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from reput_broker.config.model import BrokerConfig
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.lag import GroupProgress, LagFigures
from reput_broker.groups.membership import ProducerGroups
from reput_broker.observe.counters import Counters, DelayStats, NameServerTraffic, ProxyCounters, ScheduleStats
from reput_broker.observe.exposition import MetricSpec
from reput_broker.observe.health import Health
from reput_broker.observe.metrics import DelaySources, GroupSources, MetricsSources, PopSources, ScheduleSources
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.proxy_process import ProxyFigures
from support.tenures import REPLICATION


class _FakeStore:
    """Queues of one topic."""

    flush_behind_bytes = 5
    commit_behind_bytes = 3
    file_waits = 2
    dispatch_behind_bytes = 6
    min_physical_offset = 1000
    max_physical_offset = 9000

    def __init__(self, queues: int) -> None:
        self._queues = [("orders", queue_id) for queue_id in range(queues)]

    def queues(self) -> list[tuple[str, int]]:
        return self._queues

    def min_offset_in_queue(self, _topic: str, _queue_id: int, /) -> int:
        return 10

    def max_offset_in_queue(self, _topic: str, _queue_id: int, /) -> int:
        return 100


def fake_store(queues: int = 4) -> MessageStore:
    """Return what the figures ask of a store with so many queues of one topic, messages 10 to 99 in each."""
    return cast("MessageStore", _FakeStore(queues))


@contextmanager
def a_few_figures(tmp_path: Path) -> Iterator[MetricsSources]:
    """Yield what a broker has with two topics, two groups, one commit and a delayed message, and no traffic."""
    topics = TopicConfigManager(tmp_path / "topics.json", clock_ms=lambda: 0)
    topics.load()
    topics.create_on_send("orders")
    topics.create_on_send("silent")
    offsets = ConsumerOffsetManager(tmp_path / "consumerOffset.json", clock_ms=lambda: 0)
    offsets.load()
    offsets.commit("billing", "orders", 2, 70)
    settings = SubscriptionGroupManager(tmp_path / "subscriptionGroup.json", clock_ms=lambda: 0)
    settings.load()
    settings.find_or_create("idle")
    groups = GroupSources(settings, ConsumerGroups(), ProducerGroups(), GroupProgress(), LagFigures(), dict)
    delays = DelayStats()
    delays.waiting["orders"] += 1
    schedules = ScheduleStats()
    schedules.sent["orders"] += 1
    counters = Counters()
    proxy = ProxyCounters(1, is_ready=True, figures=ProxyFigures([("SendMessage", "OK", 1)], sent=1))
    counters.name_servers["names:9876"] = NameServerTraffic()
    yield MetricsSources(
        BrokerConfig(),
        counters,
        Health(),
        topics=topics,
        offsets=offsets,
        store=fake_store(),
        groups=groups,
        proxy=proxy,
        delays=DelaySources(delays, lambda: 0.0, lambda: 0),
        schedules=ScheduleSources(schedules, lambda: [("nightly", "active")], lambda: 0.0),
        pop=PopSources(lambda: iter([(("billing", "orders"), 2)]), lambda: 0.0),
        replication=lambda: REPLICATION,
    )
    offsets.close()


Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Page:
    """Return the values of a page by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(page: Page, name: str, **labels: str) -> float:
    return page[name, frozenset(labels.items())]


def check(text: str, catalogue: Mapping[str, MetricSpec], prefix: str) -> set[str]:
    """Check every family of a page against the catalogue; return the names of those that have samples."""
    seen = set()
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(prefix):
            continue
        spec = catalogue.get(family.name) or catalogue[f"{family.name}_total"]
        assert (family.type, family.documentation) == (spec.type, spec.help), spec.name
        labels: dict[str, set[str]] = {}
        for sample in family.samples:
            own = sample.labels.keys() - ({"le"} if sample.name.endswith("_bucket") else set())
            assert own == spec.labels.keys(), sample
            for label, text_value in sample.labels.items():
                labels.setdefault(label, set()).add(text_value)
        for label, values in spec.labels.items():
            assert not values or labels.get(label, set()) <= set(values), (spec.name, label, labels[label])
        if spec.type == "histogram" and family.samples:
            assert labels["le"] == {*map(floatToGoString, spec.buckets), "+Inf"}, spec.name
        if family.samples:
            seen.add(spec.name)
    return seen


def known_series(catalogue: Mapping[str, MetricSpec]) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    """Return every series of the catalogue whose labels have listed values only; of a histogram its count."""
    return {
        (spec.name + ("_count" if spec.type == "histogram" else ""), frozenset(zip(spec.labels, values, strict=True)))
        for spec in catalogue.values()
        if all(spec.labels.values())
        for values in product(*spec.labels.values())
    }
