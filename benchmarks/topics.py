"""`make bench KIND=topics`: time and memory of many topics: created one by one and in parallel, listed, found, deleted.

    python benchmarks/topics.py --topics 20000 --with-messages 2000

Processor time and private memory (RssAnon) are the broker's, and so is the time by which its event loop was late at
most. The first thousand topics are created one by one, to compare the first with the last of them, the others over 16
connections: the requests of one are handled in order. `--with-messages` gives so many of them a message in each of
their four queues before they are deleted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from reput_cli.bench_clients import host_facts
from reput_client import Admin, Message, Producer
from servers import RunningBroker, broker_on

_ONE_BY_ONE = 1_000
_CONNECTIONS = 16


def main() -> None:
    """Run every step and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=20_000)
    parser.add_argument("--with-messages", type=int, default=2_000)
    parser.add_argument("--one-by-one", type=int, default=_ONE_BY_ONE)
    arguments = parser.parse_args()
    names = [f"topic-{number:05}" for number in range(arguments.topics)]
    with TemporaryDirectory(prefix="reput-bench-") as directory:
        place = Path(directory)
        with broker_on(place, "sync") as server:
            trio.run(_measure, server, names, arguments.one_by_one)
        with broker_on(place, "sync") as server:
            print(f"start with {len(names)} topics: {server.start_s:.2f} s, {server.memory_mib('RssAnon'):.0f} MiB")
            trio.run(_measure_messages_and_deletion, server, names, arguments.with_messages)
    print(host_facts())


async def _measure(server: RunningBroker, names: Sequence[str], one_by_one: int) -> None:
    async with Admin(server.address, timeout_s=60.0) as admin:
        took = []
        for name in names[:one_by_one]:
            started_at = time.perf_counter()
            await admin.create_topic(name)
            took.append(time.perf_counter() - started_at)
        tenth = max(1, len(took) // 10)
        first, last = statistics.median(took[:tenth]), statistics.median(took[-tenth:])
        print(f"one by one, medians of the first and the last {tenth}: {first * 1e3:.2f} ms, {last * 1e3:.2f} ms")
        rest = names[one_by_one:]
        with _measured(server, f"create {len(rest)} over {_CONNECTIONS} connections", len(rest)):
            await _by_connections(server, rest, Admin.create_topic)
        with _measured(server, f"list {len(names)} with their figures", 1):
            found = len(await admin.topic_summaries())
        assert found >= len(names)
        with _measured(server, f"search one of {len(names)} on the console's page", 1):
            await trio.to_thread.run_sync(_search, server, names[-1])
        with _measured(server, "one topic's figures", 1):
            await admin.topic_stats(names[-1])


def _search(server: RunningBroker, name: str) -> None:
    with urllib.request.urlopen(f"{server.http}/console/api/topics?search={name}", timeout=60.0) as answer:
        assert json.load(answer)["total"] == 1


async def _measure_messages_and_deletion(server: RunningBroker, names: Sequence[str], filled: int) -> None:
    async with (
        Admin(server.address, timeout_s=60.0) as admin,
        Producer(server.address, group="bench", timeout_s=60.0) as producer,
    ):
        with _measured(server, f"4 messages to each of {filled}", filled):
            for name in names[:filled]:
                for queue_id in range(4):
                    await producer.post(Message(name, b"x"), queue_id=queue_id)
            await producer.flush()
        with _measured(server, f"delete {filled} with messages", filled):
            await _by_connections(server, names[:filled], Admin.delete_topic)
        rest = names[filled:]
        with _measured(server, f"delete {len(rest)} without", len(rest)):
            await _by_connections(server, rest, Admin.delete_topic)
        left = set(await admin.list_topics()) & set(names)
        assert not left, left


async def _by_connections(
    server: RunningBroker, names: Sequence[str], act: Callable[[Admin, str], Awaitable[None]]
) -> None:
    waiting = iter(names)

    async def work() -> None:
        async with Admin(server.address, timeout_s=60.0) as admin:
            for name in waiting:
                await act(admin, name)

    async with trio.open_nursery() as nursery:
        for _ in range(_CONNECTIONS):
            nursery.start_soon(work)


@contextmanager
def _measured(server: RunningBroker, what: str, count: int) -> Iterator[None]:
    delays = server.loop_delays()
    cpu_s, memory, started_at = server.cpu_s(), server.memory_mib("RssAnon"), time.perf_counter()
    yield
    took, cpu_s = time.perf_counter() - started_at, server.cpu_s() - cpu_s
    grown = server.memory_mib("RssAnon") - memory
    each = (
        f" ({took / count * 1e3:.2f} ms, {cpu_s / count * 1e3:.2f} ms of the broker's processor each)"
        if count > 1
        else ""
    )
    print(
        f"{what}: {took:.2f} s, {cpu_s:.2f} s of the broker's processor, {grown:+.1f} MiB{each}; "
        f"the event loop was late by at most {server.loop_late_s(delays) * 1e3:g} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
