"""One simulation from beginning to end: started, disturbed, settled, judged, counted."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from histories import terms
from histories.judge import judge
from reput_protocol.codes import AckLevel
from simulation import poppers
from simulation.faults import WEIGHTS, Faults, member_options
from simulation.scenes import SCENES, operate
from simulation.settling import audit, compare_logs, leave, settle, tables_are_copied
from simulation.stand_ins import Platform
from simulation.workload import Load, Producers
from simulation.world import GROUPS, World

SETTLE_S: Final = 90.0
_NAME_SERVERS: Final = (0, 1, 2)
_POOLS: Final = 0.25
"""How many of the seeds have pools."""
_PAUSES_S: Final = (0.08, 0.2, 0.4)


@dataclass(slots=True)
class Plan:
    """How much of what."""

    group: str = "elected"
    scene: str | None = None
    """What is played after the random faults; None: chosen by the seed."""
    has_pool: bool | None = None
    """Whether the brokers' logs have a pool of buffers; None: chosen by the seed."""
    duration_s: float = 9.0
    pause_s: tuple[float, float] = (0.15, 1.8)
    weights: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))


@dataclass(slots=True)
class Outcome:
    """What came of a simulation."""

    seed: int
    digest: str
    virtual_s: float
    counts: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


async def simulate(platform: Platform, nursery: trio.Nursery, plan: Plan, seed: int, directory: Path) -> World:
    """Run the story of a seed."""
    chance = random.Random(f"{seed} scenario")
    has_pool = random.Random(f"{seed} pool").random() < _POOLS if plan.has_pool is None else plan.has_pool
    world = World(platform, seed, directory, GROUPS[plan.group](), chance.choice(_NAME_SERVERS), has_pool=has_pool)
    world.nursery = nursery
    for machine in (*world.name_servers, *world.brokers):
        machine.start()
    await world.make_topics()
    await tables_are_copied(world)
    world.join(terms.BYSTANDER)
    for group in (terms.SHARED, terms.ORDERLY):
        for _ in range(2):
            world.join(group, **member_options(chance))
    default = world.group.default_ack
    levels = {AckLevel.PAGE_CACHE: 1, AckLevel.FLUSHED: 1} | {default: 5}
    load = Load(world.endpoints, levels, default, chance.choice(_PAUSES_S))
    producers = [world.produce(load)]
    world.read(terms.ORDERS)
    world.pop(producers[0].over)
    await trio.sleep(0.5)
    faults = Faults(world, plan.weights)
    world.history.note("begin")
    if plan.weights:
        await faults.run(plan.duration_s, plan.pause_s)
    if plan.group == "elected":
        producers += await _play(plan.scene, world, faults, load)
    for one in producers:
        one.over.set()
    await settle(world, SETTLE_S)
    await poppers.settle(world.history.events, SETTLE_S)
    await leave(world)
    for one in producers:
        one.ended.set()
    await audit(world)
    await compare_logs(world)
    world.faults = faults.counts
    return world


async def _play(name: str | None, world: World, faults: Faults, load: Load) -> list[Producers]:
    """Play a scene, and let the operator act if the engine was ever restored; return the producers it has started."""
    if name is None:
        weights = [weight for _, weight in SCENES.values()]
        name = world.chance("which scene").choices([*SCENES], weights)[0]
    play, _ = SCENES[name]
    started = await play(world, faults, load)
    faults.counts[f"scene-{name}"] += 1
    faults.heal()
    if faults.has_restored:
        await operate(world)
    return started


def outcome_of(world: World) -> Outcome:
    """Judge what has happened."""
    text = world.history.text()
    events = sorted(world.history.events, key=lambda event: event.at)
    facts, violations = judge(events)
    violations += poppers.judge(events, facts)
    what = Counter(event.what for event in events)
    counts = Counter(
        sends=what["put"],
        acks=what["acked"],
        unknown=what["unknown"],
        refused=what["refused"],
        deliveries=len(facts.deliveries),
        read=what["read"],
        starts=what["up"],
        lost_pages=sum(broker.disk.lost_pages for broker in world.brokers),
        **poppers.counts(events),
    )
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    shown = sorted(map(str, violations), key=lambda text: not text.startswith("process"))
    return Outcome(world.seed, digest, world.platform.clock.current_time(), dict(counts), dict(world.faults), shown)
