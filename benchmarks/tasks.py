"""`make bench KIND=tasks`: Celery on Reput, Redis and RabbitMQ, with the same program and worker.

Each case is run on all alternately, several times, and its median counts: sending tasks one after the other from one
thread, and a worker with two processes that does tasks which do nothing, or take 10 ms. Durability is what a task has
when `delay()` returns: the page cache (Redis: appendfsync everysec; RabbitMQ: no confirms), or the disk (appendfsync
always; confirms). Processor time a task is that of program or worker, and of the server.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from peers import fetch
from peers.servers import rabbitmq, redis, reput
from peers.servers.base import Server
from peers.workloads import Durability
from tables import aligned, figure


class Figures(NamedTuple):
    """Tasks a second, and processor time a task in us: of the program or the worker, and of the server."""

    rate: float
    own_us: float
    server_us: float


def url_of(system: str, server: Server) -> str:
    """Return the broker's URL for Celery."""
    return {"reput": "reput://{}//", "redis": "redis://{}/0", "rabbitmq": "amqp://{}//"}[system].format(server.address)


def environment(url: str, durability: Durability, done: Path) -> dict[str, str]:
    """Return the environment of `task_program`."""
    names = {"BENCH_URL": url, "BENCH_ACK": durability, "BENCH_DONE": str(done)}
    return fetch.clients_environment() | names


def send(tasks: int, server: Server, environ: dict[str, str], takes_s: float = 0.0) -> Figures:
    """Send tasks from a process of its own."""
    before = server.cpu_s()
    program: list[str | Path] = [
        fetch.clients() / "bin/python",
        fetch.HERE.parent / "task_program.py",
        str(tasks),
        str(takes_s),
    ]
    said = subprocess.run(program, env=environ, check=True, capture_output=True, text=True).stdout.split()
    took_s, own_s = map(float, said[-2:])
    return Figures(tasks / took_s, own_s / tasks * 1e6, (server.cpu_s() - before) / tasks * 1e6)


@contextmanager
def worker(environ: dict[str, str], log: Path) -> Iterator[Server]:
    """Run a worker with two processes."""
    arguments = ["-m", "celery", "-A", "task_program", "worker", "-c", "2", "-l", "WARNING", "--without-gossip"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [fetch.clients() / "bin/python", *arguments, "--without-mingle"], env=environ, stdout=file, stderr=file
        )
    try:
        yield Server("", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def work(tasks: int, takes_s: float, server: Server, environ: dict[str, str], done: Path) -> Figures:
    """Send tasks, and measure a worker when a fifth of them is done."""
    done.write_bytes(b"")
    send(tasks, server, environ, takes_s)

    def wait(count: int) -> float:
        until = time.monotonic() + 300.0
        while done.stat().st_size < count:
            if time.monotonic() > until:
                raise SystemExit(f"{done.stat().st_size} of {tasks} tasks were done")
            time.sleep(0.002)
        return time.perf_counter()

    with worker(environ, done.with_suffix(".log")) as worker_process:
        began_at, counted = wait(tasks // 5), done.stat().st_size
        own, servers = worker_process.cpu_s(), server.cpu_s()
        ended_at = wait(tasks)
        measured = tasks - counted
        return Figures(
            measured / (ended_at - began_at),
            (worker_process.cpu_s() - own) / measured * 1e6,
            (server.cpu_s() - servers) / measured * 1e6,
        )


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Celery on Reput, Redis and RabbitMQ")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=2000)
    options = parser.parse_args()
    systems: dict[str, Callable[..., object]] = {
        "reput": reput.start,
        "redis": redis.start,
        "rabbitmq": rabbitmq.start_queues,
    }
    rows = [["Case", "Durability", "System", "tasks/s", "own us", "server us"]]
    with tempfile.TemporaryDirectory(prefix="reput-tasks-") as place:
        for durability in ("page_cache", "flushed"):
            found: dict[tuple[str, str], list[Figures]] = {}
            for number in range(options.rounds):
                for system, start in systems.items():
                    directory = Path(place) / f"{durability}-{number}-{system}"
                    directory.mkdir()
                    with start(directory, durability) as server:  # type: ignore[attr-defined]
                        done = directory / "done"
                        environ = environment(url_of(system, server), durability, done)
                        found.setdefault(("send", system), []).append(send(options.tasks, server, environ))
                    directory = directory.with_name(directory.name + "-work")
                    directory.mkdir()
                    with start(directory, durability) as server:  # type: ignore[attr-defined]
                        done = directory / "done"
                        environ = environment(url_of(system, server), durability, done)
                        for name, takes_s in (("no-op", 0.0), ("10 ms", 0.01)):
                            count = options.tasks if not takes_s else options.tasks // 4
                            figures = work(count, takes_s, server, environ, done)
                            found.setdefault((name, system), []).append(figures)
            for (case, system), each in found.items():
                middle = [statistics.median(column) for column in zip(*each, strict=True)]
                rows.append([case, durability, system, *map(figure, middle)])
    print("\n".join(aligned(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
