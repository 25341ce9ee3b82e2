"""`make bench KIND=proxy`: processor time and speed of `reput proxy` and of RocketMQ's, in front of the same broker.

One program, with gRPC's own client, measures both alternately; each case is run several times, and its median counts.
The processor time a message is that of proxy and broker together: a proxy that asks the broker for more costs more
there. The broker has its default, flush = "sync", with which both proxies answer when the message is on disk.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from interop import proxy as proxies
from reput_client import Admin
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_proxy import messaging_pb2 as pb
from servers import RunningBroker, RunningProcess, broker
from support.grpc_client import GrpcClient, Telemetry, client_of, consumer_settings, message, producer_settings
from support.maven import Unreachable
from tables import aligned

BODY = bytes(1024)
SETTLE_S = 1.0
TOPIC, FIFO = "bench", "bench-fifo"
AGENT = {"x-mq-language": "PYTHON", "x-mq-client-version": "5.0.0", "x-mq-protocol": "v2"}
"""What RocketMQ's proxy wants to know of a client."""


@dataclass(frozen=True, slots=True)
class Place(RunningProcess):
    """A proxy that is measured: its process, name and address."""

    name: str
    address: str


@dataclass(frozen=True)
class Cost:
    """What a message has cost: seconds of processor time in the proxy and the broker, and of time."""

    proxy_s: float
    broker_s: float
    time_s: float

    @property
    def cpu_s(self) -> float:
        """Of both."""
        return self.proxy_s + self.broker_s


class Case(NamedTuple):
    """A measurement: `run` takes connected clients, and returns after `messages` messages."""

    name: str
    clients: int
    messages: int
    run: Callable[[Sequence[GrpcClient], int], Awaitable[None]]
    topic: str = TOPIC


_ids = (f"bench-{number}" for number in itertools.count())


async def send(clients: Sequence[GrpcClient], count: int, topic: str = TOPIC) -> None:
    """Send messages, each client one at a time; to FIFO, each client a message group of its own."""
    numbers = iter(range(count))

    async def work(index: int, client: GrpcClient) -> None:
        more: dict[str, Any] = {"message_group": f"group-{index}"} if topic == FIFO else {}
        for _ in numbers:
            await client.send(message(topic, BODY, next(_ids), **more))

    await asyncio.gather(*(work(index, client) for index, client in enumerate(clients)))


async def send_fifo(clients: Sequence[GrpcClient], count: int) -> None:
    """Send messages of message groups."""
    await send(clients, count, FIFO)


def receive(batch: int, topic: str = TOPIC) -> Callable[[Sequence[GrpcClient], int], Awaitable[None]]:
    """Return what receives and acknowledges messages that are there."""

    async def run(clients: Sequence[GrpcClient], count: int) -> None:
        left = count

        async def work(client: GrpcClient) -> None:
            nonlocal left
            while left > 0:
                _, got = await client.receive(topic, f"group-{topic}", batch=batch, wait_s=5.0)
                if got:
                    await client.ack(f"group-{topic}", *got)
                    left -= len(got)

        await asyncio.gather(*map(work, clients))

    return run


def cases(scale: float, wanted: str = "") -> list[Case]:
    """Return the measurements whose name has the text."""

    def number(count: int) -> int:
        return max(64, int(count * scale))

    found = [
        Case("send, 1 client", 1, number(2000), send),
        Case("send, 64 clients", 64, number(4000), send),
        Case("send, 200 clients", 200, number(4000), send),
        Case("receive and ack, 1", 8, number(1500), receive(1)),
        Case("receive and ack, 32", 8, number(6000), receive(32)),
        Case("send FIFO, 16 groups", 16, number(2000), send_fifo, FIFO),
        Case("receive and ack FIFO, 32", 4, number(1500), receive(32, FIFO), FIFO),
    ]
    return [case for case in found if wanted in case.name]


@contextmanager
def _proxies(address: str, kinds: Sequence[str], directory: Path) -> Iterator[list[Place]]:
    started: list[tuple[str, proxies.Proxy]] = []
    try:
        for kind in kinds:
            if kind == "reput":
                started.append((kind, proxies.reput_proxy(address, directory / kind)))
            else:
                started.append((kind, proxies.apache_proxy(address, directory / kind, jvm=["-Xmx1g"])))
        yield [Place(each.pid, kind, each.address) for kind, each in started]
    finally:
        for _, each in started:
            each.kill()


@asynccontextmanager
async def _clients(place: Place, case: Case) -> AsyncIterator[list[GrpcClient]]:
    """Connect clients, each with the settings that proxies want before anything else."""
    async with AsyncExitStack() as stack:
        found = []
        for number in range(case.clients):
            client = await stack.enter_async_context(
                client_of(place.address, f"{place.name}-{number}", metadata=AGENT, shares=False)
            )
            is_consumer = case.name.startswith("receive")
            settings = (
                consumer_settings(f"group-{case.topic}", case.topic, pb.SIMPLE_CONSUMER)
                if is_consumer
                else producer_settings(case.topic)
            )
            await Telemetry(client).settle(settings)
            found.append(client)
        yield found


async def _measured(place: Place, case: Case, server: RunningBroker) -> Cost:
    async with _clients(place, case) as clients:
        await case.run(clients, case.clients)  # what only the first requests need
        before, started_at = (place.cpu_s(), server.cpu_s()), time.perf_counter()
        await case.run(clients, case.messages)
        time_s = time.perf_counter() - started_at
        return Cost(
            (place.cpu_s() - before[0]) / case.messages,
            (server.cpu_s() - before[1]) / case.messages,
            time_s / case.messages,
        )


async def _fill(place: Place, case: Case) -> None:
    """Send what a case receives."""
    if not case.name.startswith("receive"):
        return
    sender = case._replace(name="fill", clients=16)
    async with _clients(place, sender) as clients:
        await send(clients, case.messages + 2 * case.clients * 32, case.topic)


async def _create(address: str) -> None:
    """Create the topics, of the types that RocketMQ's proxy wants for them, and the ordered group."""
    async with Admin(address) as admin:
        for topic, kind in ((TOPIC, "NORMAL"), (FIFO, "FIFO")):
            await admin.create_topic(topic, queues=8, message_type=kind)
        for topic in (TOPIC, FIFO):
            await admin.put_group(SubscriptionGroupConfig(f"group-{topic}", consume_message_orderly=topic == FIFO))


def measure(kinds: Sequence[str], rounds: int, chosen: Sequence[Case]) -> dict[tuple[str, str], list[Cost]]:
    """Return the costs by case and proxy."""
    found: dict[tuple[str, str], list[Cost]] = {}
    directory = Path(tempfile.mkdtemp(prefix="reput-bench-proxy-"))
    try:
        with broker("sync", TOPICS__DEFAULT_QUEUES="8") as server:
            asyncio.run(_create(server.address))
            with _proxies(server.address, kinds, directory) as places:
                for number in range(-1, rounds):  # the first round only warms up
                    for case in chosen:
                        for place in places if number % 2 else reversed(places):
                            asyncio.run(_fill(place, case))
                            cost = asyncio.run(_measured(place, case, server))
                            if number >= 0:
                                found.setdefault((case.name, place.name), []).append(cost)
                        print(".", end="", flush=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print()
    return found


def table(found: dict[tuple[str, str], list[Cost]], kinds: Sequence[str], chosen: Sequence[Case]) -> str:
    """Return the results: us of processor time a message in proxy and broker, messages per second, ratios."""
    head = ["case"]
    for kind in kinds:
        head += [f"{kind}: proxy us", "broker us", "msg/s"]
    rows = [[*head, *(["CPU ratio"] if len(kinds) > 1 else [])]]
    for case in chosen:
        row, medians = [case.name], []
        for kind in kinds:
            costs = found[case.name, kind]
            median = [
                statistics.median(getattr(cost, name) for cost in costs) for name in ("proxy_s", "broker_s", "time_s")
            ]
            row += [f"{1e6 * median[0]:.0f}", f"{1e6 * median[1]:.0f}", f"{1 / median[2]:.0f}"]
            medians.append(statistics.median(cost.cpu_s for cost in costs))
        if len(kinds) > 1:
            row.append(f"{medians[0] / medians[1]:.2f}")
        rows.append(row)
    return "\n".join(aligned(rows))


async def hold_streams(place: Place, count: int, seconds: float) -> str:
    """Hold so many clients, each with a Telemetry stream and a receive that waits; return a table of what they cost."""
    rows = [["clients held", "private memory MiB", "CPU of one core", "send p50 ms", "p99 ms", "max ms"]]
    rows.append(["0", *await _load_of(place, seconds)])
    async with AsyncExitStack() as stack:
        receives = []
        for number in range(count):
            held = await stack.enter_async_context(
                client_of(place.address, f"held-{number}", metadata=AGENT, shares=False)
            )
            await Telemetry(held).settle(consumer_settings(f"group-{TOPIC}", FIFO, pb.SIMPLE_CONSUMER))
            receives.append(asyncio.ensure_future(_keep_receiving(held)))
        rows.append([f"{count}", *await _load_of(place, seconds)])
        for task in receives:
            task.cancel()
        await asyncio.gather(*receives, return_exceptions=True)
    return "\n".join(aligned(rows))


async def _keep_receiving(client: GrpcClient) -> None:
    while True:
        await client.receive(FIFO, f"group-{TOPIC}", wait_s=20.0)


async def _load_of(place: Place, seconds: float) -> list[str]:
    """Return memory and processor time of the proxy while one client sends, and how long its sends take."""
    before, started_at = place.cpu_s(), time.perf_counter()
    # In a process of its own: this one is busy with the others.
    arguments = ["--behaved", place.address, str(seconds)]
    behaved = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments, stdout=asyncio.subprocess.PIPE)
    text, _ = await behaved.communicate()
    used = (place.cpu_s() - before) / (time.perf_counter() - started_at)
    return [f"{place.memory_mib('RssAnon'):.0f}", f"{100 * used:.0f} %", *text.decode().split()]


async def behave(address: str, seconds: float) -> str:
    """Send now and then; return the median, the 99th percentile and the maximum of the times, in ms."""
    async with client_of(address, "behaved", metadata=AGENT) as client:
        await Telemetry(client).settle(producer_settings(TOPIC))
        await client.send(message(TOPIC, BODY, "first"))
        times: list[float] = []
        ends_at = time.perf_counter() + seconds
        while (sent_at := time.perf_counter()) < ends_at:
            await client.send(message(TOPIC, BODY, next(_ids)))
            times.append(1000 * (time.perf_counter() - sent_at))
            await asyncio.sleep(0.02)
    times.sort()
    return " ".join(f"{times[int(part * (len(times) - 1))]:.1f}" for part in (0.5, 0.99, 1.0))


def main() -> int:
    """Parse the arguments, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case (5)")
    parser.add_argument("--scale", type=float, default=1.0, help="how many messages, as a factor (1)")
    parser.add_argument("--case", default="", help="only cases with this text in their name")
    parser.add_argument("--proxy", action="append", choices=["apache", "reput"], help="only this one")
    parser.add_argument("--streams", type=int, help="instead: hold so many clients, with a receive each")
    parser.add_argument("--behaved", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.behaved:
        print(asyncio.run(behave(arguments.behaved[0], float(arguments.behaved[1]))))
        return 0
    kinds = arguments.proxy or ["apache", "reput"]
    if "apache" in kinds:
        try:
            proxies.command()
        except Unreachable as error:
            print(f"without RocketMQ's proxy: {error}")
            kinds = ["reput"]
    if arguments.streams:
        with broker("sync") as server, tempfile.TemporaryDirectory() as directory:
            asyncio.run(_create(server.address))
            for kind in kinds:
                with _proxies(server.address, [kind], Path(directory)) as [place]:
                    print(f"{kind}\n{asyncio.run(hold_streams(place, arguments.streams, 30.0))}", flush=True)
        return 0
    chosen = cases(arguments.scale, arguments.case)
    print(table(measure(kinds, arguments.rounds, chosen), kinds, chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
