"""`python tests/proxy_faults/run.py`: kill proxy, broker or master under RocketMQ's gRPC clients for Java and Python.

Exit code 0 if everything whose send has succeeded is received, and nothing is received twice but what was received
within 15 s of a kill. The clients do not report their acknowledgements, so this does not show that each one counted.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from proxy_faults.load import Load
from support.broker_process import BrokerProcess, free_port
from support.cluster_of_three import ClusterOfThree
from support.maven import Unreachable
from support.proxy_process import running_proxy
from support.waiting import wait_until

CLIENTS = ("grpc-python", "grpc-java")
BETWEEN = 20
"""Messages that are sent and received between two kills."""


@contextmanager
def _proxy(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of `reput proxy`, and what kills it and starts it again."""
    with BrokerProcess(directory / "data") as broker, running_proxy(directory, broker.address) as proxy:
        proxy.wait_ready()

        def kill() -> None:
            proxy.kill()
            proxy.start()
            proxy.wait_ready()

        yield proxy.address, kill


@contextmanager
def _broker(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of `reput proxy`, and what kills its broker and starts it again."""
    with BrokerProcess(directory / "data") as broker, running_proxy(directory, broker.address) as proxy:
        proxy.wait_ready()

        def kill() -> None:
            broker.kill()
            broker.start()
            broker.wait_ready()

        yield proxy.address, kill


@contextmanager
def _both(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of the proxy that a broker starts, and what kills that broker, so that both end."""
    port = free_port()
    with BrokerProcess(directory / "data", environment={"REPUT_PROXY_PORT": str(port)}) as broker:

        def kill() -> None:
            broker.kill()
            broker.start()
            broker.wait_ready()

        yield f"127.0.0.1:{port}", kill


@contextmanager
def _master(directory: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of `reput proxy` in front of a group of three, and what kills the master of that."""
    with ExitStack() as stack:
        cluster = stack.enter_context(
            ClusterOfThree(directory, environment={"REPUT_HA__IN_SYNC_REPLICAS": "2"})
        )
        servers = ",".join(cluster.addresses)
        proxy = stack.enter_context(running_proxy(directory, servers, "--ack", "replicated"))
        proxy.wait_ready()

        def kill() -> None:
            old = cluster.wait_in_sync(0, 1, 2)
            cluster.brokers[old].kill()
            wait_until(lambda: cluster.master() not in (None, old), what=cluster.tails)
            cluster.brokers[old].start()
            cluster.brokers[old].wait_ready()

        yield proxy.address, kill


KINDS = {"proxy": _proxy, "broker": _broker, "both": _both, "master": _master}


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50, help="kills of each kind under each client (50)")
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="only this one; repeatable")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only this one; repeatable")
    parser.add_argument("--seed", type=int, help="of the pauses before kills")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process is left behind
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    failed = False
    for kind in arguments.kind or KINDS:
        for client in arguments.client or CLIENTS:
            with tempfile.TemporaryDirectory(prefix="reput-proxy-faults-") as directory:
                try:
                    failed |= not _run(kind, client, arguments.rounds, random.Random(seed), Path(directory))
                except Unreachable as error:
                    print(f"{kind}, {client}: skipped: {error}", flush=True)
    return int(failed)


def _run(kind: str, client: str, rounds: int, rng: random.Random, directory: Path) -> bool:
    """Kill under one client; print the outcome and return whether all promises were kept."""
    with KINDS[kind](directory) as (address, kill):
        load = Load(client, address, directory / "clients")
        started_at = time.monotonic()
        try:
            load.start()
            for _ in range(rounds):
                load.more(BETWEEN)
                time.sleep(rng.random())
                load.kills.append(time.monotonic())
                kill()
                load.kills.append(time.monotonic())
            load.more(BETWEEN)
            wrong = load.finish()
        except AssertionError as error:
            wrong = [f"after {len(load.kills) // 2} kills: {error}"]
        finally:
            load.close()
    took_s = time.monotonic() - started_at
    print(
        f"{kind}, {client}: {len(load.kills) // 2} kills in {took_s:.0f} s; "
        f"{len(load.stored)} sends succeeded, {load.failed} failed; "
        f"{load.duplicates()} duplicates; {'FAILED' if wrong else 'nothing lost'}",
        flush=True,
    )
    for line in wrong[:20]:
        print(f"  {line}", flush=True)
    return not wrong


if __name__ == "__main__":
    sys.exit(main())
