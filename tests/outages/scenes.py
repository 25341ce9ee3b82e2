"""A broker, or a group of brokers, that goes again and again while programs send."""

from __future__ import annotations

from pathlib import Path

from outages.load import Load, check
from support.broker_process import BrokerProcess, free_port
from support.cluster_of_three import ClusterOfThree

MORE = 300
"""Messages between two outages."""


def stop_or_kill(path: Path, how: str, rounds: int) -> tuple[int, str]:
    """End one broker with SIGTERM ("stop") or SIGKILL ("kill") and start it again, `rounds` times.

    Returns how many messages got a receipt, and what is wrong.
    """
    with BrokerProcess(path / "store", port=free_port()) as broker:
        load = Load([broker.address], "flushed")
        try:
            for _ in range(rounds):
                load.wait_for(MORE)
                if how == "stop":
                    assert broker.terminate() == 0
                else:
                    broker.kill()
                broker.start()
                broker.wait_ready()
            load.wait_for(MORE)
        finally:
            load.end()
        return len(load.stored), check(load)


def fail_over(path: Path, rounds: int) -> tuple[int, str]:
    """Kill the master of a group of three, which another member replaces, `rounds` times."""
    # Small files: a log whose end was cut is read to the end of its last file.
    options = {"REPUT_HA__IN_SYNC_REPLICAS": "2", "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "32MiB"}
    with ClusterOfThree(path, lease="3s", environment=options) as cluster:
        load = Load(cluster.addresses, "replicated")
        try:
            for _ in range(rounds):
                load.wait_for(MORE)
                old = cluster.wait_in_sync(0, 1, 2)
                cluster.brokers[old].kill()
                cluster.wait_master()
                load.wait_for(MORE)
                cluster.brokers[old].start()
                cluster.brokers[old].wait_ready()
            load.wait_for(MORE)
        finally:
            load.end()
        return len(load.stored), check(load)
