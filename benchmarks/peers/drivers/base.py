"""What every client can be asked to do."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from peers.bodies import Bodies, Tally
from peers.job import Job

QUIET_S = 10.0
"""A consumer that gets nothing for so long gives up; what is missing then is told."""
_PACE_S = 0.001


class Driver(ABC):
    """A client of one system, connected to one server. Each topic is one log: one queue, partition or stream."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.server = job.server
        self.topic = job.topic

    @abstractmethod
    async def create(self) -> None:
        """Make the topic."""

    @abstractmethod
    async def drop(self) -> None:
        """Delete the topic, so that what it took is free again."""

    @abstractmethod
    async def open_producer(self) -> None:
        """Connect and do what a first send would do."""

    @abstractmethod
    async def close_producer(self) -> None:
        """Close the producer."""

    @abstractmethod
    async def batched(self, bodies: Bodies) -> None:
        """Send all messages in the client's quickest way; return when all are acknowledged."""

    @abstractmethod
    async def singles(self, bodies: Bodies) -> None:
        """Send all messages one by one, gathered by the client if it can; return when all are acknowledged."""

    @abstractmethod
    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """Send with so many unacknowledged; return how long each took to be acknowledged, in microseconds."""

    @abstractmethod
    async def paced(self, bodies: Bodies, rate: int) -> None:
        """Send each message when it is due; return when all are acknowledged."""

    @abstractmethod
    async def consume(self, tally: Tally) -> None:
        """Read the topic from its first message until the tally is complete or nothing comes for `QUIET_S`."""

    @abstractmethod
    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """Wait at the topic's end; call `ready` when there; read until the tally is complete."""

    async def consume_columns(self, tally: Tally) -> bool:
        """Like `consume`, in columns; return False where the client has none."""
        del tally
        return False


class WrongRun(Exception):
    """A run does not count; the text says why."""


async def by_tasks(
    bodies: Bodies, in_flight: int, send: Callable[[bytes, str], Awaitable[object]]
) -> list[int]:
    """Send with `in_flight` tasks, each of which waits for its acknowledgement; return the times in microseconds."""
    latencies: list[int] = []

    async def sender() -> None:
        while (message := bodies.one()) is not None:
            started_at = time.perf_counter()
            await send(*message)
            latencies.append(int((time.perf_counter() - started_at) * 1e6))

    await asyncio.gather(*(sender() for _ in range(in_flight)))
    return latencies


async def at_pace(
    bodies: Bodies, rate: int, send: Callable[[list[tuple[bytes, str]]], Awaitable[None] | None]
) -> None:
    """Hand over messages when they are due, looking every millisecond; `send` must not wait for acknowledgements."""
    started_ns = time.time_ns()
    while not bodies.all_due(rate):
        if due := bodies.due(rate, started_ns):
            waiting = send(due)
            if waiting is not None:
                await waiting
        await asyncio.sleep(_PACE_S)
