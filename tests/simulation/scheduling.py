"""What runs when: a virtual clock, timers, and processes that can be stopped and killed, in one trio run.

A process is every task that descends from one. Tasks of a stopped process are held when they become runnable; as after
SIGSTOP its timeouts expire meanwhile and the network goes on. A killed process is never run again: none of its cleanup
happens, as after SIGKILL.

Timers run between two passes of trio's loop, while no task is half way through a pass. So a kill takes effect at once.
"""

from __future__ import annotations

import contextvars
import math
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NoReturn
from unittest.mock import patch

import trio
from outcome import Outcome
from trio._core import _run

EPOCH_S: Final = 1_800_000_000
"""The wall clock of an unskewed machine at virtual time 0."""

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process that the running task belongs to; None for the simulation itself."""
    return _process.get()


class Process:
    """The tasks of one simulated process.

    Args:
        on_end: called with the error, or None, when its work has ended by itself.
    """

    _pids = count(1000)

    def __init__(
        self, name: str, address: str, on_end: Callable[[BaseException | None], None] = lambda _: None
    ) -> None:
        self.name = name
        self.address = address
        """The IP address of its machine."""
        self.pid = next(self._pids)
        self.is_stopped = False
        self.is_killed = False
        self.skew_s = 0.0
        """How far the wall clock of its machine is ahead."""
        self.sockets: dict[Any, None] = {}
        self.nursery: trio.Nursery
        self._on_end = on_end
        self._held: list[trio.lowlevel.Task] = []

    def start(self, nursery: trio.Nursery, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` as this process."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        context.run(lambda: nursery.start_soon(self._run, work, name=self.name))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as self.nursery:
                await work()
                self.nursery.cancel_scope.cancel()
        except Exception as error:
            failure = error
        self._on_end(failure)

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one more task in it."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        context.run(self.nursery.start_soon, work)

    def stop(self) -> None:
        """Run none of its tasks until `resume`."""
        self.is_stopped = True
        self._take_out()

    def resume(self) -> None:
        """Run the tasks that have become runnable since `stop`."""
        self.is_stopped = False
        if not self.is_killed:
            held, self._held = self._held, []
            trio.lowlevel.current_root_task()._runner.runq.extend(held)  # type: ignore[union-attr]

    def kill(self) -> None:
        """Never run its tasks again."""
        self.is_killed = True
        self._take_out()

    def _take_out(self) -> None:
        runq = trio.lowlevel.current_root_task()._runner.runq  # type: ignore[union-attr]
        mine = [task for task in runq if task.context.get(_process) is self]
        for task in mine:
            runq.remove(task)
        self._held += mine

    def hold(self, task: trio.lowlevel.Task) -> None:
        """Keep a task that has become runnable."""
        self._held.append(task)


class Clock(trio.abc.Clock):
    """Virtual time in seconds, which passes only while every task waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0


class Timers:
    """Functions that are called at a virtual time, in the order of time, then of asking."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, function: Callable[[], None]) -> None:
        """Call `function` at a virtual time, not before the next pass of the loop."""
        heappush(self._heap, (when, next(self._numbers), function))

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        """Call `function` when so much virtual time has passed."""
        self.at(self._clock.now + seconds, function)

    async def sleep(self, seconds: float) -> None:
        """Wait so long, like a thread: not to be cancelled."""
        task = trio.lowlevel.current_task()
        self.after(seconds, lambda: trio.lowlevel.reschedule(task))
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    def next_at(self) -> float:
        """Return the time of the first one."""
        return self._heap[0][0] if self._heap else math.inf

    def run_due(self) -> None:
        """Call what is due."""
        now = self._clock.now
        while self._heap and self._heap[0][0] <= now:
            try:
                heappop(self._heap)[2]()
            except BaseException:
                give_up(traceback.format_exc())


class InputOutput:
    """What trio asks, once a pass and between the tasks of two passes, whether something has happened outside.

    Nothing does. It jumps to the next deadline if no task can run, and calls the timers that are due.
    """

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers

    def get_events(self, _: float) -> None:
        runner = trio.lowlevel.current_root_task()._runner  # type: ignore[union-attr]
        clock, timers, deadlines = self._clock, self._timers, runner.deadlines
        timers.run_due()
        # Not one jump a pass: a pass in which no task runs costs as much as another.
        while not runner.runq and clock.now < (deadline := deadlines.next_deadline()):
            next_at = min(deadline, timers.next_at())
            if next_at == math.inf:
                give_up("every task waits, and for nothing that will come")
            clock.now = next_at
            timers.run_due()

    def process_events(self, events: None) -> None:
        pass

    async def wait_readable(self, sock: Any) -> None:
        await getattr(sock, "wait_readable", trio.sleep_forever)()  # trio's own, which wakes it for signals

    async def wait_writable(self, sock: Any) -> None:
        await sock.wait_writable()

    def notify_closing(self, sock: Any) -> None:
        sock.notify_closing()


def give_up(reason: str) -> NoReturn:
    """End this process: the simulation has failed, and cannot be unwound."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(70)


def seed(value: int) -> None:
    """Let the order in which trio runs its tasks depend on this only."""
    _run._r.seed(value)


def install(clock: Clock, timers: Timers) -> None:
    """Make trio's scheduler deterministic, and let it follow the timers, and stops of processes."""
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    patch.object(_run, "TheIOManager", partial(InputOutput, clock, timers)).start()
    patch.object(_run, "Instruments", lambda _: {}).start()  # asked for several times a pass
    reschedule, numbers = _run.Runner.reschedule, count()

    def reschedule_unless_held(
        self: _run.Runner, task: trio.lowlevel.Task, next_send: Outcome[object] = _run._NO_SEND
    ) -> None:
        reschedule(self, task, next_send)
        process = task.context.get(_process)
        if process is not None and (process.is_stopped or process.is_killed):
            process.hold(self.runq.pop())

    def add_deadline(self: _run.Deadlines, deadline: float, cancel_scope: trio.CancelScope) -> None:
        """As trio's; of equal deadlines the older one is first, wherever the scopes are in memory."""
        heappush(self._heap, (deadline, next(numbers), cancel_scope))
        self._active += 1

    _run.Runner.reschedule = reschedule_unless_held  # type: ignore[method-assign]
    _run.Deadlines.add = add_deadline  # type: ignore[method-assign]
