"""What happens to the machines, the processes and the network of a simulation: one seed, one story."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio

from histories import terms
from reput_broker.ha.election.engine import GroupRecord
from simulation.engine import ADDRESS as ENGINE_ADDRESS
from simulation.machines import HA_PORT, PORT, BrokerMachine
from simulation.sockets import SimulatedSocket
from simulation.world import Client, World

MEMBERS_MAX: Final = 4
AFTERMATH_S: Final = 5.0
"""How long after its end a disturbance may have effects: reconnecting, repeating, joining again."""
WEIGHTS: Final = {
    "kill-broker": 4,
    "restart-broker": 2,
    "power-cut": 4,
    "power-cut-at-sync": 3,
    "stall-broker": 3,
    "slow-disk": 2,
    "partition": 3,
    "one-way-partition": 3,
    "loss": 2,
    "slow-network": 2,
    "resets": 2,
    "duplicate-connection": 2,
    "held-connections": 2,
    "engine-down": 2,
    "cut-off-engine": 3,
    "cut-off-slaves": 2,
    "isolate-master": 3,
    "restore-engine": 2,
    "kill-name-server": 2,
    "hand-over": 4,
    "lose-master": 3,
    "join": 2,
    "leave": 1,
    "kill-member": 2,
    "stop-member": 2,
}
_STOP_S: Final = 4.0
"""How long a broker takes to stop."""
_SLOW_BYTES_PER_S: Final = 6_000
_SLOW_DISK_S: Final = 0.2


class Faults:
    """Does random things, one after the other or several at once, and ends all of them in `heal`."""

    def __init__(self, world: World, weights: dict[str, int] = WEIGHTS) -> None:
        self._world = world
        self._weights = weights
        self._chance = world.chance("faults")
        self._numbers = 0
        self._lasting: dict[int, tuple[str, Callable[[], None]]] = {}
        self.counts: Counter[str] = Counter()
        self.has_restored = False
        """Whether the engine has had an older copy of its record."""

    async def run(self, duration_s: float, pause_s: tuple[float, float]) -> None:
        """Act for so long, then end everything."""
        with trio.move_on_after(duration_s):
            while True:
                await trio.sleep(self._chance.uniform(*pause_s))
                name = self._chance.choices([*self._weights], [*self._weights.values()])[0]
                self._act(name)
        self.heal()

    def heal(self) -> None:
        """End everything that lasts; every broker runs again."""
        for broker in self._world.brokers:
            broker.disk.on_sync = None
        for number in list(self._lasting):
            self._end(number)
        for machine in (*self._world.brokers, *self._world.name_servers):
            machine.start()
        for group in (terms.SHARED, terms.ORDERLY):
            if not self._world.members(group):
                self._world.join(group)

    def _act(self, name: str) -> None:
        if getattr(self, "_" + name.replace("-", "_"))():
            self.counts[name] += 1

    # -- what lasts --------------------------------------------------------------------------------------------

    def _last(self, what: str, seconds: float, undo: Callable[[], None]) -> int:
        """Note that something has begun, and end it after so long; return its number."""
        self._numbers += 1
        number = self._numbers
        self._world.history.disturb(f"{what} {number}", what)
        self._lasting[number] = (f"{what} {number}", undo)
        self._world.platform.timers.after(seconds, lambda: self._end(number))
        return number

    def _end(self, number: int) -> None:
        if number in self._lasting:
            name, undo = self._lasting.pop(number)
            undo()
            self._world.history.note("healed", name=name)
            self._world.platform.timers.after(AFTERMATH_S, lambda: self._world.calm(name))

    # -- brokers -----------------------------------------------------------------------------------------------

    def _broker(self) -> BrokerMachine | None:
        return self._chance.choice([broker for broker in self._world.brokers if broker.is_up] or [None])

    def _down_s(self) -> float:
        return self._chance.choice((0.05, 0.5, self._chance.uniform(0.5, 4.0)))

    def _kill_broker(self) -> bool:
        broker = self._broker()
        if broker is None:
            return False
        self._last("kill-broker", self._down_s(), broker.start)
        broker.kill()
        return True

    def _restart_broker(self) -> bool:
        broker = self._broker()
        if broker is None or broker.broker is None:
            return False
        down_s = self._down_s()
        self._last("restart-broker", _STOP_S + down_s, lambda: None)
        broker.restart(down_s)
        return True

    def _power_cut(self) -> bool:
        broker = self._broker()
        if broker is None:
            return False
        self.lose_power(broker, self._down_s())
        return True

    def lose_power(self, broker: BrokerMachine, down_s: float) -> None:
        """Cut a machine's power for so long."""
        broker.lose_power()
        self._power_is_lost(broker, down_s)

    def _power_is_lost(self, broker: BrokerMachine, down_s: float) -> None:
        self._world.may_lose(*self._world.group.lost_with_power(broker.number), of=broker.endpoint)
        self._last("power-cut", down_s, broker.start)

    def _power_cut_at_sync(self) -> bool:
        broker = self._broker()
        if broker is None:
            return False
        broker.lose_power_at_sync(self._chance.randint(1, 20), partial(self._power_is_lost, broker, self._down_s()))
        return True

    def _stall_broker(self) -> bool:
        broker = self._broker()
        if broker is None or broker.process is None or broker.process.is_stopped:
            return False
        process = broker.process
        process.stop()
        self._last("stall-broker", self._chance.choice((0.5, 2.0, 4.0, 8.0)), process.resume)
        return True

    def _slow_disk(self) -> bool:
        platform = self._world.platform
        if platform.thread_s() == _SLOW_DISK_S:
            return False
        before, platform.thread_s = platform.thread_s, lambda: _SLOW_DISK_S

        def undo() -> None:
            platform.thread_s = before

        self._last("slow-disk", self._chance.uniform(1.0, 4.0), undo)
        return True

    # -- network -----------------------------------------------------------------------------------------------

    def _addresses(self) -> tuple[list[str], list[str]]:
        """Two sides of a partition: a broker, and some of the others."""
        world = self._world
        broker = self._chance.choice(world.brokers)
        others = [other.address for other in world.brokers if other is not broker]
        others += [ENGINE_ADDRESS] if len(world.brokers) > 1 else []
        others += [machine.address for machine in world.name_servers]
        others += [client.process.address for client in world.clients if not client.is_gone]
        share = self._chance.choice((0.3, 1.0, 1.0))
        others = [address for address in others if self._chance.random() < share]
        return [broker.address], others

    def _links(self, what: str, change: Callable[[str, str], None], undo: Callable[[str, str], None]) -> bool:
        one, others = self._addresses()
        pairs = [(a, b) for a in one for b in others]
        is_one_way = what == "one-way-partition"
        if not is_one_way:
            pairs += [(b, a) for a, b in pairs]
        elif self._chance.random() < 0.5:
            pairs = [(b, a) for a, b in pairs]
        for pair in pairs:
            change(*pair)

        def undo_all() -> None:
            for pair in pairs:
                undo(*pair)

        self._last(what, self._chance.choice((0.5, 2.0, 4.0, 8.0)), undo_all)
        return bool(pairs)

    def _partition(self) -> bool:
        network = self._world.platform.network
        return self._links("partition", network.cut, network.mend)

    def _one_way_partition(self) -> bool:
        network = self._world.platform.network
        return self._links("one-way-partition", network.cut, network.mend)

    def _loss(self) -> bool:
        network = self._world.platform.network

        def lossy(source: str, target: str) -> None:
            network.link(source, target).loss = 0.2

        def fine(source: str, target: str) -> None:
            network.link(source, target).loss = 0.0

        return self._links("loss", lossy, fine)

    def _slow_network(self) -> bool:
        network = self._world.platform.network

        def slow(source: str, target: str) -> None:
            network.link(source, target).bytes_per_s = _SLOW_BYTES_PER_S

        def fine(source: str, target: str) -> None:
            network.link(source, target).bytes_per_s = 1e8

        return self._links("slow-network", slow, fine)

    def _resets(self) -> bool:
        broker = self._broker()
        if broker is None or broker.process is None:
            return False
        connected = [sock for sock in broker.process.sockets if sock.is_connected]
        for sock in connected:
            if self._chance.random() < 0.5:
                sock.cut_off()
        self._last("resets", 0.0, lambda: None)
        return bool(connected)

    def _duplicate_connection(self) -> bool:
        """The ends that have dialled see resets and dial again; the other ends hear nothing of it."""
        broker = self._broker()
        if broker is None or broker.process is None:
            return False
        connected = [sock for sock in broker.process.sockets if sock.is_connected]
        for sock in connected:
            if self._chance.random() < 0.7:
                sock.leave_half_open()
        self._last("duplicate-connection", 0.0, lambda: None)
        return bool(connected)

    def _held_connections(self) -> bool:
        """Some connections between brokers carry nothing, and others do: one of several paths is broken.

        So a slave may get the log and not the tables, or the tables and not the log.
        """
        addresses = [(broker.address, port) for broker in self._world.brokers for port in (PORT, HA_PORT)]
        releases = [sock.hold() for sock in self._dialled(addresses) if self._chance.random() < 0.5]
        self._last("held-connections", self._chance.choice((0.5, 2.0, 4.0)), partial(_call_all, releases))
        return bool(releases)

    def hold_tables(self, master: BrokerMachine) -> Callable[[], None]:
        """Let slaves get the log of a master, and not its tables; return what ends that."""
        return partial(_call_all, [sock.hold() for sock in self._dialled([(master.address, PORT)])])

    def _dialled(self, addresses: Sequence[tuple[str, int]]) -> Iterator[SimulatedSocket]:
        """Return the connections that brokers have dialled to others."""
        for broker in self._world.brokers:
            for sock in broker.process.sockets if broker.process is not None else ():
                if sock.dialled in addresses:
                    yield sock

    def _cut_off_engine(self) -> bool:
        """The master and the engine hear nothing of each other, and everything of all others."""
        masters = [broker for broker in self._world.brokers if broker.leads]
        if not masters:
            return False
        self._last(
            "cut-off-engine", self._chance.choice((1.0, 4.0, 6.0)), self._cut_off(masters[0].address, [ENGINE_ADDRESS])
        )
        return True

    def _cut_off_slaves(self) -> bool:
        """The master and the other brokers hear nothing of each other, and everything of all others."""
        masters = [broker for broker in self._world.brokers if broker.leads]
        others = [broker.address for broker in self._world.brokers if broker not in masters]
        if not masters or not others:
            return False
        seconds = self._chance.choice((1.0, 4.0, 6.0))
        self._last("cut-off-slaves", seconds, self._cut_off(masters[0].address, others))
        return True

    def _cut_off(self, one: str, others: list[str]) -> Callable[[], None]:
        """Let nothing through between one machine and others, in both directions; return what mends that."""
        network = self._world.platform.network
        pairs = [pair for other in others for pair in ((one, other), (other, one))]
        for pair in pairs:
            network.cut(*pair)

        def undo() -> None:
            for pair in pairs:
                network.mend(*pair)

        return undo

    def _isolate_master(self) -> bool:
        masters = [broker for broker in self._world.brokers if broker.leads]
        if masters and len(self._world.brokers) > 1:
            self.isolate(masters[0], self._chance.choice((4.0, 6.0, 9.0)))
        return bool(masters)

    def isolate(self, master: BrokerMachine, seconds: float) -> None:
        """Cut a master off from the other brokers and the engine, and not from its clients."""
        others = [broker.address for broker in self._world.brokers if broker is not master]
        number = self._last("isolate-master", seconds, self._cut_off(master.address, [*others, ENGINE_ADDRESS]))
        self._world.history.note("isolated", name=f"isolate-master {number}", of=master.endpoint)

    def _restore_engine(self) -> bool:
        """The engine stops, and begins again with an older copy of the record of the same epoch."""
        engine = self._world.engine
        copies = [record for record in engine.writes[:-1] if record.epoch == engine.record.epoch > 0]
        if copies:
            self.restore_engine(self._chance.choice(copies), self._chance.choice((0.1, 1.0, 4.0)))
        return bool(copies)

    def restore_engine(self, copy: GroupRecord, down_s: float) -> None:
        """Stop the engine, and begin again with a copy."""
        engine = self._world.engine
        self.has_restored = engine.is_down = True

        def undo() -> None:
            engine.is_down = False
            engine.restore(copy)

        self._last("restore-engine", down_s, undo)

    def _kill_name_server(self) -> bool:
        up = [machine for machine in self._world.name_servers if machine.is_up]
        if not up:
            return False
        machine = self._chance.choice(up)
        machine.kill()
        self._last("kill-name-server", self._down_s(), machine.start)
        return True

    def _engine_down(self) -> bool:
        """The engine has no quorum. Its leases begin again when it has one."""
        engine = self._world.engine
        if not self._world.failovers and engine.record.leader is None:
            return False
        engine.is_down = True

        def undo() -> None:
            engine.is_down = False
            engine.renew()

        self._last("engine-down", self._chance.choice((0.5, 2.0, 5.0, 10.0)), undo)
        return True

    def _hand_over(self) -> bool:
        """A planned change of the master, to any other member."""
        world = self._world
        masters = [broker for broker in world.brokers if broker.leads]
        others = [broker for broker in world.brokers if not broker.leads]
        if not masters or not others:
            return False
        masters[0].hand_over(self._chance.choice(others).number)
        return True

    def _lose_master(self) -> bool:
        """Members stop hearing of the master, whose clients notice nothing; a moment later it is gone."""
        world, network = self._world, self._world.platform.network
        masters = [broker for broker in world.brokers if broker.leads]
        others = [broker for broker in world.brokers if not broker.leads]
        if not masters or not others:
            return False
        master = masters[0]
        cut = self._chance.sample(others, self._chance.randint(1, len(others)))
        pairs = [(a.address, b.address) for other in cut for a, b in ((master, other), (other, master))]
        for pair in pairs:
            network.cut(*pair)
        delay_s = self._chance.choice((0.3, 0.8, 2.5))

        def strike() -> None:
            if number in self._lasting and master.is_up:
                world.may_lose(*world.group.lost_with_power(master.number), of=master.endpoint)
                master.lose_power()

        def undo() -> None:
            for pair in pairs:
                network.mend(*pair)
            master.start()

        world.platform.timers.after(delay_s, strike)
        number = self._last("lose-master", delay_s + self._chance.uniform(4.0, 7.0), undo)
        return True

    # -- members -----------------------------------------------------------------------------------------------

    def _one(self) -> Client | None:
        """A running member of a group that has another one, which stays."""
        group = self._chance.choice((terms.SHARED, terms.ORDERLY))
        members = [one for one in self._world.members(group) if not one.process.is_stopped]
        one = self._chance.choice(members) if members else None
        return one if any(other is not one and not other.leaving.is_set() for other in members) else None

    def _join(self) -> bool:
        group = self._chance.choice((terms.SHARED, terms.ORDERLY))
        if len(self._world.members(group)) >= MEMBERS_MAX:
            return False
        self._world.join(group, **member_options(self._chance))
        return True

    def _leave(self) -> bool:
        member = self._one()
        if member is not None:
            self._world.history.note("asked-to-leave", process=member.process.name)
            member.leaving.set()
        return member is not None

    def _kill_member(self) -> bool:
        member = self._one()
        if member is not None:
            self._world.kill(member)
        return member is not None

    def _stop_member(self) -> bool:
        member = self._one()
        if member is not None:
            stopped = member
            self._world.stop(stopped)
            seconds = self._chance.choice((1.0, 1.3 * terms.HEARTBEAT_TIMEOUT_S, 3 * terms.HEARTBEAT_TIMEOUT_S))
            self._last("stop-member", seconds, lambda: self._world.resume(stopped))
        return member is not None


def _call_all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


def member_options(chance: random.Random) -> dict[str, object]:
    """Return how a member consumes."""
    return {"way": chance.choice(("run", "run", "take")), "concurrency": chance.choice((1, 2, 4))}
