"""How long a group of brokers takes no messages when its master changes; with a real etcd, all on this machine.

- From `kill -9` of the master to the first acknowledged put at the next one: the lease has to end first.
- From the request for a hand-over to the first acknowledged put at the next one.

A producer that knows all three brokers puts one message after the other, and begins again after an error.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from reput_client import Ack
from reput_client.blocking import Admin, Producer
from reput_protocol.errors import ReputError
from reput_protocol.record.message import Message
from run import Row
from support.cluster_of_three import ClusterOfThree
from tables import aligned

ROUNDS: Final = 20
_LEASE_S: Final = 3
_DEADLINE_S: Final = 60.0


def failover(rounds: int) -> list[Row]:
    """Return the rows; none without etcd."""
    if shutil.which("etcd") is None:
        print("no figures of failover: etcd is not installed (apt: etcd-server)", file=sys.stderr)
        return []
    options = {"REPUT_HA__IN_SYNC_REPLICAS": "2"}
    with (
        tempfile.TemporaryDirectory(prefix="reput-failover-") as directory,
        ClusterOfThree(Path(directory), lease=f"{_LEASE_S}s", environment=options) as cluster,
    ):
        rows = []
        for ack in ("flushed", "replicated"):
            killed = [_killed(cluster, ack) for _ in range(rounds)]
            rows.append(_row(f"kill -9 of the master to the first {ack} put", killed, _LEASE_S + 1.0))
        handed = [_handed_over(cluster) for _ in range(rounds)]
        rows.append(_row("hand-over to the first replicated put", handed, 1.0))
    return rows


def _row(measure: str, seconds: list[float], goal_s: float) -> Row:
    return Row(
        measure,
        "s",
        round(statistics.median(seconds), 3),
        goal_s,
        f"goal, lease {_LEASE_S} s",
        round(statistics.median(seconds) / goal_s, 2),
        facts={"worst": round(max(seconds), 3), "rounds": len(seconds)},
    )


def _killed(cluster: ClusterOfThree, ack: Ack) -> float:
    master = cluster.wait_in_sync(0, 1, 2)
    took_s = _time_without_master(cluster, ack, cluster.brokers[master].kill)
    cluster.brokers[master].start()
    cluster.brokers[master].wait_ready()
    return took_s


def _handed_over(cluster: ClusterOfThree) -> float:
    master = cluster.wait_in_sync(0, 1, 2)

    def hand_over() -> None:
        with Admin(cluster.brokers[master].address) as admin:
            admin.promote_broker((master + 1) % 3)

    return _time_without_master(cluster, "replicated", hand_over)


def _time_without_master(cluster: ClusterOfThree, ack: Ack, change: Callable[[], None]) -> float:
    with Producer(cluster.addresses, group="bench", ack=ack) as producer:
        _put(producer)
        before = {cluster.brokers[number].address for number in (cluster.wait_master(),)}
        began = time.perf_counter()
        change()
        while _put(producer) in before:
            if time.perf_counter() - began > _DEADLINE_S:
                raise SystemExit(f"no other broker became the master\n{cluster.tails()}")
        return time.perf_counter() - began


def _put(producer: Producer) -> str:
    """Put a message until it is acknowledged; return the broker that has stored it."""
    deadline = time.perf_counter() + _DEADLINE_S
    while True:
        try:
            return producer.send(Message("Failover", b"x" * 100)).store_host
        except ReputError as error:
            if time.perf_counter() > deadline:
                raise SystemExit(f"no put is acknowledged: {error}") from None


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rows = failover(parser.parse_args().rounds)
    lines = [
        [row.measure, *(f"{value:g}" for value in (row.reput, row.facts["worst"], row.baseline or 0.0))] for row in rows
    ]
    print("\n".join(aligned([["measure", "median s", "worst s", "goal s"], *lines])))


if __name__ == "__main__":
    main()
