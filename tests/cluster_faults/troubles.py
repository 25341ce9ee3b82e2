"""Random faults of a cluster. One seed, one schedule: which fault, on which broker by its role, when and for how long.

The schedule's time is the sum of its pauses, regardless of what the acts between them take. Which broker is the master
at that moment is the cluster's decision, so two runs of a seed need not meet the same processes.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from cluster_faults.machine import Machine
from cluster_faults.network import CLIENTS, ETCD, Undo
from cluster_faults.scene import LEASE_S, Cluster

SHORT_S: Final = (0.2, 0.8 * LEASE_S)
LONG_S: Final = (1.2 * LEASE_S, 3.0 * LEASE_S)
"""How long a fault lasts: well within the lease, or beyond it."""
AFTER_S: Final = 5.0
"""How long connections may still stall after a fault: a sender that got no answer waits longer each time."""
JUMPS_S: Final = (-30.0, -3.0, 3.0, 30.0)
"""Short enough that messages which were delayed by a wrong clock are due before the run is settled."""


@dataclass(slots=True)
class Plan:
    """How much of what."""

    duration_s: float
    weights: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    calm_s: tuple[float, float] = (1.0, 8.0)
    """Between the end of a fault and the next one."""
    overlapping: float = 0.25
    """The share of faults that begin while the one before lasts."""


class _Chosen(NamedTuple):
    """One fault of the schedule."""

    name: str
    is_on_master: bool
    number: int
    """Chooses among the brokers that fit."""
    for_s: float
    share: float
    """Anything else that is left to chance, from 0 to 1."""


class Troubles:
    """Carries a plan out."""

    def __init__(self, cluster: Cluster, plan: Plan, seed: int) -> None:
        self._cluster = cluster
        self._plan = plan
        self._chance = random.Random(seed)
        self._now = 0.0
        self._numbers = count()
        self._ends: list[tuple[float, int, str, Undo]] = []
        self._is_disturbed = False
        self._calm_from = 0.0

    def run(self) -> None:
        """Act until the time is over; at the end every fault is undone, and every broker runs."""
        plan, begin = self._plan, 0.0
        while True:
            begin += self._chance.uniform(*plan.calm_s)
            if begin >= plan.duration_s:
                break
            self._wait_until(begin)
            chosen = self._choose()
            self._begin(chosen)
            if self._chance.random() >= plan.overlapping:
                begin += chosen.for_s
        while self._ends:
            self._wait_until(self._ends[0][0])

    def _choose(self) -> _Chosen:
        chance = self._chance
        name = chance.choices([*self._plan.weights], [*self._plan.weights.values()])[0]
        span = SHORT_S if chance.random() < 0.3 else LONG_S
        return _Chosen(name, chance.random() < 0.65, chance.randrange(60), chance.uniform(*span), chance.random())

    def _begin(self, chosen: _Chosen) -> None:
        machine = self._target(chosen)
        note = self._cluster.recorder.note
        note("fault", name=chosen.name, on=machine.name, for_s=round(chosen.for_s, 3))
        if not self._is_disturbed:
            self._is_disturbed = True
            note("broker-down", how=chosen.name)  # for the judges: one broker, down while any fault has effects
        _, act = FAULTS[chosen.name]
        undo = act(self, machine, chosen)
        heappush(self._ends, (self._now + chosen.for_s, next(self._numbers), chosen.name, undo))

    def _wait_until(self, until: float) -> None:
        """Let time pass; faults whose time is over are undone."""
        while self._ends and self._ends[0][0] <= until:
            self._pass(self._ends[0][0])
            _, _, name, undo = heappop(self._ends)
            undo()
            self._cluster.recorder.note("healed", name=name)
            self._calm_from = self._now + AFTER_S
        self._pass(until)

    def _pass(self, until: float) -> None:
        while self._now < until:
            step = min(0.25, until - self._now)
            time.sleep(step)
            self._now += step
            self._cluster.watch_for_failures()
            is_calm = not self._ends and self._now >= self._calm_from
            if self._is_disturbed and is_calm and self._cluster.is_whole:
                self._is_disturbed = False
                self._cluster.recorder.note("broker-up")

    # -- who -----------------------------------------------------------------------------------------------------

    def _target(self, chosen: _Chosen) -> Machine:
        master, machines = self._cluster.master, self._cluster.machines
        if chosen.is_on_master and master is not None:
            return master
        others = [machine for machine in machines if machine is not master] or machines
        return others[chosen.number % len(others)]

    def _other(self, machine: Machine, chosen: _Chosen) -> Machine:
        others = [other for other in self._cluster.machines if other is not machine] or [machine]
        return others[chosen.number // 2 % len(others)]

    def _two(self, machine: Machine, chosen: _Chosen) -> list[Machine]:
        return [machine, self._other(machine, chosen)]

    # -- what ----------------------------------------------------------------------------------------------------

    def _down(self, machines: list[Machine], how: signal.Signals) -> Undo:
        """End processes; they are started again when the fault's time is over."""
        ended = [machine for machine in machines if machine.is_up]
        for machine in ended:
            if how is signal.SIGKILL or machine.is_frozen:
                machine.kill()
                self._cluster.recorder.note("dies", of=machine.address)
            elif machine.stop() != 0:
                self._cluster.recorder.note("failed", process=machine.name, log=machine.log_tail())

        def start() -> None:
            for machine in ended:
                if not machine.is_up:
                    machine.start()

        return start

    def _freeze(self, machine: Machine, _: _Chosen) -> Undo:
        machine.freeze()
        return machine.thaw

    def _freeze_etcd(self, *_: object) -> Undo:
        self._cluster.etcd.pause()
        return self._cluster.etcd.resume

    def _stop_etcd(self, how: signal.Signals) -> Undo:
        self._cluster.etcd.stop(how)
        if how is signal.SIGTERM:  # a restart: at once
            self._cluster.etcd.start()
        return self._cluster.etcd.start

    def _cut_from_etcd(self, machine: Machine, chosen: _Chosen) -> Undo:
        network = self._cluster.network
        if chosen.share < 0.5:
            return network.cut_both(machine.name, ETCD)
        return network.cut(machine.name, ETCD) if chosen.share < 0.75 else network.cut(ETCD, machine.name)

    def _cut_one_way(self, machine: Machine, chosen: _Chosen) -> Undo:
        other = self._other(machine, chosen)
        ends = (machine.name, other.name) if chosen.share < 0.5 else (other.name, machine.name)
        return self._cluster.network.cut(*ends)

    def _fill_disk(self, machine: Machine, _: _Chosen) -> Undo:
        machine.fill_disk()
        return machine.empty_disk

    def _set_clock(self, machine: Machine, chosen: _Chosen) -> Undo:
        machine.set_clock(JUMPS_S[int(chosen.share * len(JUMPS_S))])
        return partial(machine.set_clock, 0.0)

    def _promote(self, machine: Machine, chosen: _Chosen) -> Undo:
        self._cluster.promote(self._other(machine, chosen))
        return lambda: None


FAULTS: Final[dict[str, tuple[int, Callable[[Troubles, Machine, _Chosen], Undo]]]] = {
    "kill": (6, lambda self, machine, _: self._down([machine], signal.SIGKILL)),
    "kill-all": (1, lambda self, *_: self._down(self._cluster.machines, signal.SIGKILL)),
    "kill-two": (2, lambda self, machine, chosen: self._down(self._two(machine, chosen), signal.SIGKILL)),
    "stop": (2, lambda self, machine, _: self._down([machine], signal.SIGTERM)),
    "freeze": (4, Troubles._freeze),
    "freeze-etcd": (1, Troubles._freeze_etcd),
    "cut-off": (3, lambda self, machine, _: self._cluster.network.isolate(machine.name)),
    "cut-off-but-clients": (3, lambda self, machine, _: self._cluster.network.isolate(machine.name, but=CLIENTS)),
    "cut-from-etcd": (3, Troubles._cut_from_etcd),
    "cut-from-one": (
        3,
        lambda self, machine, chosen: self._cluster.network.cut_both(machine.name, self._other(machine, chosen).name),
    ),
    "cut-one-way": (3, Troubles._cut_one_way),
    "cut-from-clients": (2, lambda self, machine, _: self._cluster.network.cut_both(machine.name, CLIENTS)),
    "lose-packets": (
        2,
        lambda self, machine, chosen: self._cluster.network.lose(machine.name, 0.05 + 0.3 * chosen.share),
    ),
    "fill-disk": (2, Troubles._fill_disk),
    "restart-etcd": (1, lambda self, *_: self._stop_etcd(signal.SIGTERM)),
    "stop-etcd": (1, lambda self, *_: self._stop_etcd(signal.SIGKILL)),
    "set-clock": (2, Troubles._set_clock),
    "promote": (3, Troubles._promote),
}
"""Faults, with how often each is chosen. All but the `all`, `two` and `etcd` ones hit one broker: mostly the master."""
WEIGHTS: Final[dict[str, int]] = {name: weight for name, (weight, _) in FAULTS.items()}
