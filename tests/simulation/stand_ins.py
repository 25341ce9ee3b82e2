"""What the product finds in place of the machine: clocks, chance, threads, sockets, process ids.

`install` replaces them in the standard library and in trio, once and for the whole process, before the product is
imported; so the product needs no seam of its own and no second path. Files are real; `disks.py` sees their syncs.
"""

from __future__ import annotations

import contextvars
import gc
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import outcome
import trio

from simulation import scheduling
from simulation.disks import Disk
from simulation.network import Network
from simulation.scheduling import EPOCH_S, Clock, Process, Timers, current_process
from simulation.sockets import SimulatedSocket, SocketFactory, TrioSocket

_MONOTONIC_S: Final = 10_000.0
_THREAD_S: Final = 0.0003
"""Mean time that a function in a worker thread takes, half before its effect and half after it."""

real_process_time = time.process_time

_LONGEST_S: Final = 400.0


class Platform:
    """The replaced machine: one clock, one network, one source of chance, and how slow the disks are."""

    def __init__(self) -> None:
        if "reput_broker" in sys.modules or "reput_client" in sys.modules:
            raise RuntimeError("the product was imported before the simulation replaced its surroundings")
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.network = Network(self.timers, self.clock.current_time)
        self.thread_s: Callable[[], float] = lambda: _THREAD_S
        self._threads = random.Random()
        self._bytes = random.Random()

    def seed(self, seed: int) -> None:
        """Let chance begin: the same seed, the same story."""
        random.seed(seed)
        scheduling.seed(seed)
        self.network.seed = seed
        self._threads.seed(f"{seed} threads")
        self._bytes.seed(f"{seed} bytes")

    def install(self) -> None:
        """Replace everything, for good."""
        gc.disable()  # it would run finalizers at moments that depend on addresses
        scheduling.install(self.clock, self.timers)
        Disk.install()
        SimulatedSocket.network = self.network
        self._install_clocks()
        os.urandom = self._bytes.randbytes
        random._urandom = self._bytes.randbytes  # type: ignore[attr-defined]
        os.getpid = _getpid
        socket.socket = SimulatedSocket  # type: ignore[misc,assignment]
        trio.socket.from_stdlib_socket = TrioSocket  # type: ignore[assignment]
        trio.to_thread.run_sync = self._run_sync  # type: ignore[assignment]
        patch.object(trio.lowlevel, "start_thread_soon", self._start_thread_soon).start()
        patch.object(trio.lowlevel, "current_trio_token", _Token).start()
        patch.object(trio.lowlevel, "spawn_system_task", _spawn_in_process).start()

    def _install_clocks(self) -> None:
        now = self.clock.current_time

        def wall() -> float:
            process = current_process()
            return EPOCH_S + now() + (process.skew_s if process is not None else 0.0)

        def monotonic() -> float:
            return _MONOTONIC_S + now()

        local = time.localtime
        time.time = wall
        time.time_ns = lambda: round(wall() * 1e9)
        time.monotonic = time.perf_counter = monotonic
        time.clock_gettime = lambda _: monotonic()
        time.monotonic_ns = time.perf_counter_ns = lambda: round(monotonic() * 1e9)
        time.localtime = lambda seconds=None: local(wall() if seconds is None else seconds)
        time.sleep = lambda _: None

    async def _run_sync(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        thread_name: str | None = None,
        abandon_on_cancel: bool = False,
        cancellable: bool | None = None,
        limiter: trio.CapacityLimiter | None = None,
    ) -> Any:
        """Run a function as a worker thread would, some time after it was asked for."""
        if abandon_on_cancel or cancellable:
            raise NotImplementedError("a thread that is abandoned")
        await trio.lowlevel.checkpoint_if_cancelled()
        took_s = self._threads.expovariate(1.0) * self.thread_s()
        borrower = object()
        if limiter is not None:
            await limiter.acquire_on_behalf_of(borrower)
        try:
            await self.timers.sleep(took_s / 2)
            try:
                return function(*arguments)
            finally:
                await self.timers.sleep(took_s / 2)
        finally:
            if limiter is not None:
                limiter.release_on_behalf_of(borrower)

    def _start_thread_soon(
        self, function: Callable[[], Any], deliver: Callable[[outcome.Outcome[Any]], object]
    ) -> None:
        async def work() -> None:
            deliver(await outcome.acapture(self._run_sync, function))

        _spawn_in_process(work)

    def run(self, main: Callable[[trio.Nursery], Any]) -> None:
        """Run the simulation, which ends this process: killed processes cannot be unwound."""

        async def begin() -> None:
            trio.socket.set_custom_socket_factory(SocketFactory())
            async with trio.open_nursery() as nursery:
                try:
                    await main(nursery)
                except BaseException:
                    traceback.print_exc()
                    os._exit(70)
                os._exit(0)

        self.timers.at(_LONGEST_S, lambda: scheduling.give_up(f"it does not end within {_LONGEST_S} s"))
        trio.run(begin, clock=self.clock)


class _Token:
    """Stands for the event loop where a worker thread calls something in it."""

    def run_sync_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        function(*arguments)


def _getpid(real: Callable[[], int] = os.getpid) -> int:
    process = current_process()
    return real() if process is None else process.pid


def _spawn_in_process(
    work: Any, *arguments: Any, name: object = None, context: contextvars.Context | None = None
) -> None:
    """Start a task that outlives its caller, but not its process."""
    process: Process | None = current_process()
    if process is None:
        raise RuntimeError("no process starts this task")
    process.nursery.start_soon(work, *arguments, name=name)
