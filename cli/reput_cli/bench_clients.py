"""The client processes of a benchmark: their plan, bodies and results.

Functions and data can be pickled for a process pool. Building messages and reading bodies and tags is measured too.
"""

from __future__ import annotations

import os
import platform
import random
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from reput_client.blocking import Admin, Message, Producer, PullConsumer
from reput_client.received import ReceivedMessage
from reput_client.security import TLS
from reput_protocol.codes import Ack
from reput_protocol.errors import ReputError

_TAG = "bench"
_CHUNK_MESSAGES = 4_096
_progress: Synchronized[int] | None = None
"""Messages that the clients of this process have handled, and those of the processes that share it."""


def share_progress(progress: Synchronized[int]) -> None:
    """Count what this process does in `progress`; the initializer of client processes."""
    global _progress
    _progress = progress


def _note(messages: int) -> None:
    if _progress is not None:
        with _progress.get_lock():
            _progress.value += messages


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """A benchmark; clients get the same plan and different numbers."""

    server: str
    topic: str
    messages: int
    size: int
    ack: Ack = "flushed"
    in_flight: int = 1
    batch: int = 1
    many: bool = False
    """Send bodies with `send_many` instead of messages."""
    rate: float | None = None
    duration_s: float | None = None
    warmup: int = 0
    verify: bool = False
    timeout_s: float = 30.0
    queues: tuple[int, ...] = ()
    tls: TLS | None = None


def run_producer(plan: BenchPlan, client: int) -> ClientResult:
    """Send the plan's messages, or until its duration is over."""
    payloads = Payloads(plan.size)
    first = client * plan.messages
    with Producer(plan.server, group="reput-bench", timeout_s=plan.timeout_s, tls=plan.tls) as producer:
        _send(producer, plan, payloads, range(first, first + plan.warmup), ClientResult())
        result = ClientResult()
        started_at = time.perf_counter()
        _send(producer, plan, payloads, range(first, first + plan.messages), result)
        result.duration_s = time.perf_counter() - started_at
    return result


def _send(producer: Producer, plan: BenchPlan, payloads: Payloads, numbers: range, result: ClientResult) -> None:
    make, topic = payloads.make, plan.topic
    pipelined = plan.in_flight > 1 or plan.many
    in_chunks = plan.many or (pipelined and plan.rate is None)
    step = max(_CHUNK_MESSAGES, plan.in_flight * plan.batch * 4) if in_chunks else plan.batch
    started_at = time.perf_counter()
    for count, start in enumerate(range(numbers.start, numbers.stop, step)):
        if plan.duration_s is not None and time.perf_counter() - started_at >= plan.duration_s:
            return
        due_at = time.perf_counter()
        if plan.rate is not None:
            due_at = started_at + count * step / plan.rate
            time.sleep(max(0.0, due_at - time.perf_counter()))
        part = range(start, min(start + step, numbers.stop))
        try:
            if plan.many:
                bodies: Iterable[bytes] = map(make, part)
                if plan.rate is not None:
                    bodies = _paced(bodies, plan.batch, plan.rate, due_at)
                producer.send_many(topic, bodies, tag=_TAG, batch=plan.batch, in_flight=plan.in_flight, ack=plan.ack)
            elif pipelined and plan.rate is None:
                for number in part:
                    producer.post(Message(topic, make(number), tag=_TAG), ack=plan.ack)
                producer.flush()
            elif plan.batch == 1:
                producer.send(Message(topic, make(start), tag=_TAG), ack=plan.ack)
            else:
                producer.send_batch([Message(topic, make(number), tag=_TAG) for number in part], ack=plan.ack)
        except ReputError:
            result.errors += 1
            raise
        result.messages += len(part)
        result.message_bytes += len(part) * plan.size
        _note(len(part))
        if not pipelined:
            result.latencies_s.append(time.perf_counter() - due_at)


def _paced(bodies: Iterable[bytes], batch: int, rate: float, started_at: float) -> Iterator[bytes]:
    """Yield `rate` bodies a second, as many at once as a batch has."""
    for number, body in enumerate(bodies):
        if number % batch == 0:
            time.sleep(max(0.0, started_at + number / rate - time.perf_counter()))
        yield body


def run_consumer(plan: BenchPlan, client: int) -> ClientResult:
    """Read the plan's queues from their first messages, up to the number of messages or their ends."""
    del client  # its plan has its own queues
    check = Payloads(plan.size).check if plan.verify else None
    result = ClientResult()
    with PullConsumer(plan.server, group="reput-bench", timeout_s=plan.timeout_s, tls=plan.tls) as consumer:
        started_at = time.perf_counter()
        for messages in _pulls(consumer, plan):
            size = 0
            for message in messages:
                body = message.body
                size += len(body)
                if message.tag != _TAG or (check is not None and not check(body)):
                    result.errors += 1
            result.messages += len(messages)
            result.message_bytes += size
            _note(len(messages))
        result.duration_s = time.perf_counter() - started_at
    return result


def _pulls(consumer: PullConsumer, plan: BenchPlan) -> Iterator[Sequence[ReceivedMessage]]:
    """Pull from the plan's queues alternately."""
    offsets = dict.fromkeys(plan.queues, 0)
    left = plan.messages
    while offsets and left > 0:
        for queue_id in list(offsets):
            result = consumer.pull(
                plan.topic, queue_id=queue_id, offset=offsets[queue_id], max_messages=1_024, wait_s=0.0, read_ahead=True
            )
            yield result.messages
            left -= len(result.messages)
            offsets[queue_id] = result.next_begin_offset
            if result.next_begin_offset >= result.max_offset:
                del offsets[queue_id]


def run_subscriber(plan: BenchPlan, client: int) -> ClientResult:
    """Wait at the end of one queue for new messages; a latency is from making a body to receiving it."""
    result = ClientResult()
    queue_id = plan.queues[client]
    with (
        Admin(plan.server, timeout_s=plan.timeout_s, tls=plan.tls) as admin,
        PullConsumer(plan.server, group="reput-bench", timeout_s=plan.timeout_s, tls=plan.tls) as consumer,
    ):
        offset = admin.max_offset(plan.topic, queue_id)
        started_at = time.perf_counter()
        idle_since = started_at
        while time.perf_counter() - idle_since < 2.0:
            answer = consumer.pull(plan.topic, queue_id=queue_id, offset=offset, max_messages=256, wait_s=1.0)
            for message in answer.messages:
                body = bytes(message.body)
                result.latencies_s.append((time.time_ns() - made_at_ns(body)) / 1e9)
                result.message_bytes += len(body)
            result.messages += len(answer.messages)
            offset = answer.next_begin_offset
            if len(answer.messages):
                idle_since = time.perf_counter()
                result.duration_s = idle_since - started_at
    return result


_HEAD = struct.Struct(">QQ")
HEAD_BYTES = _HEAD.size
POOL_BYTES = 1 << 20


class Payloads:
    """Makes and checks bodies of one size.

    A body is its number, the time it was made in ns since 1970 (each 8 bytes, big endian), and bytes of a random pool
    from position `number * 4099 % POOL_BYTES` on, which a receiver can check: its pool has the same seed.
    """

    def __init__(self, size: int) -> None:
        if size < _HEAD.size:
            raise ValueError(f"bodies of {size} bytes are too small to be distinguished; the minimum is {_HEAD.size}")
        self._fill_bytes = size - _HEAD.size
        self.pool = random.Random(1).randbytes(POOL_BYTES + self._fill_bytes)

    def make(self, number: int, at_ns: int | None = None) -> bytes:
        """Return body `number`, with the current time or `at_ns` as the time it was made."""
        start = number * 4099 % POOL_BYTES
        return (
            _HEAD.pack(number, time.time_ns() if at_ns is None else at_ns) + self.pool[start : start + self._fill_bytes]
        )

    def check(self, body: bytes) -> bool:
        """Return whether a received body is unchanged."""
        if len(body) != _HEAD.size + self._fill_bytes:
            return False
        start = _HEAD.unpack_from(body)[0] * 4099 % POOL_BYTES
        return body[_HEAD.size :] == self.pool[start : start + self._fill_bytes]


def number_of(body: bytes) -> int:
    """Return the number of a body."""
    number: int = _HEAD.unpack_from(body)[0]
    return number


def made_at_ns(body: bytes) -> int:
    """Return when a body was made, in ns since 1970."""
    made: int = _HEAD.unpack_from(body)[1]
    return made


@dataclass(slots=True)
class ClientResult:
    """The figures of one client process."""

    messages: int = 0
    message_bytes: int = 0
    duration_s: float = 0.0
    errors: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.duration_s if self.duration_s else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of the ordered values are."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def summarize(name: str, results: Sequence[ClientResult], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of all clients, `facts` and the host as one flat object."""
    messages = sum(result.messages for result in results)
    duration_s = max(result.duration_s for result in results)
    rates = sorted(result.rate for result in results)
    row: dict[str, Any] = {
        "bench": name,
        "messages": messages,
        "messages_per_s": round(messages / duration_s) if duration_s else 0,
        "mb_per_s": round(sum(r.message_bytes for r in results) / duration_s / 1e6, 1) if duration_s else 0.0,
        "duration_s": round(duration_s, 3),
        "errors": sum(result.errors for result in results),
    }
    latencies = sorted(latency for result in results for latency in result.latencies_s)
    if latencies:
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999)):
            row[f"{label}_us"] = round(percentile(latencies, share) * 1e6, 1)
        row["max_us"] = round(latencies[-1] * 1e6, 1)
    if len(rates) > 1:
        row["client_min_per_s"] = round(rates[0])
        row["client_mean_per_s"] = round(sum(rates) / len(rates))
        row["client_max_per_s"] = round(rates[-1])
    return {**row, **facts, **host_facts()}


def host_facts() -> dict[str, Any]:
    """Return cores, memory, and the versions of Python, Reput and Linux."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / (1 << 30), 1),
        "python": platform.python_version(),
        "reput": version("reput"),
        "kernel": platform.release(),
    }


def write_csv(path: Path, row: dict[str, Any]) -> None:
    """Append a row to a CSV file; a new file gets a header."""
    import csv

    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if fresh:
            writer.writeheader()
        writer.writerow(row)
