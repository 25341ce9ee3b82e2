"""A real Prometheus with the shipped rules, sped up; what it answers; the queries of the shipped dashboard."""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from support.broker_process import free_port

CONF: Final = Path(__file__).resolve().parents[2] / "conf"
RULES: Final = CONF / "prometheus" / "rules.yml"
DASHBOARD: Final = CONF / "grafana" / "dashboards" / "reput.json"
SPED_UP: Final = "`for:` is 1 s; windows of 5 and 10 minutes are 6 s, that of an hour is 15 s; scrapes every 0.5 s"
_SCRAPE_S: Final = 0.5
_START_S: Final = 30.0


def sped_up(rules: str) -> str:
    """Return rules with shorter windows and without long waits; what they compare stays."""
    rules = re.sub(r"^( +for:) .*$", r"\1 1s", rules, flags=re.MULTILINE)
    rules = rules.replace("[1h]", "[15s]").replace("[10m:1m]", "[6s:1s]")
    rules, count = re.subn(r"\[(?:5|10)m\]", "[6s]", rules)
    assert count, "the rules have no window of minutes any more; change this function"
    return rules


def dashboard_queries() -> list[tuple[str, str]]:
    """Return (panel, query) of the shipped dashboard, with every instance, topic and group chosen.

    Those of Spark's drivers are left out: they are not the broker's, and no driver runs here.
    """
    found = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            if "reput_query_" in target["expr"]:
                continue
            query = re.sub(r"\$(?:instance|topic|group)\b", ".+", target["expr"])
            found.append((panel["title"], query.replace("$__rate_interval", "6s")))
    return found


class Prometheus:
    """One process; a context manager.

    Args:
        directory: for its configuration, data and log.
        targets: what it scrapes, `host:port` by name; the name becomes the label `instance`.
    """

    def __init__(self, directory: Path, targets: Mapping[str, str]) -> None:
        directory.mkdir()
        (directory / "rules.yml").write_text(sped_up(RULES.read_text()))
        (directory / "prometheus.yml").write_text(
            json.dumps(  # which is YAML
                {
                    "global": {
                        "scrape_interval": f"{_SCRAPE_S * 1000:.0f}ms",
                        "evaluation_interval": f"{_SCRAPE_S * 1000:.0f}ms",
                    },
                    "rule_files": ["rules.yml"],
                    "scrape_configs": [
                        {
                            "job_name": "reput",
                            "static_configs": [
                                {"targets": [address], "labels": {"instance": name}}
                                for name, address in targets.items()
                            ],
                        }
                    ],
                }
            )
        )
        self._directory = directory
        self._address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        directory = self._directory
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={directory / 'prometheus.yml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={self._address}",
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START_S
        while True:
            with suppress(OSError):
                self._ask("query", query="up")
                return self
            assert time.monotonic() < deadline, (directory / "log").read_text()[-2000:]
            time.sleep(0.1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_START_S)

    def firing(self) -> set[tuple[str, str, str]]:
        """Return (alert, instance, group) of what fires now; without a group "" stands for it."""
        alerts = self._ask("alerts")["alerts"]
        return {
            (labels["alertname"], labels["instance"], labels.get("group", ""))
            for labels, state in ((alert["labels"], alert["state"]) for alert in alerts)
            if state == "firing"
        }

    def broken_rules(self) -> list[str]:
        """Return the rules whose evaluation failed, with the reason."""
        groups = self._ask("rules", type="alert")["groups"]
        rules = (rule for group in groups for rule in group["rules"])
        return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule["health"] == "err"]

    def has_data(self, query: str) -> bool:
        """Tell whether a query is answered with at least one number."""
        result = self._ask("query", query=query)["result"]
        return any(not math.isnan(float(series["value"][1])) for series in result)

    def _ask(self, page: str, **parameters: str) -> Any:
        url = f"http://{self._address}/api/v1/{page}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10.0) as answer:
            document = json.load(answer)
        return document["data"]


class Panels:
    """Which queries of the dashboard have been answered with data so far."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.total = len(dashboard_queries())
        self.empty = dashboard_queries()

    def look(self) -> None:
        """Ask the queries again that had no data yet."""
        self.empty = [(panel, query) for panel, query in self.empty if not self._prometheus.has_data(query)]


def wait_for(condition: Any, deadline_s: float, looks: Iterable[Any] = ()) -> bool:
    """Wait until a condition holds; tell whether it did in time."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        for look in looks:
            look()
        time.sleep(0.25)
    return True
