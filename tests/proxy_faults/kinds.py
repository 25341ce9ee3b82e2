"""The kinds of kills, and one run: kill under one client, and judge what it has sent and received."""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from proxy_faults import planted
from proxy_faults.judge import Span, unexplained
from proxy_faults.load import INVISIBLE_S, Load
from support.broker_process import BrokerProcess, free_port
from support.cluster_of_three import ClusterOfThree
from support.proxy_process import running_proxy
from support.waiting import wait_until

_REPLICATED = {"REPUT_HA__IN_SYNC_REPLICAS": "2", "REPUT_HA__ROLE": "SYNC_MASTER"}
"""An ASYNC_MASTER answers an acknowledgement before a copy has it, and a failover may lose it (docs/pop.md)."""
BETWEEN = 20
"""Messages that are sent and received between two kills."""


@contextmanager
def _proxy(directory: Path, bug: str | None = None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the address of `reput proxy`, which may have a bug, and what kills it and starts it again."""
    with (
        BrokerProcess(directory / "data") as broker,
        running_proxy(directory, broker.address, command=planted.command(bug)) as proxy,
    ):
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
        cluster = stack.enter_context(ClusterOfThree(directory, environment=_REPLICATED))
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


@dataclass(frozen=True)
class Outcome:
    """What a run has counted, in words, and what was wrong, a line each."""

    counted: str
    wrong: list[str]


def run(
    kind: str, client: str, rounds: int, rng: random.Random, *, bug: str | None = None, invisible_s: float = INVISIBLE_S
) -> Outcome:
    """Kill under one client; the proxy of the kind `proxy` may have a planted bug.

    Raises:
        Unreachable: the client is not here, and cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix="reput-proxy-faults-") as name:
        directory = Path(name)
        with _proxy(directory, bug) if kind == "proxy" else KINDS[kind](directory) as (address, kill):
            load = Load(client, address, directory / "clients", brokers_die=kind != "proxy", invisible_s=invisible_s)
            started_at = time.monotonic()
            try:
                load.start()
                for _ in range(rounds):
                    load.more(BETWEEN)
                    time.sleep(rng.random())
                    killed_at = time.time()
                    load.kills.append(Span(killed_at, math.inf))
                    kill()
                    load.kills[-1] = Span(killed_at, time.time())
                load.more(BETWEEN)
                wrong = load.finish()
            except AssertionError as error:
                wrong = [f"after {len(load.kills)} kills: {error!r}", *unexplained(load.history())]
            finally:
                load.close()
    took_s = time.monotonic() - started_at
    acks = load.acks()
    return Outcome(
        f"{len(load.kills)} kills in {took_s:.0f} s; {len(load.stored)} sends succeeded, {load.failed} failed; "
        f"{acks[True]} acknowledgements OK, {acks[False]} not; {load.duplicates()} duplicates",
        wrong,
    )
