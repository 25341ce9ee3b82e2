"""RocketMQ's own benchmark, a Java program, run against RocketMQ's broker and against Reput.

The client is the same on both sides, so only the broker differs. The number of stored messages is requested from the
brokers and not taken from the client.
"""

from __future__ import annotations

import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from peers import fetch
from peers.servers import reput, rocketmq
from peers.servers.base import Missing, Server
from peers.workloads import Durability
from reput_protocol.codes import PROTOCOL_VERSION, RequestCode, ResponseCode
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value
from reput_protocol.wire.signature import Credentials, signed_by
from tables import NOISY_SPREAD, aligned, spread_of

_PACKAGE = "org.apache.rocketmq.example.benchmark"
_WARM_S = 3.0
_DEADLINE_S = 30.0
_QUEUES = 4
_FAILED = re.compile(r"(Send|Response) Failed: *(\d+)")


@dataclass(frozen=True, slots=True)
class Program:
    """A way to run the benchmark."""

    title: str
    entry: str
    options: tuple[str, ...]
    request_messages: int = 1
    """Messages in a request."""


PROGRAMS = (
    Program("Producer, 1 thread, 1 KiB", "Producer", ("-w", "1", "-s", "1024")),
    Program("Producer, 64 threads, 1 KiB", "Producer", ("-w", "64", "-s", "1024")),
    Program("BatchProducer, 4 threads, 64 of 1 KiB", "BatchProducer", ("-w", "4", "-b", "64", "-s", "1024"), 64),
    Program("BatchProducer, 4 threads, 64 of 100 B", "BatchProducer", ("-w", "4", "-b", "64", "-s", "100"), 64),
)


class Target(NamedTuple):
    """A broker that the benchmark runs against, and how its client connects."""

    broker: Server
    name_server: str
    user: Credentials | None = None
    """Signs the requests."""
    has_tls: bool = False


@dataclass(slots=True)
class Measured:
    """The rate and the broker's CPU of each round, by program and broker."""

    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    cpu: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, program: Program, broker: str, rate: float, cpu_s: float) -> None:
        """Add the figures of a round."""
        self.rates.setdefault(program.title, {}).setdefault(broker, []).append(rate)
        self.cpu.setdefault(program.title, {}).setdefault(broker, []).append(cpu_s)


class Fault(Exception):
    """A run gives no figure; the text has the reason."""


def measure(
    *, rounds: int, seconds: float, durability: Durability = "page_cache", programs: Sequence[Program] = PROGRAMS
) -> Measured:
    """Run every program against both brokers alternately."""
    measured = Measured()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reput-bench-")))
        for name in ("rocketmq", "reput"):
            (directory / name).mkdir()
        try:
            fetch.jars("rocketmq-example")
            names, theirs = stack.enter_context(rocketmq.start(directory / "rocketmq", durability))
            ours = stack.enter_context(reput.start(directory / "reput", durability))
            if durability == "replicated":
                for server in (theirs, ours):
                    _wait_for_slave(server)
        except Missing as error:
            measured.notes.append(f"missing: {error}")
            return measured
        brokers = [("Reput", ours, ours.address), ("Apache RocketMQ", theirs, names.address)]
        for number in range(rounds):
            for program in programs:
                found: dict[str, tuple[float, float]] = {}
                for name, server, name_server in brokers if number % 2 else brokers[::-1]:
                    try:
                        topic = f"java{number}-{PROGRAMS.index(program)}"
                        found[name] = run(program, Target(server, name_server), topic, directory, seconds)
                    except (Fault, OSError, ProtocolError) as fault:
                        measured.notes.append(f"{program.title}, {name}: no figures for a round: {fault}")
                if len(found) == len(brokers):
                    for name, (rate, cpu_s) in found.items():
                        measured.add(program, name, rate, cpu_s)
            print(f"RocketMQ's own benchmark: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return measured


def table(measured: Measured, durability: Durability = "page_cache") -> str:
    """Return the figures as a Markdown table."""
    rows: list[Sequence[str]] = [("", "Reput msg/s", "RocketMQ msg/s", "Reput is", "Reput CPU", "RocketMQ CPU")]
    notes = list(measured.notes)
    for title, by_broker in measured.rates.items():
        if len(by_broker) < 2:
            continue
        middle = {name: statistics.median(rates) for name, rates in by_broker.items()}
        cpu = {name: statistics.median(measured.cpu[title][name]) for name in by_broker}
        rows.append(
            (
                title,
                f"{middle['Reput']:,.0f}",
                f"{middle['Apache RocketMQ']:,.0f}",
                f"{middle['Reput'] / middle['Apache RocketMQ']:.2f}x as fast",
                f"{cpu['Reput']:.1f}",
                f"{cpu['Apache RocketMQ']:.1f}",
            )
        )
        notes += [
            f"{title}, {name}: noisy: rates differ by {spread_of(rates):.0%} of their median"
            for name, rates in by_broker.items()
            if spread_of(rates) > NOISY_SPREAD
        ]
    head = f"### For reference: RocketMQ's own benchmark and Java client, against both brokers ({durability})"
    body = aligned(rows) if len(rows) > 1 else []
    return "\n".join([head, "", *body, *([""] if notes else []), *(f"- {note}" for note in notes)])


def run(program: Program, target: Target, topic: str, directory: Path, seconds: float) -> tuple[float, float]:
    """Run a producer that sends to a new topic.

    Returns:
        Messages per second, and the broker's processor seconds for a million messages.

    Raises:
        Fault: the run gives no figure.
    """
    with Questions(target.broker.address, target.user) as questions:
        return _measured(program, target, topic, directory, seconds, lambda: questions.stored(topic))


def run_consumer(
    program: Program, target: Target, topic: str, group: str, directory: Path, seconds: float
) -> tuple[float, float]:
    """Run a consumer of a new group, which reads a topic from its beginning; see `run`."""
    with Questions(target.broker.address, target.user) as questions:
        before, waiting = questions.fetched(), questions.stored(topic)

        def fetched() -> int:
            count = questions.fetched() - before
            if count >= waiting:
                raise Fault(f"its consumer has read all {waiting} messages before the time was over")
            return count

        return _measured(program, target, topic, directory, seconds, fetched, "-g", group)


def fill(program: Program, target: Target, topic: str, messages: int, directory: Path) -> None:
    """Run a producer until a new topic has at least so many messages.

    Raises:
        Fault: the client ended, or stores nothing any more.
    """
    output = directory / "benchmark.log"
    with Questions(target.broker.address, target.user) as questions, _running(program, target, topic, output) as alive:
        seen, deadline = 0, time.perf_counter() + _DEADLINE_S
        while seen < messages:
            stored = questions.stored(topic)
            if stored > seen:
                seen, deadline = stored, time.perf_counter() + _DEADLINE_S
            elif not alive() or time.perf_counter() > deadline:
                raise Fault(f"no message came: {output.read_text(errors='replace')[-300:].strip()}")
            time.sleep(0.1)


def _measured(
    program: Program,
    target: Target,
    topic: str,
    directory: Path,
    seconds: float,
    count: Callable[[], int],
    *options: str,
) -> tuple[float, float]:
    output, server = directory / "benchmark.log", target.broker
    with _running(program, target, topic, output, *options) as alive:
        deadline = time.perf_counter() + _DEADLINE_S
        while not count():
            if not alive() or time.perf_counter() > deadline:
                raise Fault(f"no message came: {output.read_text(errors='replace')[-300:].strip()}")
            time.sleep(0.1)
        time.sleep(_WARM_S)
        failed_before = _failed_sends(output)  # such as of the first sends, while the client connects
        before, cpu_s, started_at = count(), server.cpu_s(), time.perf_counter()
        time.sleep(seconds)
        counted, cpu_s = count() - before, server.cpu_s() - cpu_s
        elapsed_s = time.perf_counter() - started_at
        if not alive():
            raise Fault(f"its client ended: {output.read_text(errors='replace')[-300:].strip()}")
    failed = _failed_sends(output) - failed_before
    if failed:
        raise Fault(f"{failed} sends failed")
    if not counted:
        raise Fault("no message came in the time that counts")
    return counted / elapsed_s, 1e6 * cpu_s / counted


def _failed_sends(output: Path) -> int:
    """Return the number of failed sends that a client has reported."""
    found = _FAILED.findall(output.read_text(errors="replace"))
    return max((int(failed) for _, failed in found), default=0)


@contextmanager
def _running(program: Program, target: Target, topic: str, output: Path, *options: str) -> Iterator[Callable[[], bool]]:
    java = [
        fetch.java(),
        "-cp",
        f"{fetch.jars('rocketmq-example')}/*",
        "-Xmx512m",
        f"-Duser.home={output.parent}",
        f"-Dtls.enable={str(target.has_tls).lower()}",
    ]
    arguments = ["-n", target.name_server, "-t", topic, "-ri", "1000", *program.options, *options]
    if target.user is not None:
        arguments += ["-a", "true", "-ak", target.user.user, "-sk", target.user.secret]
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*java, f"{_PACKAGE}.{program.entry}", *arguments], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield lambda: process.poll() is None
    finally:
        process.kill()
        process.wait()


def _wait_for_slave(server: Server) -> None:
    """Wait until a broker has a slave in sync.

    Raises:
        Missing: it has none in time.
    """
    deadline = time.perf_counter() + _DEADLINE_S
    with Questions(server.address) as questions:
        while not questions.in_sync_slaves():
            if time.perf_counter() > deadline:
                raise Missing(f"the broker on {server.address} has no slave in sync")
            time.sleep(0.1)


class Questions:
    """Requests figures from RocketMQ's broker or Reput, with JSON headers, signed if there is a user."""

    def __init__(self, address: str, user: Credentials | None = None) -> None:
        self._user = user
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_DEADLINE_S)
        self._reader = FrameReader()
        self._opaque = 0

    def __enter__(self) -> Questions:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def stored(self, topic: str) -> int:
        """Return the number of messages in a topic of four queues; 0 if it does not exist."""
        return sum(self._max_offset(topic, queue_id) for queue_id in range(_QUEUES))

    def fetched(self) -> int:
        """Return the number of messages that the broker has sent to consumers."""
        _, body = self.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        return int(json.loads(body)["table"]["msgGetTotalTodayNow"])

    def in_sync_slaves(self) -> int:
        """Return the number of slaves that are in sync with a master."""
        _, body = self.ask(RequestCode.GET_BROKER_HA_STATUS, {})
        return int(json.loads(body)["inSyncSlaveNums"])

    def _max_offset(self, topic: str, queue_id: int) -> int:
        header, _ = self.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)})
        return int(header.ext["offset"]) if header.code == ResponseCode.SUCCESS else 0  # type: ignore[arg-type]

    def ask(self, code: RequestCode, ext: dict[str, str]) -> tuple[Header, bytes]:
        """Send a request and return its answer: header and body."""
        self._opaque += 1
        fields: dict[str, Value] = dict(ext)
        if self._user is not None:
            fields = signed_by(self._user, fields, version=PROTOCOL_VERSION)
        header = Header(int(code), self._opaque, 0, ext=fields)
        self._socket.sendall(encode_frame(header, HeaderType.JSON))
        while True:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Fault("the broker closed the connection")
            for frame in self._reader.receive_data(data):
                return decode_header(frame.header_type, frame.header), bytes(frame.body)
