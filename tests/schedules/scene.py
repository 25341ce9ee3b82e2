"""Three brokers of a group with schedules, whose master is killed again and again."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from reput_client.blocking import Admin, Message
from reput_protocol.errors import ReputError
from schedules.judge import Plan, Verdict, judge, read_all
from support.cluster_of_three import ClusterOfThree
from support.waiting import wait_until

TOPIC = "scheduled"
_BEFORE_MS = 2000
"""What the killed master had sent last, the new one may not have."""
_AFTER_MS = 5000
"""A master reads its log before its schedules send."""
_CALM_S = 12.0
"""How long no master is killed before the first kill and after each fourth one: only outside of outages, which these
two lengthen, must a schedule that sends only the latest of missed times leave out none.
"""
_OPTIONS = {"REPUT_HA__IN_SYNC_REPLICAS": "2", "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "32MiB"}


def create(addresses: Sequence[str], schedules: Sequence[tuple[str, str]]) -> dict[str, Plan]:
    """Create schedules by their times, `@every` or a cron expression of minutes, and which missed times they send;
    return their plans by name.
    """
    made: dict[str, Plan] = {}
    with Admin(addresses) as admin:
        admin.ensure_topic(TOPIC)
        for number, (when, missed) in enumerate(schedules):
            name = f"s{number}"
            admin.create_schedule(name, when, Message(TOPIC, b"tick"), missed=missed)
            created_ms = admin.describe_schedule(name).created_ms
            anchor_ms, interval_ms = created_ms, 0
            if when.startswith("@every"):
                interval_ms = int(when.removeprefix("@every").strip().removesuffix("ms"))
            else:
                anchor_ms, interval_ms = 0, _MINUTES[when] * 60_000
            made[name] = Plan(created_ms, anchor_ms, interval_ms, missed == "latest")
    return made


_MINUTES: Final = {"* * * * *": 1, "*/2 * * * *": 2}
"""The intervals of the cron expressions; those of one day have the same distance to those of the next."""


def verdict_of(addresses: Sequence[str], plans: dict[str, Plan], outages: Sequence[tuple[int, int]] = ()) -> Verdict:
    """Wait until everything that is due now was sent, and judge it."""
    until_ms = time.time_ns() // 1_000_000

    def is_done() -> bool:
        try:
            with Admin(addresses) as admin:
                listed = admin.list_schedules(TOPIC)
        except ReputError:
            return False  # no master serves yet
        return all((one.next_ms or 0) > until_ms for one in listed)

    wait_until(is_done, 60.0)
    while True:
        verdict = judge(read_all(addresses, TOPIC), plans, until_ms, outages)
        # What was sent last cannot be read before all members of the set have it.
        if not any("nothing was sent" in line for line in verdict.wrong) or time.time() * 1000 > until_ms + 10_000:
            return verdict
        time.sleep(0.2)


def run(
    path: Path,
    minutes: float,
    schedules: Sequence[tuple[str, str]],
    rng: random.Random,
    *,
    bug: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Verdict, int]:
    """Kill the master every few seconds, with calm in between; return the verdict and how many were killed."""
    command = [sys.executable, "-m", "reput_cli"]
    if bug is not None:
        command = [sys.executable, str(Path(__file__).with_name("planted.py")), bug]
    kills = 0
    with ClusterOfThree(path, lease="3s", environment=_OPTIONS, command=command) as cluster:
        plans = create(cluster.addresses, schedules)
        outages: list[tuple[int, int]] = []
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.5, 4.0) if kills % 4 else _CALM_S)
            master = cluster.wait_master()
            began_ms = time.time_ns() // 1_000_000 - _BEFORE_MS
            cluster.brokers[master].kill()
            kills += 1
            cluster.wait_master()
            outages.append((began_ms, time.time_ns() // 1_000_000 + _AFTER_MS))
            time.sleep(rng.uniform(0.0, 2.0))
            cluster.brokers[master].start()
            cluster.brokers[master].wait_ready()
            if rng.random() < 0.5:
                cluster.wait_in_sync(0, 1, 2)
            else:
                cluster.wait_master()
            progress(f"{kills} masters killed")
        return verdict_of(cluster.addresses, plans, outages), kills
