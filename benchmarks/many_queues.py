"""The cost of queues and groups: private memory and descriptors of a broker that has many of them, and its scrape.

    python benchmarks/many_queues.py --queues 10000 --groups 1000

Every queue gets one message, and every group commits an offset in each of eight queues. Private memory is RssAnon of
the broker's process. The time of a scrape is processor time of the broker, nearly all of it in the event loop; the
slowest request meanwhile shows how long the loop was taken at once.
"""

from __future__ import annotations

import argparse
import threading
import time
import urllib.request

from reput_cli.bench_clients import host_facts
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from servers import RunningBroker, broker

_QUEUES_A_TOPIC = 1000
_QUEUES_A_GROUP = 8
_SCRAPES = 40
_SETTLE_S = 6.0
"""Seconds to wait until the offsets are saved, which happens every five seconds."""


def main() -> None:
    """Fill a broker with groups, then with queues, and print the cost of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1000)
    arguments = parser.parse_args()
    with broker("async", STORE__COMMIT_LOG_FILE_SIZE="64MiB") as server, Admin(server.address, timeout_s=30.0) as admin:
        measure_groups(server, admin, arguments.groups)
        measure_queues(server, admin, arguments.queues)
        for page in ("/metrics", "/metrics/rocketmq"):
            measure_scrapes(server, page)
    print(host_facts())


def measure_groups(server: RunningBroker, admin: Admin, count: int) -> None:
    """Print the cost of a group with eight offsets, and the time to list all groups."""
    admin.create_topic("orders", queues=_QUEUES_A_GROUP)
    before = server.private_kib()
    for number in range(count):
        with PullConsumer(server.address, group=f"group-{number}") as consumer:
            for queue_id in range(_QUEUES_A_GROUP):
                consumer.commit("orders", queue_id, 1)
    time.sleep(_SETTLE_S)
    each = (server.private_kib() - before) / count
    started_at = time.perf_counter()
    listed = len(admin.list_groups())
    took = time.perf_counter() - started_at
    print(f"{count} groups with {_QUEUES_A_GROUP} offsets: {each:.1f} KiB each; {listed} listed in {took:.3f} s")


def measure_queues(server: RunningBroker, admin: Admin, count: int) -> None:
    """Print the cost of a queue with a message."""
    before, descriptors = server.private_kib(), server.descriptors()
    with Producer(server.address, group="bench") as producer:
        for first in range(0, count, _QUEUES_A_TOPIC):
            topic, queues = f"bench-{first}", min(_QUEUES_A_TOPIC, count - first)
            admin.create_topic(topic, queues=queues)
            for queue_id in range(queues):
                producer.send(Message(topic, bytes(100)), queue_id=queue_id, ack="page_cache")
    time.sleep(_SETTLE_S)
    each = (server.private_kib() - before) / count
    more = server.descriptors() - descriptors
    print(f"{count} queues: {each:.1f} KiB each; {more} more descriptors in all")


def measure_scrapes(server: RunningBroker, page: str) -> None:
    """Print what a scrape costs, and how long other requests waited for it."""
    is_over = threading.Event()
    slowest_s = 0.0

    def ask() -> None:
        nonlocal slowest_s
        with PullConsumer(server.address, group="asks") as consumer:
            while not is_over.wait(0.001):
                started_at = time.perf_counter()
                consumer.max_offset("orders", 0)
                slowest_s = max(slowest_s, time.perf_counter() - started_at)

    def scrape() -> bytes:
        with urllib.request.urlopen(f"{server.http}{page}", timeout=10.0) as answer:
            body: bytes = answer.read()
        return body

    lines = [line for line in scrape().splitlines() if not line.startswith(b"#")]
    before_s = server.cpu_s()
    for _ in range(_SCRAPES):
        scrape()
    each_ms = (server.cpu_s() - before_s) / _SCRAPES * 1000
    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(_SCRAPES):
        scrape()
    is_over.set()
    thread.join()
    print(
        f"{page}: {len(lines)} series, {each_ms:.1f} ms of processor time a scrape; slowest request meanwhile "
        f"{slowest_s * 1000:.1f} ms"
    )


if __name__ == "__main__":
    main()
