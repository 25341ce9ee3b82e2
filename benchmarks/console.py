"""`make bench KIND=console`: what the web console and a scrape of the metrics cost a busy broker.

A producer sends 1 KiB messages at fixed times, `page_cache` under ASYNC_FLUSH; a latency counts from when its message
was due. In each round it runs alone, then with five browsers, each with its live numbers, the plots of a day and a page
that it asks for every five seconds, then with the browsers and a scrape of /metrics every second, then with the
browsers and another one that follows the topic with a condition on the bodies. Printed are the medians over rounds:
processor time of the broker beyond that of the producer alone, and the ratio of the p99. The goal is less than a
twentieth of a core, and a p99 within 1.2x. Every client is a process. `--queues` and `--groups` fill the broker first.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from urllib.parse import urlencode

import trio

from reput_cli.bench_clients import Payloads, host_facts, percentile
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from servers import RunningBroker, broker
from tables import aligned, figure

_SIZE = 1024
_QUEUES_A_TOPIC = 1000
_POLL_S = 5.0
_SCRAPE_S = 1.0
_FOLLOW_S = 1.0
_HISTORY = "history?begin=-86400&end=0&names=1"
_HISTORY_S = 10.0
_PAGES = ("groups", "topics", "group?group=group-0", "clients", "topic?topic=paced")
_processes = multiprocessing.get_context("spawn")
Visitor = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: share of a core that the broker used, and the latency of puts in ms."""

    cpu: float
    p50: float
    p99: float


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=500, help="messages a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queues", type=int, default=0, help="queues to fill first")
    parser.add_argument("--groups", type=int, default=1, help="groups to make first")
    chosen = parser.parse_args()
    cases: dict[str, tuple[Visitor, ...]] = {
        "producer alone": (),
        "5 browsers": (browse,),
        "5 browsers, scrape a second": (browse, scrape),
        "5 browsers, one more follows": (browse, follow),
    }
    measured: dict[str, list[Figures]] = {name: [] for name in cases}
    with broker("async", STORE__COMMIT_LOG_FILE_SIZE="256MiB") as server:
        fill(server.address, chosen.queues, chosen.groups)
        for _ in range(chosen.rounds):
            for name, visitors in cases.items():
                measured[name].append(run(server, visitors, chosen.rate, chosen.seconds))
    alone = measured["producer alone"]
    rows = [("", "CPU of the broker", "more than alone", "p50 ms", "p99 ms", "p99 ratio")]
    for name, runs in measured.items():
        more = statistics.median(each.cpu - base.cpu for each, base in zip(runs, alone, strict=True))
        ratio = statistics.median(each.p99 / base.p99 for each, base in zip(runs, alone, strict=True))
        rows.append(
            (
                name,
                f"{statistics.median(each.cpu for each in runs):.1%}",
                f"{more:+.1%}",
                figure(statistics.median(each.p50 for each in runs)),
                figure(statistics.median(each.p99 for each in runs)),
                figure(ratio),
            )
        )
    print(f"{chosen.rate} messages a second, {chosen.queues} queues, {chosen.groups} groups\n")
    print("\n".join(aligned(rows)))
    print(f"\ngoal: less than 5 % of a core more, p99 within 1.2x of the producer alone; {host_facts()}")


def fill(address: str, queues: int, groups: int) -> None:
    """Make queues with a message each, and groups with offsets in eight of them."""
    with Admin(address, timeout_s=30.0) as admin, Producer(address, group="bench") as producer:
        admin.create_topic("paced", queues=8)
        for first in range(0, queues, _QUEUES_A_TOPIC):
            topic, count = f"topic-{first}", min(_QUEUES_A_TOPIC, queues - first)
            admin.create_topic(topic, queues=count)
            for queue_id in range(count):
                producer.send(Message(topic, bytes(100)), queue_id=queue_id, ack="page_cache")
    for number in range(groups):
        with PullConsumer(address, group=f"group-{number}") as consumer:
            for queue_id in range(8):
                consumer.commit("paced", queue_id, 0)


def run(server: RunningBroker, visitors: tuple[Visitor, ...], rate: int, seconds: float) -> Figures:
    """Run the producer next to visitors, and return the figures."""
    with _visited(server.http, visitors):
        cpu, began_at = server.cpu_s(), time.monotonic()
        latencies = _in_process(server.address, rate, seconds)
        share = (server.cpu_s() - cpu) / (time.monotonic() - began_at)
    latencies.sort()
    return Figures(share, 1000 * percentile(latencies, 0.5), 1000 * percentile(latencies, 0.99))


@contextmanager
def _visited(url: str, visitors: tuple[Visitor, ...]) -> Iterator[None]:
    running = [_processes.Process(target=visitor, args=(url,), daemon=True) for visitor in visitors]
    for process in running:
        process.start()
    if running:
        time.sleep(2.0)
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def _in_process(address: str, rate: int, seconds: float) -> list[float]:
    here, there = _processes.Pipe()
    process = _processes.Process(target=pace, args=(address, rate, seconds, there), daemon=True)
    process.start()
    latencies: list[float] = here.recv()
    process.join()
    return latencies


def pace(address: str, rate: int, seconds: float, pipe: Connection) -> None:
    """Send messages at fixed times, one after the other, and report their latencies in seconds."""
    payloads, latencies = Payloads(_SIZE), []
    with Producer(address, group="bench", ack="page_cache") as producer:
        for number in range(rate):  # to warm up
            producer.send(Message("paced", payloads.make(number)))
        began_at = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began_at + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            producer.send(Message("paced", payloads.make(number)))
            latencies.append(time.perf_counter() - due)
    pipe.send(latencies)


def browse(url: str) -> None:
    """Be five browsers, until killed."""

    async def browsers() -> None:
        async with trio.open_nursery() as nursery:
            for page in _PAGES:
                nursery.start_soon(_stream, url)
                nursery.start_soon(_poll, url, f"/console/api/{page}", _POLL_S)
                nursery.start_soon(_poll, url, f"/console/api/{_HISTORY}", _HISTORY_S)

    trio.run(browsers)


def scrape(url: str) -> None:
    """Read the metrics every second, until killed."""
    trio.run(_poll, url, "/metrics", _SCRAPE_S)


def follow(url: str) -> None:
    """Be a browser that follows the topic, until killed."""
    trio.run(_follow, url)


async def _follow(url: str) -> None:
    asked, place = {"topic": "paced", "text": "no body has this", "count": "100"}, "start=newest"
    while True:
        answer = await _answer(url, f"/console/api/browse?{urlencode(asked)}&{place}")
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
        place = urlencode({"start": "next", "place": found["next"], "follow": "1"})
        await trio.sleep(_FOLLOW_S)


async def _stream(url: str) -> None:
    stream = await _ask(url, "/console/events")
    while await stream.receive_some(65536):
        pass


async def _poll(url: str, path: str, every_s: float) -> None:
    due = trio.current_time()
    while True:
        await _answer(url, path)
        due += every_s
        await trio.sleep_until(due)


async def _answer(url: str, path: str) -> bytes:
    stream = await _ask(url, path)
    answer = b""
    async with stream:
        while data := await stream.receive_some(1 << 20):
            answer += data
    assert answer.startswith(b"HTTP/1.1 200"), answer[:300]
    return answer


async def _ask(url: str, path: str) -> trio.SocketStream:
    host, _, port = url.removeprefix("http://").partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: Mozilla/5.0\r\n"
    ending = "" if path.endswith("events") else "Connection: close\r\n"
    await stream.send_all(f"{head}{ending}\r\n".encode())
    return stream


if __name__ == "__main__":
    main()
