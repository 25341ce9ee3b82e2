"""`make bench`: the broker compared with an echo server that gets the same frames; medians of several rounds.

One client process and one server process. Bodies differ, building messages is part of the measured time, and the
consumer reads every body and tag. Each line names load and durability. A round that loses, repeats or changes a message
ends the run without a figure.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count as numbers_from

from reput_cli.bench_clients import BenchPlan, ClientResult, Payloads, host_facts, run_consumer, run_producer
from reput_client import Ack
from reput_client.blocking import Admin
from reput_protocol.codes import AckLevel, RequestCode
from reput_protocol.commands.send import PutMessageHeader
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType
from servers import RunningBroker, broker, echo_server
from tables import NOISY_SPREAD, aligned, figure, spread_of

SIZE = 1024
BATCH = 64
QUEUES = (0, 1, 2, 3)
FILE_MIB = 16
_DISPATCH_S = 10.0
_topics = numbers_from(1)
_READ_BYTES = 1 << 18


def main() -> None:
    """Run every measurement and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scale",
        type=float,
        default=0.1,
        help="share of the full number of messages (0.1; 1 is 400,000 a round, a million in memory)",
    )
    parser.add_argument("--only", choices=sorted({**AGAINST_ECHO, **ALONE}), help="run only this measurement")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    started_at = time.perf_counter()
    rows: list[Row] = []
    wanted = [name for name in AGAINST_ECHO if arguments.only in (None, name)]
    if wanted:
        with echo_server() as echo_address, broker("async") as server:
            echo = EchoClient(echo_address, "bench")
            scene = Scene(server, echo, arguments.rounds, arguments.scale)
            rows += [AGAINST_ECHO[name](scene) for name in wanted]
            echo.close()
    for name, measure in ALONE.items():
        if arguments.only in (None, name):
            rows.append(measure(arguments.rounds, arguments.scale))
    if arguments.json:
        print(json.dumps({"host": host_facts(), "results": [asdict(row) for row in rows]}))
        return
    head = ("bodies of 1 KiB", "unit", "reput", "echo", "ratio", "spread", "notes")
    print("\n".join(aligned([head, *(row.cells() for row in rows)])))
    facts = ", ".join(f"{name} {value}" for name, value in host_facts().items())
    print(f"\nmedians of {arguments.rounds} rounds, {time.perf_counter() - started_at:.0f} s; {facts}")
    if any((row.spread or 0.0) > NOISY_SPREAD for row in rows):
        print(f"noisy: the rounds differ by more than {NOISY_SPREAD:.0%} of their median; compare ratios only")


# -- against the echo server ---------------------------------------------------------------------------------------


def latency(scene: Scene) -> Row:
    """Measure one message in flight."""
    count = max(200, int(4_000 * scene.scale))

    def measure(topic: str) -> tuple[float, float]:
        plan = BenchPlan(scene.server.address, topic, count, SIZE, ack="page_cache", warmup=100)
        ours = statistics.median(produce(plan).latencies_s)
        theirs = statistics.median(scene.echo.one_in_flight(Payloads(SIZE), count))
        return ours * 1e6, theirs * 1e6

    return Row.of_pairs("one in flight, page_cache, async flush, p50", "us", scene.pairs(measure))


def pipelined_singles(scene: Scene) -> Row:
    """Measure one message per frame, many frames in flight, without linger."""
    count = int(100_000 * scene.scale)

    def measure(topic: str) -> tuple[float, float]:
        plan = BenchPlan(scene.server.address, topic, count, SIZE, ack="page_cache", in_flight=256, warmup=500)
        return produce(plan).rate, scene.echo.pipelined(Payloads(SIZE), count, 256, 1)

    return Row.of_pairs("pipelined singles, page_cache, async flush", "msg/s", scene.pairs(measure))


def blocks(scene: Scene) -> Row:
    """Measure blocks of 64 message objects, several in flight."""
    return _blocks("blocks of 64", scene, many=False)


def many(scene: Scene) -> Row:
    """Measure the same blocks, made from bodies by `send_many`."""
    return _blocks("blocks of 64 by send_many", scene, many=True)


def _blocks(name: str, scene: Scene, *, many: bool) -> Row:
    count = scene.blocks(400_000)

    def measure(topic: str) -> tuple[float, float]:
        plan = BenchPlan(
            scene.server.address,
            topic,
            count,
            SIZE,
            ack="page_cache",
            in_flight=8,
            batch=BATCH,
            many=many,
            warmup=10 * BATCH,
        )
        return produce(plan).rate, scene.echo.pipelined(Payloads(SIZE), count, 16, BATCH)

    return Row.of_pairs(f"{name}, page_cache, async flush", "msg/s", scene.pairs(measure))


def pull(scene: Scene) -> Row:
    """Measure pulls of blocks; every body and tag is read."""
    count = scene.blocks(400_000)

    def measure(topic: str) -> tuple[float, float]:
        address = scene.server.address
        produce(BenchPlan(address, topic, count, SIZE, ack="page_cache", in_flight=8, batch=BATCH, many=True))
        rate = consume(BenchPlan(address, topic, count, SIZE, queues=QUEUES)).rate
        return rate, scene.echo.pipelined(Payloads(SIZE), count, 16, BATCH)

    row = Row.of_pairs("pull of blocks, lazy messages", "msg/s", scene.pairs(measure))
    row.baseline_is = "put"
    return row


# -- Reput alone ---------------------------------------------------------------------------------------------------


def flushed_share(rounds: int, scale: float) -> Row:
    """Compare `flushed` with `page_cache` under SYNC_FLUSH, 64 sends in flight; counts the acks of each sync."""
    count = int(40_000 * scale)
    pairs, acks = [], []
    with broker("sync") as server:

        def rate(ack: Ack) -> float:
            plan = BenchPlan(server.address, new_topic(server), count, SIZE, ack=ack, in_flight=64, warmup=500)
            return produce(plan).rate

        for _ in range(rounds):
            messages, syncs = _flushes(server)
            flushed = rate("flushed")
            messages_after, syncs_after = _flushes(server)
            acks.append((messages_after - messages) / max(1.0, syncs_after - syncs))
            pairs.append((flushed, rate("page_cache")))
    row = Row.of_pairs("64 in flight, flushed, sync flush", "msg/s", pairs)
    row.baseline_is = "page_cache"
    row.facts["acks a sync"] = round(statistics.median(acks), 1)
    return row


def _flushes(server: RunningBroker) -> tuple[float, float]:
    name = "reput_flush_batch_messages"
    return server.metric(f"{name}_sum"), server.metric(f"{name}_count")


def file_waits(rounds: int, scale: float) -> Row:
    """Count the puts that waited for a new log file, writing as fast as possible to small files."""
    count = max(1, int(400_000 * scale) // BATCH) * BATCH
    waits = []
    with broker("async", STORE__COMMIT_LOG_FILE_SIZE=f"{FILE_MIB}MiB") as server:
        for _ in range(rounds):
            before = server.metric("reput_log_file_waits_total")
            plan = BenchPlan(server.address, new_topic(server), count, SIZE, ack="page_cache", in_flight=8, batch=BATCH)
            produce(plan)
            waits.append(server.metric("reput_log_file_waits_total") - before)
        files = server.metric("reput_storage_end_offset_bytes") / (FILE_MIB << 20)
    return Row(
        f"puts that waited for a new log file of {FILE_MIB} MiB",
        "of " + figure(count // BATCH),
        round(statistics.median(waits)),
        facts={"most": max(waits), "files": round(files)},
    )


def idle(rounds: int, scale: float) -> Row:
    """Measure an empty broker without clients."""
    starts, memory_mib, cpu = [], [], []
    for _ in range(min(rounds, 3)):
        with broker("sync") as server:
            starts.append(server.start_s)
            time.sleep(1.0)
            before, since = server.cpu_s(), time.perf_counter()
            time.sleep(max(2.0, 5.0 * scale))
            cpu.append((server.cpu_s() - before) / (time.perf_counter() - since))
            memory_mib.append(server.memory_mib("VmRSS"))
    return Row(
        "idle, RSS",
        "MiB",
        round(statistics.median(memory_mib), 1),
        facts={
            "start to ready s": round(statistics.median(starts), 2),
            "share of a core": round(statistics.median(cpu), 4),
        },
    )


def memory(_: int, scale: float) -> Row:
    """Measure private memory after messages were produced and consumed: a million at full scale."""
    count = max(1, int(1_000_000 * scale) // BATCH) * BATCH
    with broker("async") as server:
        topic = new_topic(server)
        produce(BenchPlan(server.address, topic, count, SIZE, ack="page_cache", in_flight=8, batch=BATCH, many=True))
        consume(BenchPlan(server.address, topic, count, SIZE, queues=QUEUES))
        used = round(server.memory_mib("RssAnon"), 1)
    return Row("private memory after messages in and out", "MiB RssAnon", used, facts={"messages": float(count)})


# -- doing and checking --------------------------------------------------------------------------------------------


def new_topic(server: RunningBroker) -> str:
    """Create a topic with `QUEUES`."""
    topic = f"bench{next(_topics)}"
    with Admin(server.address) as admin:
        admin.create_topic(topic, queues=len(QUEUES))
    return topic


def produce(plan: BenchPlan) -> ClientResult:
    """Send, and compare the number of stored messages.

    Raises:
        SystemExit: a message is missing or was stored twice.
    """
    result = run_producer(plan, 0)
    sent = plan.messages + plan.warmup
    deadline = time.perf_counter() + _DISPATCH_S
    with Admin(plan.server) as admin:
        while True:
            stored = sum(admin.max_offset(plan.topic, queue_id) for queue_id in QUEUES)
            if stored >= sent or time.perf_counter() > deadline:
                break
            time.sleep(0.01)  # a `page_cache` answer comes before the message is dispatched
    if stored != sent:
        raise SystemExit(f"no figure: {sent} messages were sent, {stored} are stored")
    return result


def consume(plan: BenchPlan) -> ClientResult:
    """Read everything, and compare the number of messages.

    Raises:
        SystemExit: a message is missing, was read twice, or has another tag.
    """
    result = run_consumer(plan, 0)
    if result.messages != plan.messages or result.errors:
        raise SystemExit(
            f"no figure: {plan.messages} messages are stored, {result.messages} were read, "
            f"{result.errors} of them wrong"
        )
    return result


AGAINST_ECHO: dict[str, Callable[[Scene], Row]] = {
    "latency": latency,
    "singles": pipelined_singles,
    "blocks": blocks,
    "many": many,
    "pull": pull,
}
ALONE: dict[str, Callable[[int, float], Row]] = {
    "flushed": flushed_share,
    "file-waits": file_waits,
    "idle": idle,
    "memory": memory,
}


@dataclass
class Row:
    """A line of the table: medians over the rounds, and the median of their ratios."""

    measure: str
    unit: str
    reput: float
    baseline: float | None = None
    """The echo server's figure, or that of `baseline_is`."""
    baseline_is: str = "echo"
    ratio: float | None = None
    spread: float | None = None
    """The range of Reput's figures over the rounds, as a share of their median."""
    facts: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of_pairs(cls, measure: str, unit: str, pairs: list[tuple[float, float]]) -> Row:
        """Return the row for rounds, each with a figure of Reput and one of the baseline."""
        ours, theirs = zip(*pairs, strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        return cls(
            measure,
            unit,
            round(statistics.median(ours), 1),
            round(statistics.median(theirs), 1),
            ratio=round(ratio, 2),
            spread=round(spread_of(ours), 2),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the row's cells as text."""
        baseline = "" if self.baseline is None else figure(self.baseline)
        notes = [] if self.baseline is None or self.baseline_is == "echo" else [f"compared with {self.baseline_is}"]
        if self.spread is not None and self.spread > NOISY_SPREAD:
            notes.append("noisy")
        notes += [f"{name} {figure(value)}" for name, value in self.facts.items()]
        return (
            self.measure,
            self.unit,
            figure(self.reput),
            baseline,
            "" if self.ratio is None else f"{self.ratio:.2f}",
            "" if self.spread is None else f"{self.spread:.0%}",
            ", ".join(notes),
        )


@dataclass(frozen=True, slots=True)
class Scene:
    """The two servers that are compared. Both run all the time; only one is busy at a time."""

    server: RunningBroker
    echo: EchoClient
    rounds: int
    scale: float

    def pairs(self, measure: Callable[[str], tuple[float, float]]) -> list[tuple[float, float]]:
        """Run the rounds, each with a new topic."""
        return [measure(new_topic(self.server)) for _ in range(self.rounds)]

    def blocks(self, full: int) -> int:
        """Return the number of messages to send: a share of `full`, in whole blocks."""
        return max(1, int(full * self.scale) // BATCH) * BATCH


class EchoClient:
    """Sends the frames of a producer to the echo server and reads them back.

    Messages are built, encoded and framed within the measured time, as a producer does; the answer is the frame itself
    instead of a receipt.
    """

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._topic = topic
        self._opaque = 0

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def frame(self, messages: list[Message], ack: str) -> bytes:
        """Return the PutMessage frame that a producer would send."""
        self._opaque += 1
        block = encode_put_block(messages, topic=self._topic, queue_id=0, born_timestamp_ms=time.time_ns() // 1_000_000)
        header = PutMessageHeader(self._topic, 0, len(messages), AckLevel(ack))
        ext = header.to_ext(HeaderType.MSGPACK)
        return encode_frame(Header(RequestCode.PUT_MESSAGE, self._opaque, ext=ext), HeaderType.MSGPACK, block)

    def one_in_flight(self, payloads: Payloads, count: int) -> list[float]:
        """Send one frame after the other; return the seconds of each round trip."""
        latencies = []
        for number in range(count):
            started_at = time.perf_counter()
            frame = self.frame([Message(self._topic, payloads.make(number), tag="bench")], "page_cache")
            self._socket.sendall(frame)
            self._read(len(frame))
            latencies.append(time.perf_counter() - started_at)
        return latencies

    def pipelined(self, payloads: Payloads, count: int, in_flight: int, batch: int) -> float:
        """Keep `in_flight` frames of `batch` messages in flight; return messages per second."""
        started_at = time.perf_counter()
        for start in range(0, count, in_flight * batch):
            frames = [
                self.frame(
                    [Message(self._topic, payloads.make(n), tag="bench") for n in range(first, first + batch)],
                    "page_cache",
                )
                for first in range(start, min(start + in_flight * batch, count), batch)
            ]
            self._exchange(b"".join(frames))
        return count / (time.perf_counter() - started_at)

    def _exchange(self, data: bytes) -> None:
        """Send and read alternately, because the socket buffers do not hold everything."""
        self._socket.setblocking(False)
        sent = received = 0
        view = memoryview(data)
        while received < len(data):
            if sent < len(data):
                with suppress(BlockingIOError):
                    sent += self._socket.send(view[sent : sent + _READ_BYTES])
            try:
                received += len(self._socket.recv(_READ_BYTES))
            except BlockingIOError:
                continue
        self._socket.setblocking(True)

    def _read(self, count: int) -> None:
        while count:
            count -= len(self._socket.recv(min(count, _READ_BYTES)))


if __name__ == "__main__":
    main()
