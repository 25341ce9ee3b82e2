"""Rows per CPU second on a standalone master with two workers, all on loopback. A part of `spark_run.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from reput_pipeline.spark.session import make_session
from spark_measure import Line, Turns, Way, per_cpu_second
from spark_source import TOPIC, read_through

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from spark_cluster import SparkCluster


def measure_workers(root: Path, address: str, messages: int, turns: Turns) -> Iterator[Line]:
    """Start the cluster, read all messages, end it. No other session may be active.

    Args:
        root: holds the directory `store`; logs of the cluster go beside it.
        address: of a broker that serves that directory.
        messages: how many there are.
        turns: runs them.
    """
    with SparkCluster(root / "cluster") as cluster:
        conf = {"spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1"}
        spark = make_session("bench", master=cluster.master, conf=conf, quiet=True)
        try:
            sources = {
                "offline, 2 workers": {"path": str(root / "store")},
                "live, 2 workers, broker included": {"nameServer": address},
            }
            ways: dict[str, Way] = {
                name: partial(
                    read_through, spark.read.format("reput").options(subscribe=TOPIC, **options).load
                )
                for name, options in sources.items()
            }
            for name, spent in turns.take(messages, ways).items():
                yield per_cpu_second(name, messages, spent)
        finally:
            spark.stop()
