"""What staging and publishing a batch of the Spark sink costs another producer. Spark itself is not needed for it.

    python benchmarks/spark_producer.py [--messages 600000] [--size 300]

The broker and the other producer are processes of their own; the batch comes from this one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
import uuid
from typing import Any

from reput_client.blocking import Admin, Message, Producer
from reput_client.blocking.bulk import BatchWriter
from reput_client.produce.batch_writer import StagingScope
from reput_protocol.record.put_block import encode_put_block
from servers import broker

TOPIC = "bench"
QUEUES = 8
BLOCK = 256


def main() -> None:
    """Start a broker, measure, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--messages", type=int, default=600_000)
    arguments.add_argument("--size", type=int, default=300, help="bytes of a body")
    given = arguments.parse_args()
    with broker("sync", STORE__COMMIT_LOG_FILE_SIZE="256MiB") as running:
        with Admin(running.address) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
            admin.create_topic("others", queues=1)
        measure_producer(running.address, given.messages, given.size)


def measure_producer(address: str, messages: int, size: int) -> None:
    """Print how long another producer's flushed sends take: alone, and while a batch is staged and published."""
    alone = Sender(address)
    time.sleep(4.0)
    quiet = alone.stop()
    query_id = f"bench:{uuid.uuid4()}"
    body = bytes(size)
    block = [Message(TOPIC, body, tag="t", keys=["k"]) for _ in range(BLOCK)]
    with BatchWriter(address, timeout_s=600) as writer:
        writer.begin(StagingScope(query_id, 0, 0, uuid.uuid4().hex))
        beside = Sender(address)
        for number in range(messages // BLOCK):
            ids = [f"{query_id}-{number}-{index}" for index in range(BLOCK)]
            queue_id = number % QUEUES
            writer.stage(TOPIC, queue_id, BLOCK, encode_put_block(block, TOPIC, queue_id, 1, ids))
        part = writer.end()
        staging = beside.stop()
        beside = Sender(address)
        started_at = time.monotonic()
        writer.commit(query_id, 0, [part], 600)
        took = time.monotonic() - started_at
        publishing = beside.stop()
    print(f"commit of {part.messages:,} messages beside a producer: {part.messages / took:,.0f} messages/s")
    for name, times in (("alone", quiet), ("staging", staging), ("publishing", publishing)):
        p50, p99 = (statistics.quantiles(times, n=100)[at] for at in (49, 98))
        base = statistics.quantiles(quiet, n=100)[98]
        print(
            f"{name:>16}: {len(times)} sends, p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms ({p99 / base:.2f})",
            flush=True,
        )


class Sender:
    """Another producer in a process of its own: one message at a time, flushed, some hundred a second."""

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ended = context.Event()
        self._begun = context.Event()
        self._times = context.Queue()
        self._process = context.Process(target=_send, args=(address, self._begun, self._ended, self._times))
        self._process.start()
        self._begun.wait()

    def stop(self) -> list[float]:
        """End it, and return how long each send took."""
        self._ended.set()
        times: list[float] = self._times.get()
        self._process.join()
        return times


def _send(address: str, begun: Any, ended: Any, result: Any) -> None:
    times = []
    with Producer(address, group="other", timeout_s=60) as producer:
        message = Message("others", bytes(300))
        producer.send(message)
        begun.set()
        while not ended.is_set():
            started_at = time.perf_counter()
            producer.send(message)
            times.append(time.perf_counter() - started_at)
            time.sleep(0.002)
    result.put(times)


if __name__ == "__main__":
    main()
