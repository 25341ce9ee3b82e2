"""Random events of the processes: joins, leaves, kills, suspensions, restarts. One seed, one story.

Its time is the sum of its pauses, regardless of the acts between them: so a seed has the same acts done to the same
members on a slow machine and on a fast one.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from histories import terms
from histories.clients import Child
from histories.scene import Scene

MEMBERS_MAX: Final = 4
WEIGHTS: Final = {
    "join": 5,
    "leave": 3,
    "kill": 4,
    "pause": 2,
    "stop": 2,
    "kill-broker": 3,
    "restart-broker": 1,
    "kill-producer": 1,
}
"""`pause` is shorter than a heartbeat may stay away, `stop` longer."""


@dataclass(slots=True)
class Plan:
    """How much of what."""

    duration_s: float
    weights: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    pause_s: tuple[float, float] = (0.1, 1.5)
    first_members: int = 2
    first: tuple[str, ...] = ()
    """What happens first, before anything is left to chance."""


class Churn:
    """Carries a plan out."""

    def __init__(self, scene: Scene, plan: Plan, seed: int) -> None:
        self._scene = scene
        self._plan = plan
        self._chance = random.Random(seed)
        self._now = 0.0
        self._wakes: list[tuple[float, Child]] = []
        self._acts: dict[str, Callable[[], None]] = {
            "join": self._join,
            "leave": self._leave,
            "kill": self._kill,
            "pause": lambda: self._stop(0.3, 2.0),
            "stop": lambda: self._stop(1.2 * terms.HEARTBEAT_TIMEOUT_S, 3.0 * terms.HEARTBEAT_TIMEOUT_S),
            "kill-broker": lambda: self._end_broker(signal.SIGKILL),
            "restart-broker": lambda: self._end_broker(signal.SIGTERM),
            "kill-producer": self._kill_producer,
        }

    def run(self) -> None:
        """Start all, then act until the time is over; at the end every process runs."""
        self._scene.join(terms.BYSTANDER)
        for group in (terms.SHARED, terms.ORDERLY):
            for _ in range(self._plan.first_members):
                self._join(group)
        self._scene.until_joined()
        self._scene.produce()
        self._scene.until_produced()
        first = list(self._plan.first)
        while True:
            self._wait(self._chance.uniform(*self._plan.pause_s))
            if self._now >= self._plan.duration_s:
                break
            names, weights = list(self._plan.weights), list(self._plan.weights.values())
            act = first.pop(0) if first else self._chance.choices(names, weights)[0]
            self._scene.recorder.note("act", name=act)
            self._acts[act]()
        for _, member in self._wakes:
            self._scene.wake(member)
        for group in (terms.SHARED, terms.ORDERLY):
            if not self._scene.of(group):
                self._join(group)

    def _wait(self, for_s: float) -> None:
        """Let time pass; processes suspended for long enough are resumed."""
        until = self._now + for_s
        while self._wakes and self._wakes[0][0] <= until:
            at, member = heappop(self._wakes)
            time.sleep(max(0.0, at - self._now))
            self._now = max(self._now, at)
            self._scene.wake(member)
        time.sleep(until - self._now)
        self._now = until
        self._scene.watch_for_failures()

    def _group(self) -> str:
        return self._chance.choice((terms.SHARED, terms.ORDERLY))

    def _one(self) -> Child | None:
        """A member that is awake, of a group that has another one."""
        members = [member for member in self._scene.of(self._group()) if not member.is_stopped]
        number = self._chance.random()
        return members[int(number * len(members))] if len(members) > 1 else None

    def _join(self, group: str | None = None) -> None:
        group = group or self._group()
        options = [
            "--face",
            self._chance.choice(["trio", "asyncio", "blocking"]),
            "--way",
            self._chance.choice(["run", "run", "take"]),
            "--concurrency",
            self._chance.choice("124"),
        ]
        if "blocking" in options:
            options[3] = "run"
        if len(self._scene.of(group)) < MEMBERS_MAX:
            self._scene.join(group, *options)

    def _leave(self) -> None:
        member = self._one()
        if member is not None:
            self._scene.leave(member)

    def _kill(self) -> None:
        member = self._one()
        if member is not None:
            self._scene.kill(member)

    def _stop(self, shortest_s: float, longest_s: float) -> None:
        member, for_s = self._one(), self._chance.uniform(shortest_s, longest_s)
        if member is not None:
            self._scene.stop(member)
            heappush(self._wakes, (self._now + for_s, member))

    def _end_broker(self, how: signal.Signals) -> None:
        self._scene.end_broker(how, self._chance.choice((0.0, 0.0, self._chance.uniform(0.0, 2.0))))

    def _kill_producer(self) -> None:
        if self._scene.producer is not None:
            self._scene.kill(self._scene.producer)
        self._scene.produce()
