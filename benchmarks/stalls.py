"""`make bench KIND=stalls`: whether the work of one client delays another.

A producer sends 1 KiB messages at fixed times, one after the other, `page_cache` under ASYNC_FLUSH. A latency counts
from when its message was due (no coordinated omission). In each round the producer runs alone, and then together with
a client that may hold up the broker; the goal is a median ratio of the two p99 of at most 3. Every client is a process.
Cases with everything in memory show the cost of processor time without waiting. Also printed: how late the event loop
was, how often its thread waited for the disk, and how much of the store that is read was in memory before and after.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import page_cache
from reput_cli.bench_clients import Payloads, host_facts, percentile
from reput_client import Ack
from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.blocking.bulk import StagingProducer
from reput_client.produce.staging_producer import StagingScope
from reput_protocol.record.put_block import encode_put_block
from servers import RunningBroker, broker_on
from tables import NOISY_SPREAD, aligned, figure, spread_of

PACED, OLD, OTHER = "paced", "old", "other"
SIZE = 1024
OLD_SIZE = 4096
OLD_QUEUES = 4
FILE_MIB = 64
SMALL_FILE_MIB = 4
MANY_TOPICS, QUEUES_A_TOPIC = 100, 100
BLOCK, BATCH_BLOCKS = 256, 20
PAUSE_S = 0.02
_GOAL = 3.0
_processes = multiprocessing.get_context("spawn")
Disturb = Callable[[str, Connection], None]


@dataclass(frozen=True, slots=True)
class Case:
    """The work of the other client.

    `memory` is the state of the store that is read: `warm` is in the page cache; `cold` was evicted before the broker
    started; `evicted` was evicted while the broker has it mapped, as when memory is short.
    """

    title: str
    disturb: Disturb
    memory: Literal["warm", "cold", "evicted"] = "warm"
    file_mib: int = FILE_MIB


@dataclass(frozen=True, slots=True)
class Times:
    """Latencies in milliseconds, and the state of the event loop meanwhile."""

    p50: float
    p99: float
    most: float
    loop_late: float
    """Upper bound of its lateness, from its histogram."""
    loop_faults: int


@dataclass(frozen=True, slots=True)
class Round:
    """A round of a case."""

    alone: Times
    together: Times
    done: str
    """The work of the other client meanwhile, as text."""

    @property
    def ratio(self) -> float:
        """The ratio of the two p99."""
        return self.together.p99 / self.alone.p99


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=250, help="messages a second (250)")
    parser.add_argument("--seconds", type=float, default=4.0, help="alone, and together, in each round (4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512, help="size of the store that is read")
    parser.add_argument("--only", default="", help="only cases whose titles contain this")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in case.title]
    found: dict[str, list[Round]] = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="reput-stalls-") as name:
        directory = Path(name)
        with broker_on(directory, "async", **_options(FILE_MIB)) as server:
            _fill(server, arguments.mib)
        for _ in range(arguments.rounds):
            for case in cases:
                try:
                    one = _round(case, directory, arguments.mib, arguments.rate, arguments.seconds)
                except PermissionError as error:
                    notes.append(f"{case.title}: not measured: {error}")
                    cases = [other for other in cases if other is not case]
                else:
                    found.setdefault(case.title, []).append(one)
    if arguments.json:
        rows = {title: [asdict(one) for one in rounds] for title, rounds in found.items()}
        print(json.dumps({"host": host_facts(), "results": rows, "notes": notes}))
        return
    head = (
        "other client",
        "",
        "p50 ms",
        "p99 ms",
        "max ms",
        "loop late ms",
        "loop faults",
        "p99 ratio",
        "spread",
        "meanwhile",
    )
    print("\n".join(aligned([head, *(row for title, rounds in found.items() for row in _rows(title, rounds))])))
    print("".join(f"\n- {note}" for note in notes))
    facts = ", ".join(f"{name} {value}" for name, value in host_facts().items())
    print(
        f"{arguments.rate} messages a second, medians of {arguments.rounds} rounds of twice {arguments.seconds:g} s; "
        f"goal: p99 within {_GOAL:g}x of the same producer alone; {facts}"
    )


def _rows(title: str, rounds: list[Round]) -> list[tuple[str, ...]]:
    ratios = [one.ratio for one in rounds]
    spread = spread_of(ratios)
    told = f"{spread:.0%}{' noisy' if spread > NOISY_SPREAD else ''}"
    last = (f"{statistics.median(ratios):.2f}", told, rounds[-1].done)
    return [
        (title, "alone", *_times([one.alone for one in rounds]), "", "", ""),
        ("", "together", *_times([one.together for one in rounds]), *last),
    ]


def _times(times: list[Times]) -> tuple[str, ...]:
    columns = zip(*(astuple(one) for one in times), strict=True)
    *latencies, late, faults = (figure(statistics.median(column)) for column in columns)
    return (*latencies, f"<= {late}", faults)


def _options(file_mib: int) -> dict[str, str]:
    return {"STORE__COMMIT_LOG_FILE_SIZE": f"{file_mib}MiB"}


def _round(case: Case, directory: Path, mib: int, rate: int, seconds: float) -> Round:
    """Measure with a new broker: without root, the mapped log of a running one cannot be evicted."""
    with tempfile.TemporaryDirectory(prefix="reput-stalls-") as fresh:
        is_fresh = case.memory == "evicted" or case.file_mib != FILE_MIB
        root = Path(fresh) if is_fresh else directory
        if case.memory == "cold":
            page_cache.drop(root)
        else:
            page_cache.warm(root)
        with broker_on(root, "async", **_options(case.file_mib)) as server:
            _create(server)
            if case.memory == "evicted":
                _fill(server, mib)
            alone = _paced(server, rate, seconds)
            if case.memory == "evicted":
                page_cache.evict(server.pid, root)
            held = page_cache.resident_share(root)
            with _other(case.disturb, server.address) as other:
                together = _paced(server, rate, seconds)
                done = _stopped(other)
        if case.memory != "warm":
            done += f"; in memory {held:.0%}, then {page_cache.resident_share(root):.0%}"
    return Round(alone, together, done)


def _stopped(other: Connection) -> str:
    other.send("stop")
    done = str(other.recv())
    if done.startswith("failed"):
        raise SystemExit(f"no figure: {done}")
    return done


def _paced(server: RunningBroker, rate: int, seconds: float) -> Times:
    before, faults = server.loop_delays(), server.loop_faults()
    ordered = sorted(latency * 1000 for latency in _in_process(_pace, server.address, rate, seconds))
    return Times(
        statistics.median(ordered),
        percentile(ordered, 0.99),
        ordered[-1],
        server.loop_late_s(before) * 1000,
        server.loop_faults() - faults,
    )


@contextmanager
def _other(disturb: Disturb, address: str) -> Iterator[Connection]:
    """Run a client until the block ends. Its pipe carries "ready", a word to stop, and its report."""
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=_disturb, args=(disturb, address, theirs), daemon=True)
    process.start()
    try:
        said = ours.recv()
        if said != "ready":
            raise SystemExit(f"no figure: {said}")
        yield ours
    finally:
        process.terminate()
        process.join()
        ours.close()
        theirs.close()


def _disturb(disturb: Disturb, address: str, pipe: Connection) -> None:
    try:
        disturb(address, pipe)
    except Exception as error:
        pipe.send(f"failed: {error}")


def _in_process(pace: Callable[..., None], *arguments: object) -> list[float]:
    ours, theirs = _processes.Pipe()
    process = _processes.Process(target=pace, args=(*arguments, theirs), daemon=True)
    process.start()
    try:
        latencies: list[float] = ours.recv()
        return latencies
    finally:
        process.join()


def _pace(address: str, rate: int, seconds: float, pipe: Connection) -> None:
    """Send at fixed times, and report the latency of each message from its time."""
    payloads = Payloads(SIZE)
    latencies = []
    with Producer(address, ack="page_cache", timeout_s=60.0) as producer:
        for number in range(rate):  # to warm up
            producer.send(Message(PACED, payloads.make(number)))
        started_at = time.perf_counter()
        for number in range(int(rate * seconds)):
            due_at = started_at + number / rate
            time.sleep(max(0.0, due_at - time.perf_counter()))
            producer.send(Message(PACED, payloads.make(number)))
            latencies.append(time.perf_counter() - due_at)
    pipe.send(latencies)


def _create(server: RunningBroker) -> None:
    with Admin(server.address) as admin:
        for topic in (PACED, OTHER):
            admin.create_topic(topic, queues=1)


def _fill(server: RunningBroker, mib: int) -> None:
    payloads = Payloads(OLD_SIZE)
    with Admin(server.address) as admin, Producer(server.address, ack="page_cache", timeout_s=60.0) as producer:
        admin.create_topic(OLD, queues=OLD_QUEUES)
        count = (mib << 20) // OLD_SIZE
        producer.send_many(OLD, (payloads.make(number) for number in range(count)), tag="old")


# -- the other client ----------------------------------------------------------------------------------------------


def read_from_the_beginning(address: str, pipe: Connection) -> None:
    """Pull every queue from its first message to its end, or until stopped."""
    check = Payloads(OLD_SIZE).check
    count = size = 0
    with PullConsumer(address, group="stalls", timeout_s=60.0) as consumer:
        offsets = dict.fromkeys(range(OLD_QUEUES), 0)
        pipe.send("ready")
        while offsets and not pipe.poll():
            for queue_id, offset in list(offsets.items()):
                answer = consumer.pull(OLD, queue_id, offset, max_messages=128, wait_s=0.0)
                for message in answer.messages:
                    body = bytes(message.body)
                    if not check(body):
                        raise AssertionError(f"{OLD}/{queue_id} at {message.queue_offset} is not what was sent")
                    size += len(body)
                count += len(answer.messages)
                offsets[queue_id] = answer.next_begin_offset
                if answer.next_begin_offset >= answer.max_offset:
                    del offsets[queue_id]
    pipe.send(f"{count:,} messages read, {size >> 20} MiB")


def flush(address: str, pipe: Connection) -> None:
    """Send messages with `ack="flushed"`, one after the other."""
    count = _send_until_stopped(address, pipe, ack="flushed", kib=64)
    pipe.send(f"{count:,} sends of 64 KiB, each flushed")


def cross_files(address: str, pipe: Connection) -> None:
    """Write enough to create one log file after the other."""
    # With pauses, because the new files are to be measured and not the copying.
    count = _send_until_stopped(address, pipe, ack="page_cache", kib=256, pause_s=PAUSE_S)
    pipe.send(f"{count * 256 >> 10} MiB written, {count * 256 // 1024 // SMALL_FILE_MIB} files made")


def publish_batches(address: str, pipe: Connection) -> None:
    """Stage and publish batches, as the Spark sink does."""
    # With pauses, because the publishing is to be measured and not the processor time of staging.
    block = [Message(OTHER, bytes(300), tag="t", keys=["k"]) for _ in range(BLOCK)]
    query_id, batches = f"bench:{uuid.uuid4()}", 0
    with StagingProducer(address, timeout_s=60.0) as writer:
        pipe.send("ready")
        while not pipe.poll():
            writer.begin(StagingScope(query_id, batches, 0, uuid.uuid4().hex))
            for number in range(BATCH_BLOCKS):
                ids = [f"{query_id}-{batches}-{number}-{index}" for index in range(BLOCK)]
                writer.stage(OTHER, 0, BLOCK, encode_put_block(block, OTHER, 0, 1, ids))
                time.sleep(PAUSE_S)
            writer.commit(query_id, batches, [writer.end()], 60.0)
            batches += 1
    pipe.send(f"{batches} batches of {BATCH_BLOCKS * BLOCK:,} messages")


def _send_until_stopped(address: str, pipe: Connection, *, ack: Ack, kib: int, pause_s: float = 0.0) -> int:
    """Send messages of one size, one after the other, until stopped; return their number."""
    payloads = Payloads(kib * 1024)
    count = 0
    with Producer(address, ack=ack, timeout_s=60.0) as producer:
        pipe.send("ready")
        while not pipe.poll():
            producer.send(Message(OTHER, payloads.make(count)))
            count += 1
            if pause_s:
                time.sleep(pause_s)
    return count


def change_tables(address: str, pipe: Connection) -> None:
    """Create topics and commit offsets of many groups, which are kept in JSON tables."""
    changes = 0
    with Admin(address, timeout_s=60.0) as admin, PullConsumer(address, group="g", timeout_s=60.0) as consumer:
        pipe.send("ready")
        while not pipe.poll():
            admin.create_topic(f"made-{changes}", queues=8)
            for queue_id in range(8):
                consumer.commit(OTHER, 0, queue_id)
            changes += 9
            time.sleep(0.02)
    pipe.send(f"{changes:,} changes")


def ask_for_much(address: str, pipe: Connection) -> None:
    """Request lists of many queues repeatedly."""
    answers = queues = 0
    with Admin(address, timeout_s=60.0) as admin:
        for number in range(MANY_TOPICS):
            admin.create_topic(f"many-{number}", queues=QUEUES_A_TOPIC)
        pipe.send("ready")
        while not pipe.poll():
            topics = admin.list_topics()
            answers += 1
            for topic in topics:
                if topic.startswith("many-") and not pipe.poll():
                    queues += len(admin.topic_stats(topic).offset_table)
                    answers += 1
            time.sleep(0.02)
    pipe.send(f"{answers:,} answers, {queues:,} queues")


CASES = (
    Case("a consumer from the beginning, in memory", read_from_the_beginning),
    Case("a consumer from the beginning, cold", read_from_the_beginning, "cold"),
    Case("a consumer from the beginning, evicted", read_from_the_beginning, "evicted"),
    Case("flushes", flush),
    Case("new files of the log", cross_files, file_mib=SMALL_FILE_MIB),
    Case("batches of the Spark sink", publish_batches),
    Case("tables that change", change_tables),
    Case(f"lists of {MANY_TOPICS * QUEUES_A_TOPIC:,} queues", ask_for_much),
)


if __name__ == "__main__":
    main()
