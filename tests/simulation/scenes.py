"""Scenes that random faults seldom make, of an elected group in which nothing else is disturbed; and its operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

import trio

from simulation.faults import AFTERMATH_S, Faults
from simulation.machines import BrokerMachine
from simulation.workload import Load, Producers
from simulation.world import World

Scene = Callable[[World, Faults, Load], Awaitable[list[Producers]]]

_LOOK_S: Final = 0.2
_WHOLE_S: Final = 10.0
"""How long a group may take until all its members are in sync, before its operator acts."""
_OPERATIONS: Final = 3
_ISOLATED_S: Final = 14.0
_LATE_PAUSE_S: Final = 0.4
_OUT_OF_SYNC_S: Final = 6.0
_KILLED_S: Final = 1.0


async def nothing(world: World, faults: Faults, load: Load) -> list[Producers]:
    """Let nothing happen."""
    return []


async def isolated_master(world: World, faults: Faults, load: Load) -> list[Producers]:
    """Cut the master off from brokers and engine, not from its clients; start a producer once another one leads."""
    await whole(world)
    master = next((broker for broker in world.brokers if broker.leads), None)
    if master is None:
        return []
    began = trio.current_time()
    faults.isolate(master, _ISOLATED_S)
    while trio.current_time() < began + _ISOLATED_S and not _others_lead(world, master):
        await trio.sleep(_LOOK_S)
    late = world.produce(replace(load, pause_s=_LATE_PAUSE_S))
    await trio.sleep(max(0.0, began + _ISOLATED_S - trio.current_time()))
    return [late]


async def restored_engine(world: World, faults: Faults, load: Load) -> list[Producers]:
    """Restore the engine from a copy of before a member left the in-sync set, when the master is lost.

    The member was away when it left the set, so it has seen nothing of that.
    """
    await whole(world)
    master = next((broker for broker in world.brokers if broker.leads), None)
    if master is None:
        return []
    copy = world.engine.record
    others = [broker for broker in world.brokers if broker is not master]
    away = world.chance("scene").choice(others)
    world.history.disturb("away", "kill-broker")
    away.kill()
    with trio.move_on_after(_OUT_OF_SYNC_S):
        while away.number in world.engine.record.in_sync:
            await trio.sleep(_LOOK_S)
    await trio.sleep(world.chance("scene").uniform(1.5, 3.0))  # messages that only two have
    faults.restore_engine(copy, 1.0)
    faults.lose_power(master, 5.0)
    await trio.sleep(_KILLED_S)
    away.start()
    world.history.note("healed", name="away")
    await trio.sleep(6.0)
    world.calm("away")
    return []


async def late_tables(world: World, faults: Faults, load: Load) -> list[Producers]:
    """Let slaves get the master's log and not its tables for a moment, for which they stay in sync; then it is lost."""
    await whole(world)
    master = next((broker for broker in world.brokers if broker.leads), None)
    if master is None:
        return []
    release = faults.hold_tables(master)
    await trio.sleep(world.chance("scene").uniform(0.5, 0.9))
    faults.lose_power(master, 5.0)
    release()
    await trio.sleep(6.0)
    return []


SCENES: Final[dict[str, tuple[Scene, int]]] = {
    "nothing": (nothing, 7),
    "isolated-master": (isolated_master, 2),
    "restored-engine": (restored_engine, 1),
    "late-tables": (late_tables, 1),
}
"""With how often each is played."""


def _others_lead(world: World, master: BrokerMachine) -> bool:
    return any(broker.leads for broker in world.brokers if broker is not master)


async def whole(world: World) -> bool:
    """Wait until one member leads and all are in sync; return whether they are."""
    members = {broker.number for broker in world.brokers}
    with trio.move_on_after(_WHOLE_S):
        while True:
            record = world.engine.record
            leading = [broker.number for broker in world.brokers if broker.leads]
            if record.leader is not None and [record.leader.member] == leading and record.in_sync == members:
                return True
            await trio.sleep(_LOOK_S)
    return False


async def operate(world: World) -> None:
    """Do what an operator does whose engine was restored from a copy: decide which history holds.

    That is the one of a member that knows more than the engine or the master, and of those the one of which most is
    confirmed. A master that is another is stopped first.
    """
    world.history.disturb("operation", "operation")  # the group may stand until then
    for _ in range(_OPERATIONS):
        if await whole(world):
            break
        up = [(broker.knows_more, broker.confirmed, broker) for broker in world.brokers if broker.confirmed]
        best = max(up, key=lambda one: one[:2], default=(False, (0, 0), None))[2]
        if best is None:
            continue
        masters = [broker for broker in world.brokers if broker.leads and broker is not best]
        for master in masters:
            master.kill()
        world.may_lose("offsets")  # of a master that stands too, or has stood since its lease ended
        with trio.move_on_after(_WHOLE_S):
            while not best.leads:  # not before the stopped one's lease has ended
                best.promote()
                await trio.sleep(_KILLED_S)
        for master in masters:
            world.history.note("overruled", of=master.endpoint)
            master.start()
    world.history.note("healed", name="operation")
    await trio.sleep(AFTERMATH_S)
    world.calm("operation")
