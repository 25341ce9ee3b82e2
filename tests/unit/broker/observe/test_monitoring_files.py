"""The files for Prometheus and Grafana use only series and labels that the broker's page has."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import GC_COLLECTOR
from prometheus_client.process_collector import ProcessCollector

from reput_broker.observe.catalogue import METRICS

ROOT = Path(__file__).resolve().parents[4]
DASHBOARD = ROOT / "conf" / "grafana" / "dashboards" / "reput.json"
RULES = ROOT / "conf" / "prometheus" / "rules.yml"

_SERIES = re.compile(r"\b(?:reput|process|python)_[a-z_]+")
_LABELS = re.compile(r"((?:reput|process|python)_[a-z_]+)\{([^}]*)\}")
_ADDED_BY_PROMETHEUS = {"instance", "job"}


def series() -> dict[str, set[str]]:
    """Return every series of the catalogue and of the standard collectors, and its labels."""
    found: dict[str, set[str]] = {}
    for spec in METRICS.values():
        if spec.type == "histogram":
            found |= {f"{spec.name}{suffix}": set(spec.labels) for suffix in ("_sum", "_count")}
            found[f"{spec.name}_bucket"] = {*spec.labels, "le"}
        else:
            found[spec.name] = set(spec.labels)
    for collector in (ProcessCollector(registry=None), GC_COLLECTOR):
        for family in collector.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


SERIES = series()


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads(DASHBOARD.read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    """Yield those about brokers; those about Spark's queries are tested with the driver's page."""
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"] if "reput_query_" not in target["expr"])
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        yield variable["query"]["query"]
    yield from re.findall(r"expr:(.*?)\n +(?:for|labels):", RULES.read_text(), re.DOTALL)


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_series_and_label_in_use_exists(expression: str) -> None:
    used = set(_SERIES.findall(expression))
    assert used or "up" in expression
    assert used <= set(SERIES)
    for name, selector in _LABELS.findall(expression):
        labels = set(re.findall(r"(\w+)\s*[!=]~?=?", re.sub(r'"[^"]*"', "", selector)))
        assert labels <= SERIES[name] | _ADDED_BY_PROMETHEUS, (name, labels)


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
