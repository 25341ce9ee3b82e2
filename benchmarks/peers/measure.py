"""Run the workloads: in each round on every system, one after the other; all servers run throughout."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from peers.client import Client
from peers.job import Job, Result
from peers.sample import Sample
from peers.servers.base import Missing, Server
from peers.systems import System
from peers.workloads import Durability, Workload

CONSUME = "consume"
COLUMNS = "columns"
"""Additional rows of a workload: its messages read as objects, and as columns."""

_NUMBERS_APART = 1 << 40
_numbers = itertools.count(1)


@dataclass(slots=True)
class Measured:
    """All figures."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    """By row (a workload's name, or one with ` consume` or ` columns` after it) and system."""
    missing: dict[tuple[str, Durability], str] = field(default_factory=dict)
    """Why a system has no figures, by label."""
    memory_mib: dict[str, tuple[float, float]] = field(default_factory=dict)
    """RSS and private memory (RssAnon) of each server at the end."""
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, row: str, system: System, sample: Sample) -> None:
        """Add a sample."""
        self.samples.setdefault((row, system.label), []).append(sample)


def measure(workloads: Sequence[Workload], systems: Sequence[System], *, rounds: int, seconds: float) -> Measured:
    """Measure all workloads on all available systems."""
    measured = Measured()
    durabilities: tuple[Durability, ...] = ("page_cache", "flushed")
    for durability in durabilities:
        part = [workload for workload in workloads if workload.durability == durability]
        if part:
            _measure_part(measured, part, systems, durability, rounds, seconds)
    return measured


def _measure_part(
    measured: Measured,
    workloads: Sequence[Workload],
    systems: Sequence[System],
    durability: Durability,
    rounds: int,
    seconds: float,
) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="reput-bench-")))
        servers: dict[str, Server] = {}
        clients: list[tuple[System, list[Client]]] = []
        for system in systems:
            name = system.server.name
            try:
                if name not in servers:
                    own = directory / name
                    own.mkdir(exist_ok=True)
                    measured.versions[name] = system.server.version()
                    servers[name] = stack.enter_context(system.server.start(own, durability))
                most = max(workload.producers for workload in workloads)
                together = [stack.enter_context(Client(system)) for _ in range(max(2, most))]
                clients.append((system, together))
            except Missing as error:
                measured.missing[system.label, durability] = str(error)
                _say(f"{system.label}, {durability}: missing: {error}")
        for number in range(-1, rounds):  # the first warms up and does not count
            turn = max(number, 0) % max(1, len(clients))
            for workload in workloads:
                for system, together in clients[turn:] + clients[:turn]:
                    length = seconds if number >= 0 else min(seconds, 0.5)
                    run = _Run(together, servers[system.server.name], workload, length)
                    for row, sample in run.samples().items():
                        if number >= 0 or sample.fault:
                            measured.add(row, system, sample)
            _say(f"{durability}: round {number + 1} of {rounds}" if number >= 0 else f"{durability}: warm")
        for name, server in servers.items():
            if durability == "page_cache":
                measured.memory_mib[name] = (server.memory_mib("VmRSS"), server.memory_mib("RssAnon"))


class _Run:
    """A run of one workload on one system: messages are sent, read back, compared and dropped."""

    def __init__(self, clients: list[Client], server: Server, workload: Workload, seconds: float) -> None:
        self._clients = clients
        self._server = server
        self._workload = workload
        self._seconds = seconds
        self._topic = f"bench{next(_numbers)}"

    def _job(self, role: str, **fields: int | float | str | bool) -> Job:
        workload = self._workload
        values = {
            "kind": workload.kind,
            "size": workload.size,
            "in_flight": workload.in_flight,
            "rate": workload.rate,
            "durability": workload.durability,
            "seconds": self._seconds,
            **fields,
        }
        return Job(role, self._server.address, self._topic, **values)  # type: ignore[arg-type]

    def samples(self) -> dict[str, Sample]:
        """Return the samples by row."""
        workload, first = self._workload, self._clients[0]
        made = first.do(self._job("create"))
        if made.fault:
            return {workload.name: Sample(fault=made.fault)}
        try:
            if workload.kind == "paced":
                return {workload.name: self._end_to_end()}
            return self._send_and_read()
        finally:
            first.do(self._job("drop"))

    def _send_and_read(self) -> dict[str, Sample]:
        workload = self._workload
        producers = self._clients[: workload.producers]
        for number, producer in enumerate(producers):
            producer.prepare(self._job("produce", first=number * _NUMBERS_APART))
        cpu_s = self._server.cpu_s()
        for producer in producers:
            producer.go()
        results = [producer.result() for producer in producers]
        cpu_s = self._server.cpu_s() - cpu_s
        sample = _sample_of(results, cpu_s)
        rows = {workload.name: sample}
        if sample.fault:
            return rows
        messages = sum(result.messages for result in results)
        read = self._read(messages, columns=False)
        sample.fault = read.fault
        if workload.consume:
            rows[f"{workload.name} {CONSUME}"] = read
            columns = self._read(messages, columns=True)
            if columns.fault != "has no columns":
                rows[f"{workload.name} {COLUMNS}"] = columns
        return rows

    def _read(self, messages: int, *, columns: bool) -> Sample:
        cpu_s = self._server.cpu_s()
        result = self._clients[0].do(self._job("consume", messages=messages, columns=columns))
        return _sample_of([result], self._server.cpu_s() - cpu_s)

    def _end_to_end(self) -> Sample:
        producer, consumer = self._clients[:2]
        messages = int(self._seconds * self._workload.rate)
        consumer.prepare(self._job("tail", messages=messages))
        producer.prepare(self._job("produce"))
        cpu_s = self._server.cpu_s()
        producer.go()
        sent, read = producer.result(), consumer.result()
        cpu_s = self._server.cpu_s() - cpu_s
        sample = _sample_of([sent], cpu_s)
        sample.fault = sample.fault or read.fault
        sample.latencies_us = read.latencies_us
        sample.client_cpu += 1e6 * read.cpu_s / max(1, messages)
        return sample


def _sample_of(results: Sequence[Result], server_cpu_s: float) -> Sample:
    messages = sum(result.messages for result in results)
    slowest_s = max(result.seconds for result in results)
    return Sample(
        rate=messages / slowest_s if slowest_s else 0.0,
        latencies_us=[latency for result in results for latency in result.latencies_us],
        server_cpu=1e6 * server_cpu_s / max(1, messages),
        client_cpu=1e6 * sum(result.cpu_s for result in results) / max(1, messages),
        fault=next((result.fault for result in results if result.fault), ""),
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
