"""`make soak KIND=ops`: rules, alerts, dashboard and console with a real Prometheus and a real browser.

1. promtool checks the shipped rules, and runs their unit tests (rules_test.yml).
2. Each alert is fired by its real cause at a real broker, and cleared; the rules' waits and windows are shortened.
3. Each query of the Grafana dashboard is answered with data at some time meanwhile.
4. Each page of the console is opened in Chromium, and its picture written.

Needs root (to mount a small disk), a C compiler, and Debian's packages prometheus and chromium. Exits with 1 if
something failed, with 2 if something is missing.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from ops import scenes
from ops.monitoring import RULES, SPED_UP, Panels, Prometheus, wait_for
from ops.scenes import Alert, Scene
from ops.site import Site
from support.browser import CHROMIUM
from support.console_pictures import take_pictures

RULES_TEST: Final = Path(__file__).with_name("rules_test.yml")


class Row(NamedTuple):
    """What became of one alert."""

    alert: str
    broker: str
    fired_s: float | None
    cleared_s: float | None
    cause: str

    @property
    def is_ok(self) -> bool:
        return self.fired_s is not None and self.cleared_s is not None


class Stage:
    """Plays scenes and notes when their alerts fire and clear."""

    def __init__(self, site: Site, prometheus: Prometheus) -> None:
        self._site = site
        self._prometheus = prometheus
        self.panels = Panels(prometheus)
        self.rows: list[Row] = []

    def play(self, scene: Scene, meanwhile: Iterable[Scene] = ()) -> None:
        """Cause the alerts of a scene, wait until all fire, end the cause, wait until all are clear.

        Args:
            scene: what is played.
            meanwhile: scenes that are played after its cause has begun.
        """
        began = time.monotonic()
        fired: dict[Alert, float] = {}
        cleared: dict[Alert, float] = {}
        try:
            with scene.play(self._site):
                for other in meanwhile:
                    self.play(other)
                self._until(scene, fired, began, is_firing=True)
            self._until(scene, cleared, time.monotonic(), is_firing=False)
        except Exception as error:
            print(f"error: {scene.cause}: {type(error).__name__}: {error}", file=sys.stderr)
        for alert in scene.alerts:
            row = Row(alert[0], alert[1], fired.get(alert), cleared.get(alert), scene.cause)
            self.rows.append(row)
            print(_line(row), flush=True)

    def _until(self, scene: Scene, at: dict[Alert, float], since: float, *, is_firing: bool) -> None:
        def done() -> bool:
            firing = self._prometheus.firing()
            for alert in scene.alerts:
                if alert not in at and (alert in firing) is is_firing:
                    at[alert] = time.monotonic() - since
            return len(at) == len(scene.alerts)

        wait_for(done, scene.deadline_s, [self.panels.look])


def main() -> int:
    """Run the check; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=Path, help="directory for the pictures of the console (a temporary one)")
    arguments = parser.parse_args()
    missing = [name for name in ("prometheus", "promtool", "cc") if shutil.which(name) is None]
    if CHROMIUM is None:
        missing.append("chromium")
    if missing:
        print(
            f"error: not installed: {', '.join(missing)} (Debian: apt install prometheus chromium gcc)", file=sys.stderr
        )
        return 2
    logging.disable(logging.WARNING)  # clients complain while their brokers are down
    print(f"Alerts are sped up: {SPED_UP}.\n")
    failures = _promtool()
    with tempfile.TemporaryDirectory(prefix="reput-ops-") as name:
        directory = Path(name)
        with Site(directory) as site, Prometheus(directory / "prometheus", site.targets) as prometheus:
            stage = Stage(site, prometheus)
            print(_HEAD)
            for scene in scenes.OF_THE_PAIR:
                stage.play(scene)
            stage.play(scenes.WHILE_MASTER_STOPS, meanwhile=scenes.OF_OTHERS)
            wait_for(lambda: not stage.panels.empty, 30.0, [stage.panels.look])
            failures += [f"rule {rule}" for rule in prometheus.broken_rules()]
        failures += _summary(stage)
        pictures = arguments.pictures or directory / "pictures"
        problems = take_pictures(pictures)
        print(f"Console: {len(list(pictures.glob('*.png')))} pictures, {len(problems)} problems")
        failures += problems
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _promtool() -> list[str]:
    failures = []
    for what in (("check", "rules", str(RULES)), ("test", "rules", str(RULES_TEST))):
        done = subprocess.run(["promtool", *what], capture_output=True, text=True, check=False)
        print(f"promtool {' '.join(what[:2])}: {'ok' if done.returncode == 0 else 'failed'}")
        if done.returncode:
            failures.append(done.stdout + done.stderr)
    return failures


_HEAD: Final = f"\n{'ALERT':<22}{'BROKER':<9}{'FIRED':>8}{'CLEARED':>9}  CAUSE"


def _line(row: Row) -> str:
    fired, cleared = (f"{at:.1f} s" if at is not None else "never" for at in (row.fired_s, row.cleared_s))
    return f"{row.alert:<22}{row.broker:<9}{fired:>8}{cleared:>9}  {row.cause}"


def _summary(stage: Stage) -> list[str]:
    """Print the numbers; return the failures."""
    shipped = set(re.findall(r"- alert: (\w+)", RULES.read_text()))
    ok = {row.alert for row in stage.rows if row.is_ok}
    panels = stage.panels
    print(f"\nAlerts: {len(ok & shipped)} of {len(shipped)} fired and cleared")
    print(f"Dashboard: {panels.total - len(panels.empty)} of {panels.total} queries answered with data")
    return [
        *(f"alert {row.alert} ({row.broker}): {_line(row)}" for row in stage.rows if not row.is_ok),
        *(f"alert {name} has no scene" for name in sorted(shipped - {row.alert for row in stage.rows})),
        *_empty(panels.empty),
    ]


def _empty(queries: Sequence[tuple[str, str]]) -> list[str]:
    return [f"panel {panel!r} has no data: {query}" for panel, query in queries]


if __name__ == "__main__":
    sys.exit(main())
