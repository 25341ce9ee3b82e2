"""`make bench KIND=groups`: consumer groups compared with plain pulls: same broker and messages, medians of rounds.

- drain: 4 members of a group read a topic of 8 queues, compared with 4 processes that pull two queues each, one after
  the other with `read_ahead`. Every body and tag is read. The time is from when all are ready to when the last is done.
- latency: one message at a time to a waiting member in another process, from before the send to its arrival in the
  application, compared with one put and one pull by one client.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

import trio

import reput_client
from reput_cli.bench_clients import BenchPlan, host_facts, run_producer
from reput_client import Ack, blocking
from servers import RunningBroker, broker

TOPIC = "bench"
TAG = "bench"
SIZE = 1024
QUEUES = 8
MEMBERS = 4
PULL_MESSAGES = 1_024
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """The work of one of the four processes."""

    address: str
    number: int
    messages: int
    """Number of messages for this process."""
    group: str
    orderly: bool = False
    concurrency: int = 0
    """Concurrency of `run` with a handler; 0 iterates instead."""

    @property
    def queues(self) -> range:
        """The queues that a plain puller reads."""
        share = QUEUES // MEMBERS
        return range(self.number * share, (self.number + 1) * share)


def main() -> None:
    """Run every measurement and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000, help="drained in each round; 1000000 is full scale")
    parser.add_argument("--sends", type=int, default=2_000, help="messages of each latency round")
    parser.add_argument("--only", help="measurements whose names contain this")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name, measure in MEASURES.items():
        if arguments.only is not None and arguments.only not in name:
            continue
        row = {"measure": name, **measure(arguments)}
        rows.append(row)
        if not arguments.json:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    print(json.dumps({"host": host_facts(), "results": rows}) if arguments.json else host_facts())


# -- drain ---------------------------------------------------------------------------------------------------------


def drain(
    plain: Callable[[Job, Start], None], member: Callable[[Job, Start], None], **options: Any
) -> Callable[[argparse.Namespace], Row]:
    """Compare two ways of reading a topic to its end."""

    def measure(arguments: argparse.Namespace) -> Row:
        rounds: list[tuple[float, ...]] = []
        count = arguments.messages // (QUEUES * 64) * QUEUES * 64
        with broker("async") as server:
            with blocking.Admin(server.address) as admin:
                admin.create_topic(TOPIC, queues=QUEUES)
            run_producer(BenchPlan(server.address, TOPIC, count, SIZE, ack="page_cache", batch=64), 0)
            _drained(plain, server, count, "warm-up", {})
            for number in range(arguments.rounds):
                by_pulls = _drained(plain, server, count, f"pulls{number}", {})
                rounds.append((*by_pulls, *_drained(member, server, count, f"group{number}", options)))
        pulls_s, pulls_cpu, group_s, group_cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        return {
            "messages": count,
            "pulls msg/s": round(count / pulls_s),
            "group msg/s": round(count / group_s),
            "ratio": round(statistics.median(row[0] / row[2] for row in rounds), 3),
            "pulls cpu us": round(pulls_cpu / count * 1e6, 2),
            "group cpu us": round(group_cpu / count * 1e6, 2),
        }

    return measure


def _drained(
    work: Callable[[Job, Start], None], server: RunningBroker, count: int, group: str, options: dict[str, Any]
) -> tuple[float, float]:
    """Return the seconds it took, and the processor seconds of all processes, including the broker."""
    ready = multiprocessing.Barrier(MEMBERS + 1)
    spent: Any = multiprocessing.Queue()
    jobs = [Job(server.address, number, count // MEMBERS, group, **options) for number in range(MEMBERS)]
    processes = [multiprocessing.Process(target=work, args=(job, Start(ready, spent))) for job in jobs]
    for process in processes:
        process.start()
    ready.wait(60)
    started_at, broker_cpu = time.perf_counter(), server.cpu_s()
    ready.wait(600)  # until all are done
    took_s, broker_cpu = time.perf_counter() - started_at, server.cpu_s() - broker_cpu
    clients_cpu = sum(spent.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a client ended with {process.exitcode}")
    return took_s, clients_cpu + broker_cpu


class Start:
    """A barrier before the processes start and after they are done."""

    def __init__(self, barrier: Barrier, spent: Any) -> None:
        self._barrier = barrier
        self._spent = spent
        self._since: float | None = None

    def wait(self) -> None:
        """Wait for the others; the second call reports the processor time since the first."""
        if self._since is not None:
            self._spent.put(time.process_time() - self._since)
        self._barrier.wait(600)
        self._since = time.process_time()


def _check(message: Any) -> None:
    if len(message.body) != SIZE or message.tag != TAG:
        raise SystemExit("not what was sent")


def pull_blocking(job: Job, ready: Start) -> None:
    """Pull without an event loop."""
    with blocking.PullConsumer(job.address, group=job.group) as consumer:
        ready.wait()
        offsets = dict.fromkeys(job.queues, 0)
        left = job.messages
        while left > 0:
            for queue_id in job.queues:
                result = consumer.pull(
                    TOPIC, queue_id, offsets[queue_id], max_messages=PULL_MESSAGES, wait_s=0.0, read_ahead=True
                )
                for message in result.messages:
                    _check(message)
                left -= len(result.messages)
                offsets[queue_id] = result.next_begin_offset
        ready.wait()


def pull_trio(job: Job, ready: Start) -> None:
    """Pull under trio."""

    async def work() -> None:
        async with reput_client.PullConsumer(job.address, group=job.group) as consumer:
            ready.wait()
            offsets = dict.fromkeys(job.queues, 0)
            left = job.messages
            while left > 0:
                for queue_id in job.queues:
                    result = await consumer.pull(
                        TOPIC, queue_id, offsets[queue_id], max_messages=PULL_MESSAGES, wait_s=0.0, read_ahead=True
                    )
                    for message in result.messages:
                        _check(message)
                    left -= len(result.messages)
                    offsets[queue_id] = result.next_begin_offset
            ready.wait()

    trio.run(work)


def member_blocking(job: Job, ready: Start) -> None:
    """Consume as a member, without an event loop."""
    with blocking.Consumer(job.address, group=job.group, topic=TOPIC, orderly=job.orderly) as consumer:
        while not _is_settled(consumer):
            time.sleep(0.01)
        ready.wait()
        left = job.messages
        if job.concurrency:

            def handle(message: Any) -> None:
                nonlocal left
                _check(message)
                left -= 1
                if left == 0:
                    consumer.stop()

            consumer.run(handle, concurrency=job.concurrency)
        else:
            for message in consumer:
                _check(message)
                left -= 1
                if left == 0:
                    break
        ready.wait()


def member_trio(job: Job, ready: Start) -> None:
    """Consume as a member, under trio."""

    async def work() -> None:
        async with reput_client.Consumer(job.address, group=job.group, topic=TOPIC, orderly=job.orderly) as consumer:
            for _ in range(6000):
                if _is_settled(consumer):
                    break
                await trio.sleep(0.01)
            # In a task of its own: other members wait for queues that this one has yet to release.
            await trio.to_thread.run_sync(ready.wait)
            left = job.messages
            if job.concurrency:

                async def handle(message: Any) -> None:
                    nonlocal left
                    _check(message)
                    left -= 1
                    if left == 0:
                        consumer.stop()

                await consumer.run(handle, concurrency=job.concurrency)
            else:
                async for message in consumer:
                    _check(message)
                    left -= 1
                    if left == 0:
                        break
            ready.wait()

    trio.run(work)


def _is_settled(consumer: Any) -> bool:
    mine = [queue for queue in consumer.assignment if queue.topic == TOPIC]
    return len(mine) == QUEUES // MEMBERS


# -- latency -------------------------------------------------------------------------------------------------------


def latency(flush: str, ack: Ack) -> Callable[[argparse.Namespace], Row]:
    """Measure one message at a time."""

    def measure(arguments: argparse.Namespace) -> Row:
        rounds = []
        for _ in range(arguments.rounds):
            with broker(flush) as server:
                with blocking.Admin(server.address) as admin:
                    admin.create_topic(TOPIC, queues=4)
                put_pull = _put_and_pull(server.address, arguments.sends, ack)
                through = _through_a_member(server.address, arguments.sends, ack)
                rounds.append((*_percentiles(put_pull), *_percentiles(through)))
        base50, base99, group50, group99 = (statistics.median(column) for column in zip(*rounds, strict=True))
        return {
            "put+pull p50 us": round(base50 * 1e6),
            "p99": round(base99 * 1e6),
            "group p50 us": round(group50 * 1e6),
            "group p99": round(group99 * 1e6),
            "p50 ratio": round(statistics.median(row[2] / row[0] for row in rounds), 2),
            "p99 ratio": round(statistics.median(row[3] / row[1] for row in rounds), 2),
        }

    return measure


def _percentiles(latencies_s: list[float]) -> tuple[float, float]:
    ordered = sorted(latencies_s)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]


def _put_and_pull(address: str, sends: int, ack: Ack) -> list[float]:
    """Put a message and then pull it, with one client."""
    found = []
    body = bytes(SIZE)
    with blocking.Producer(address) as producer, blocking.PullConsumer(address, group="plain") as consumer:
        for _ in range(sends + 200):
            started_at = time.perf_counter()
            receipt = producer.send(reput_client.Message(TOPIC, body, tag=TAG), ack=ack)
            result = consumer.pull(TOPIC, receipt.queue_id, receipt.queue_offset, wait_s=1.0)
            _check(result.messages[0])
            found.append(time.perf_counter() - started_at)
            time.sleep(0.001)
    return found[200:]


def _through_a_member(address: str, sends: int, ack: Ack) -> list[float]:
    """Send to a member that waits in another process; both processes read the same clock."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_note_arrivals, args=(address, sends + 200, theirs))
    process.start()
    ours.recv()
    sent_at = []
    arrivals = []
    body = bytes(SIZE)
    with blocking.Producer(address) as producer:
        for _ in range(sends + 200):
            sent_at.append(time.perf_counter())
            producer.send(reput_client.Message(TOPIC, body, tag=TAG), ack=ack)
            arrivals.append(ours.recv())
            time.sleep(0.001)
    process.join()
    return [arrival - sent for sent, arrival in zip(sent_at, arrivals, strict=True)][200:]


def _note_arrivals(address: str, count: int, out: Connection) -> None:
    async def work() -> None:
        async with reput_client.Consumer(address, group="waits", topic=TOPIC, start="latest") as consumer:
            out.send(None)
            async for message in consumer:
                _check(message)
                out.send(time.perf_counter())
                nonlocal count
                count -= 1
                if count == 0:
                    return

    trio.run(work)


MEASURES: dict[str, Callable[[argparse.Namespace], Row]] = {
    "drain, iterated, trio": drain(pull_trio, member_trio),
    "drain, iterated, blocking": drain(pull_blocking, member_blocking),
    "drain, handler, trio": drain(pull_trio, member_trio, concurrency=1),
    "drain, handler, blocking": drain(pull_blocking, member_blocking, concurrency=1),
    "drain, 8 handlers at a time, trio": drain(pull_trio, member_trio, concurrency=8),
    "drain, orderly, trio": drain(pull_trio, member_trio, orderly=True),
    "latency, page_cache, async flush": latency("async", "page_cache"),
    "latency, flushed, sync flush": latency("sync", "flushed"),
}


if __name__ == "__main__":
    main()
