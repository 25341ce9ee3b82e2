"""`make bench KIND=scaling`: how throughput and cost depend on connections, queues, message and store size, brokers.

One of these grows at a time; each connection has one message in flight. One client process, one broker process, but for
brokers side by side, which have a client process each; `page_cache` under ASYNC_FLUSH. On a busy machine, processor
time per message tells more than the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count as numbers_from
from pathlib import Path

from drawing import write_curves
from reput_cli.bench_clients import Payloads, host_facts
from reput_client import Message, Producer
from reput_client.blocking import Admin, PullConsumer
from reput_client.blocking import Producer as BlockingProducer
from servers import RunningBroker, broker, broker_on, brokers_side_by_side
from tables import aligned, figure

KIB = 1024
CONNECTIONS = (1, 10, 100, 1_000)
QUEUES = (1, 10, 100, 1_000, 10_000)
BROKERS = (1, 2, 4)
SIZES = (100, KIB, 10 * KIB, 100 * KIB, 1_000 * KIB)
BATCH = 64
_SETTLED_S = 30.0
_topics = numbers_from(1)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve."""

    axis: str
    x: float
    name: str
    rate: float
    mb_per_s: float
    broker_us: float
    """Processor time of the broker per message."""
    client_us: float
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the point's cells as text."""
        figures = (self.rate, self.mb_per_s, self.broker_us, self.client_us)
        return (self.axis, self.name, *map(figure, figures), self.note)


def main() -> None:
    """Measure along every axis, print the table, and draw the curves with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each point, about (4)")
    parser.add_argument("--gib", type=float, default=1.0, help="the largest store (1); takes as much disk")
    parser.add_argument("--only", choices=sorted(AXES), help="run only this axis")
    parser.add_argument("--write", type=Path, help="a directory for the curves: scaling-AXIS.svg")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    points: list[Point] = []
    for name, measure in AXES.items():
        if arguments.only in (None, name):
            points += measure(arguments.seconds, arguments.gib)
    if arguments.write is not None:
        _draw(points, arguments.write)
    if arguments.json:
        print(json.dumps({"host": host_facts(), "results": [asdict(point) for point in points]}))
        return
    head = ("axis", "", "msg/s", "MB/s", "broker us a message", "client us a message", "")
    print("\n".join(aligned([head, *(point.cells() for point in points)])))
    print("\n" + ", ".join(f"{name} {value}" for name, value in host_facts().items()))


def _draw(points: list[Point], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for axis in dict.fromkeys(point.axis for point in points):
        own = [point for point in points if point.axis == axis]
        # Messages of different sizes are compared by their cost per KiB.
        shares = [point.x / KIB if axis == "message size" else 1.0 for point in own]
        write_curves(
            directory / f"scaling-{axis.replace(' ', '-')}.svg",
            f"{axis}: microseconds of processor time a {'KiB' if axis == 'message size' else 'message'}",
            [(point.x, point.name) for point in own],
            [
                ("broker", [point.broker_us / share for point, share in zip(own, shares, strict=True)]),
                ("client", [point.client_us / share for point, share in zip(own, shares, strict=True)]),
            ],
            axis,
        )


# -- the axes ------------------------------------------------------------------------------------------------------


def connections(seconds: float, _: float) -> Iterable[Point]:
    """Measure producers in one event loop, each with its own connection and one message in flight."""
    with broker("async") as server:
        for number in CONNECTIONS:
            topic = _new_topic(server, 4)
            yield _timed(
                server,
                "connections",
                number,
                f"{number:,}",
                KIB,
                partial(_on_connections, server, topic, number, seconds),
            )


def _on_connections(
    server: RunningBroker, topic: str, number: int, seconds: float, begin: Callable[[], None]
) -> tuple[int, float]:
    return asyncio.run(_send_on(server, topic, number, seconds, begin))


def _memory(server: RunningBroker) -> str:
    return f"private memory {server.memory_mib('RssAnon'):.0f} MiB"


async def _send_on(
    server: RunningBroker, topic: str, number: int, seconds: float, begin: Callable[[], None]
) -> tuple[int, float]:
    payloads = Payloads(KIB)
    producers = [Producer(server.address, ack="page_cache", timeout_s=60.0) for _ in range(number)]
    for first in range(0, number, 50):
        await asyncio.gather(*(producer.__aenter__() for producer in producers[first : first + 50]))
    await asyncio.gather(*(producer.send(Message(topic, payloads.make(0))) for producer in producers))
    sent = 0
    begin()
    started_at = time.perf_counter()

    async def work(producer: Producer) -> None:
        nonlocal sent
        while time.perf_counter() - started_at < seconds:
            await producer.send(Message(topic, payloads.make(sent)))
            sent += 1

    await asyncio.gather(*map(work, producers))
    took = time.perf_counter() - started_at
    await asyncio.gather(*(producer.aclose() for producer in producers))
    return sent, took


def queues(seconds: float, _: float) -> Iterable[Point]:
    """Measure blocks of 64 messages, each to the next queue of a topic."""
    for number in QUEUES:
        with broker("async") as server:
            topic = _new_topic(server, number)
            yield _timed(
                server,
                "queues",
                number,
                f"{number:,}",
                KIB,
                partial(_send_many, server.address, topic, KIB, seconds),
                partial(_memory, server),
            )


def sizes(seconds: float, _: float) -> Iterable[Point]:
    """Measure blocks of 64 messages, or of 1 MiB if that is less."""
    with broker("async") as server:
        for size in SIZES:
            topic = _new_topic(server, 4)
            name = f"{size // KIB:,} KiB" if size >= KIB else f"{size} B"
            yield _timed(
                server, "message size", size, name, size, partial(_send_many, server.address, topic, size, seconds)
            )


def store(seconds: float, gib: float) -> Iterable[Point]:
    """Measure blocks of 64 messages in a store that doubles; it is then read from the start, and opened again."""
    whole = int(gib * (1 << 30))
    steps = [step for step in (whole >> 3, whole >> 2, whole >> 1, whole) if step >= 1 << 26]
    with tempfile.TemporaryDirectory(prefix="reput-scaling-") as name:
        directory = Path(name)
        topic = ""
        for step in steps:
            with broker_on(directory, "async") as server:
                topic = topic or _new_topic(server, 4)
                starts_s = server.start_s
                _fill(server, topic, step)
                read = _read_rate(server, topic, seconds / 2)

                note = f"started in {starts_s:.1f} s, read from the beginning {read:,.0f} msg/s"
                yield _timed(
                    server,
                    "store size",
                    step,
                    f"{step / (1 << 30):g} GiB",
                    KIB,
                    partial(_send_many, server.address, topic, KIB, seconds),
                    partial(str, note),
                )


def side_by_side(seconds: float, _: float) -> Iterable[Point]:
    """Measure blocks of 64 messages to `reput serve --brokers N`, from as many client processes."""
    for number in BROKERS:
        with brokers_side_by_side(number, "async") as server, ProcessPoolExecutor(number) as clients:
            topic = f"scaling{next(_topics)}"
            with Admin(server.address, timeout_s=_SETTLED_S) as admin:
                admin.create_topic(topic, queues=4)
            arguments = [(server.address, topic, KIB, seconds)] * number
            list(clients.map(_send_from, [(server.address, topic, KIB, 0.1)] * number))
            before = server.cpu_s()
            done = list(clients.map(_send_from, arguments))
            sent = sum(count for count, _, _ in done)
            rate = sum(count / took for count, took, _ in done)
            yield Point(
                "brokers side by side",
                number,
                str(number),
                rate,
                rate * KIB / 1e6,
                (server.cpu_s() - before) / sent * 1e6,
                sum(cpu_s for _, _, cpu_s in done) / sent * 1e6,
                f"{os.cpu_count()} cores",
            )


def _send_from(job: tuple[str, str, int, float]) -> tuple[int, float, float]:
    """Send in this process; return the number of messages, the seconds and those of the processor."""
    began_s = 0.0

    def begin() -> None:
        nonlocal began_s
        began_s = time.process_time()

    sent, took = _send_many(*job, begin)
    return sent, took, time.process_time() - began_s


def _fill(server: RunningBroker, topic: str, size: int) -> None:
    payloads = Payloads(10 * KIB)
    missing = size - int(server.metric("reput_storage_end_offset_bytes"))
    with BlockingProducer(server.address, ack="page_cache", timeout_s=60.0) as producer:
        producer.send_many(topic, (payloads.make(number) for number in range(missing // (10 * KIB))))


def _read_rate(server: RunningBroker, topic: str, seconds: float) -> float:
    read = offset = 0
    with PullConsumer(server.address, group="scaling", timeout_s=60.0) as consumer:
        started_at = time.perf_counter()
        while time.perf_counter() - started_at < seconds:
            answer = consumer.pull(topic, 0, offset, max_messages=1_024, wait_s=0.0, read_ahead=True)
            read += sum(len(message.body) > 0 for message in answer.messages)
            offset = answer.next_begin_offset if answer.next_begin_offset < answer.max_offset else 0
        return read / (time.perf_counter() - started_at)


# -- measuring -----------------------------------------------------------------------------------------------------


def _timed(
    server: RunningBroker,
    axis: str,
    x: float,
    name: str,
    size: int,
    send: Callable[[Callable[[], None]], tuple[int, float]],
    note: Callable[[], str] = str,
) -> Point:
    """Call `send`, which calls back when it starts and returns the number of messages and seconds.

    Raises:
        SystemExit: a message is missing in the broker, or was stored twice.
    """
    before = _stored(server)
    broker_s = client_s = 0.0

    def begin() -> None:
        nonlocal broker_s, client_s
        broker_s, client_s = server.cpu_s(), time.process_time()

    sent, took = send(begin)
    broker_us = (server.cpu_s() - broker_s) / sent * 1e6
    client_us = (time.process_time() - client_s) / sent * 1e6
    extra = _stored(server) - before - sent
    if extra not in (0, _greetings(axis, x)):
        raise SystemExit(f"no figure for {axis} {name}: {sent} messages were sent, {sent + extra} are stored")
    rate = sent / took
    return Point(axis, x, name, rate, rate * size / 1e6, broker_us, client_us, note())


def _greetings(axis: str, x: float) -> int:
    """Return the number of messages sent before the measurement."""
    return int(x) if axis == "connections" else 0


def _stored(server: RunningBroker) -> int:
    return int(server.metric("reput_messages_in_total"))


def _send_many(address: str, topic: str, size: int, seconds: float, begin: Callable[[], None]) -> tuple[int, float]:
    payloads = Payloads(size)
    sent = 0
    step = max(8, min(16_384, (16 << 20) // size))
    with BlockingProducer(address, ack="page_cache", timeout_s=60.0) as producer:
        begin()
        started_at = time.perf_counter()
        while time.perf_counter() - started_at < seconds:
            bodies = [payloads.make(number) for number in range(sent, sent + step)]
            sent += len(producer.send_many(topic, bodies, tag="bench", batch=BATCH))
        return sent, time.perf_counter() - started_at


def _new_topic(server: RunningBroker, queues: int) -> str:
    topic = f"scaling{next(_topics)}"
    with Admin(server.address, timeout_s=_SETTLED_S) as admin:
        admin.create_topic(topic, queues=queues)
    return topic


AXES: dict[str, Callable[[float, float], Iterable[Point]]] = {
    "connections": connections,
    "queues": queues,
    "sizes": sizes,
    "store": store,
    "brokers": side_by_side,
}


if __name__ == "__main__":
    main()
