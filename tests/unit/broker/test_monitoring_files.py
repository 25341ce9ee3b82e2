"""The files for Prometheus and Grafana use only series and labels that the broker's page has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from reput_broker.config.model import BrokerConfig
from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.lag import LagFigures
from reput_broker.groups.progress import GroupProgress
from reput_broker.observe.counters import Counters, DelayStats, NameServerTraffic
from reput_broker.observe.delivery_metrics import DelaySources, GroupSources
from reput_broker.observe.health import Health
from reput_broker.observe.metrics import MetricsCollector, MetricsSources
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_protocol.codes import RequestCode
from tenures import REPLICATION

ROOT = Path(__file__).resolve().parents[3]
DASHBOARD = ROOT / "conf" / "grafana" / "dashboards" / "reput.json"
RULES = ROOT / "conf" / "prometheus" / "rules.yml"

_SERIES = re.compile(r"\b(?:reput|process|python)_[a-z_]+")
_LABELS = re.compile(r"((?:reput|process|python)_[a-z_]+)\{([^}]*)\}")
_ADDED_BY_PROMETHEUS = {"instance", "job"}


class OneQueue:
    commit_behind_bytes = file_waits = 0
    flush_behind_bytes = dispatch_behind_bytes = min_physical_offset = max_physical_offset = 0

    def queues(self) -> list[tuple[str, int]]:
        return [("orders", 0)]

    def min_offset_in_queue(self, _topic: str, _queue_id: int, /) -> int:
        return 0

    def max_offset_in_queue(self, _topic: str, _queue_id: int, /) -> int:
        return 9


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every series of a broker with one message put and taken, and the labels that it has."""
    offsets = ConsumerOffsetManager(
        tmp_path_factory.mktemp("config") / "consumerOffset.json", clock_ms=lambda: 0
    )
    offsets.load()
    offsets.commit("billing", "orders", 0, 1)
    counters = Counters()
    counters.name_servers["names:9876"] = NameServerTraffic()
    counters.topic("orders").count_in(1, 1)
    counters.group("orders", "billing").count_out(1, 1)
    counters.request(0x4D, RequestCode.PUT_MESSAGE).begin()
    counters.retry.transactions["orders", "commit"] += 1
    settings = SubscriptionGroupManager(offsets.file.path, clock_ms=lambda: 0)
    groups = GroupSources(settings, ConsumerGroups(), GroupProgress(), LagFigures())
    delays = DelayStats()
    delays.waiting["orders"] += 1
    sources = MetricsSources(
        BrokerConfig(),
        counters,
        Health(),
        offsets=offsets,
        store=OneQueue(),
        groups=groups,
        delays=DelaySources(delays, lambda: 0.0),
        replication=lambda: REPLICATION,
    )
    text = generate_latest(MetricsCollector(sources)).decode()
    offsets.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        yield variable["query"]["query"]
    yield from re.findall(r"expr:(.*?)\n +(?:for|labels):", RULES.read_text(), re.DOTALL)


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_series_and_label_in_use_exists(expression: str, series: dict[str, set[str]]) -> None:
    used = set(_SERIES.findall(expression))
    assert used or "up" in expression
    assert used <= set(series)
    for name, selector in _LABELS.findall(expression):
        labels = set(re.findall(r"(\w+)\s*[!=]~?=?", re.sub(r'"[^"]*"', "", selector)))
        assert labels <= series[name] | _ADDED_BY_PROMETHEUS, (name, labels)


def test_every_alert_has_a_section_in_the_runbook() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    links = re.findall(r"runbook: docs/runbook.md#(\w+)", RULES.read_text())
    assert links == [alert.lower() for alert in alerts]
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sections == alerts


def test_panels_do_not_overlap_and_have_names() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    titles = [panel["title"] for panel in panels()]
    assert all(titles)
    assert len({panel["id"] for panel in panels()}) == len(titles)
