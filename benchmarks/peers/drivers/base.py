"""The interface of all drivers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from peers.bodies import Bodies, Tally
from peers.job import Job

QUIET_S = 10.0
"""Seconds without a message after which a consumer gives up; the missing messages are then reported."""
_PACE_S = 0.001


class Driver(ABC):
    """A client of one server. Each topic is one log: a queue, partition or stream."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.server = job.server
        self.topic = job.topic

    @abstractmethod
    async def create(self) -> None:
        """Create the topic."""

    @abstractmethod
    async def drop(self) -> None:
        """Delete the topic and free its space."""

    @abstractmethod
    async def open_producer(self) -> None:
        """Connect and prepare for the first send."""

    @abstractmethod
    async def close_producer(self) -> None:
        """Close the producer."""

    @abstractmethod
    async def batched(self, bodies: Bodies) -> None:
        """Send all messages in the client's fastest way; return when all are acknowledged."""

    @abstractmethod
    async def singles(self, bodies: Bodies) -> None:
        """Send all messages by single sends, which the client may batch; return when all are acknowledged."""

    @abstractmethod
    async def windowed(self, bodies: Bodies, in_flight: int) -> list[int]:
        """Send with `in_flight` unacknowledged messages; return the latency of each in microseconds."""

    @abstractmethod
    async def paced(self, bodies: Bodies, rate: int) -> None:
        """Send each message when it is due; return when all are acknowledged."""

    @abstractmethod
    async def consume(self, tally: Tally) -> None:
        """Read the topic from its first message until the tally is complete or nothing comes for `QUIET_S`."""

    @abstractmethod
    async def tail(self, tally: Tally, ready: Callable[[], None]) -> None:
        """Call `ready` when waiting at the topic's end, and read until the tally is complete."""

    async def consume_columns(self, tally: Tally) -> bool:
        """Like `consume`, in columns; return False if the client has no columns."""
        del tally
        return False


class WrongRun(Exception):
    """A run does not count; the text has the reason."""


async def by_tasks(bodies: Bodies, in_flight: int, send: Callable[[bytes, str], Awaitable[object]]) -> list[int]:
    """Send with `in_flight` tasks that wait for their acknowledgements; return the latencies in microseconds."""
    latencies: list[int] = []

    async def sender() -> None:
        while (message := bodies.one()) is not None:
            started_at = time.perf_counter()
            await send(*message)
            latencies.append(int((time.perf_counter() - started_at) * 1e6))

    await asyncio.gather(*(sender() for _ in range(in_flight)))
    return latencies


async def at_pace(bodies: Bodies, rate: int, send: Callable[[list[tuple[bytes, str]]], Awaitable[None] | None]) -> None:
    """Send messages when they are due, checking each millisecond; `send` must not wait for acknowledgements."""
    started_ns = time.time_ns()
    while not bodies.all_due(rate):
        if due := bodies.due(rate, started_ns):
            waiting = send(due)
            if waiting is not None:
                await waiting
        await asyncio.sleep(_PACE_S)
