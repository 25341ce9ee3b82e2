"""All that is simulated: brokers, name servers, producers, members, readers."""

from __future__ import annotations

import logging
import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

import structlog
import trio

from histories import consuming, instruments, terms
from histories.consuming import Member
from reput_broker.delay import state
from reput_broker.groups import membership
from reput_broker.ha.election import elector, mastership
from reput_client import Admin
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError
from simulation import poppers
from simulation.engine import SimulatedEngine
from simulation.machines import PORT, BrokerMachine, NameServerMachine
from simulation.record import ITS_GROUP, History
from simulation.scheduling import Process, current_process
from simulation.stand_ins import Platform
from simulation.workload import Load, Producers, Reader
from support.election_engine import EngineState
from support.short_locks import shorten_in_broker

_HA: Final = {"send_heartbeat_interval": "500ms", "housekeeping_interval": "3s", "max_gap_not_in_sync": "16KiB"}
_LEASE_S: Final = 3.0
_WHEEL_SLOTS: Final = 600
_LOOK_S: Final = 0.2
_AFTERMATH_S: Final = 4.0
_SCAN_S: Final = 0.5
_SET_CHECKS: Final = 20
_DESCRIPTORS: Final = 16_384
"""Killed processes keep theirs."""


class _ClientLog(logging.Handler):
    def __init__(self, log: Callable[[str, str], None]) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log(record.levelname.lower(), record.getMessage())


@dataclass(slots=True)
class Client:
    """A process of ours that is not a broker."""

    process: Process
    group: str
    leaving: trio.Event
    is_gone: bool = False


class Group:
    """How many brokers there are and what they are to each other: here, one that is alone.

    Attributes:
        default_ack: the level that producers ask for most.
    """

    size = 1
    default_ack = AckLevel.FLUSHED

    def options(self, number: int) -> dict[str, Any]:
        """Return the options of a broker's configuration that make the group."""
        return {}

    def serving(self, brokers: list[BrokerMachine]) -> list[BrokerMachine]:
        """Return the brokers that clients are told of."""
        return brokers

    def lost_with_power(self, number: int) -> tuple[str, ...]:
        """Return what a power cut of a broker may take back: levels, and "offsets"."""
        return (AckLevel.PAGE_CACHE, "offsets")


class Followed(Group):
    """A master, which stays the master, and two slaves; replicated means at least one of them, besides the master."""

    size = 3
    default_ack = AckLevel.REPLICATED

    def options(self, number: int) -> dict[str, Any]:
        if number == 1:
            return {"ha": {**_HA, "role": "ASYNC_MASTER", "in_sync_replicas": 2}}
        master = f"{_address(1)}:{PORT}"
        return {"broker_id": number, "ha": {**_HA, "role": "SLAVE", "master": master}}

    def serving(self, brokers: list[BrokerMachine]) -> list[BrokerMachine]:
        return brokers[:1]

    def lost_with_power(self, number: int) -> tuple[str, ...]:
        return super().lost_with_power(number) if number == 1 else ()


class Elected(Group):
    """Three members of which an engine elects the master."""

    size = 3
    default_ack = AckLevel.REPLICATED

    def options(self, number: int) -> dict[str, Any]:
        return {
            "broker_id": number,
            "ha": {**_HA, "role": "SYNC_MASTER", "in_sync_replicas": 2},
            "election": {
                "etcd": ["http://simulated"],
                "lease": f"{_LEASE_S:g}s",
                "first_master": 1,
                "in_sync_timeout": "1s",
            },
        }

    def lost_with_power(self, number: int) -> tuple[str, ...]:
        return (AckLevel.PAGE_CACHE, "offsets")


GROUPS: Final = {"alone": Group, "followed": Followed, "elected": Elected}
TAKEN_BY_FAILOVER: Final = (AckLevel.PAGE_CACHE, AckLevel.FLUSHED)
"""What another master may not have of what was acknowledged. Offsets are answered once the in-sync set has them."""


def _address(number: int) -> str:
    return f"127.0.1.{number}"


class World:
    """Everything that is simulated.

    Args:
        name_servers: how many there are; without one the brokers are their own.
        has_pool: whether the brokers append through a pool of buffers.
    """

    broker_machine: ClassVar[type[BrokerMachine]] = BrokerMachine

    def __init__(
        self,
        platform: Platform,
        seed: int,
        directory: Path,
        group: Group,
        name_servers: int = 0,
        *,
        has_pool: bool = False,
    ) -> None:
        self.platform = platform
        self.group = group
        self.has_pool = has_pool
        self.seed = seed
        self.directory = directory
        self.history = History()
        self.logged: list[str] = []
        self.nursery: trio.Nursery
        self.clients: list[Client] = []
        self.faults: Counter[str] = Counter()
        self.failovers = 0
        self.engine = EngineState(lease_s=_LEASE_S)
        patch.object(elector, "_make_engine", lambda _: self._connect_to_engine()).start()
        self._numbers = {"m": 0, "p": 0, "r": 0, "q": 0}
        resource.setrlimit(resource.RLIMIT_NOFILE, (_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        structlog.configure(processors=[self._log])
        logging.basicConfig(handlers=[_ClientLog(self.log)], level=logging.INFO)
        instruments.install(self.history, ITS_GROUP)  # type: ignore[arg-type]
        instruments.shorten_lock_times()
        defaults = state.open_delay_state.__kwdefaults__
        assert defaults is not None
        defaults["wheel_slots"] = _WHEEL_SLOTS
        shorten_in_broker(terms.LOCK_TIMEOUT_S)
        membership._SCAN_S = _SCAN_S
        mastership._SET_CHECKS_PER_TIMEOUT = _SET_CHECKS
        consuming.LOOK_S = _LOOK_S
        self.name_servers = [
            NameServerMachine(self, f"n{number}", f"127.0.7.{number}") for number in range(1, name_servers + 1)
        ]
        self.brokers = [self.broker_machine(self, number) for number in range(1, group.size + 1)]

    def _connect_to_engine(self) -> SimulatedEngine:
        process = current_process()
        assert process is not None
        return SimulatedEngine(self.engine, self.platform.network, process.address)

    def chance(self, name: str) -> random.Random:
        """Return a source of chance of its own, so that what one part draws does not change another's."""
        return random.Random(f"{self.seed} {name}")

    def log(self, level: str, text: str) -> None:
        """Keep a line that the product has logged."""
        process = current_process()
        who = process.name if process is not None else "-"
        self.logged.append(f"{self.platform.clock.current_time():.6f} {who} {level} {text}")

    def _log(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        if event["event"] == "elected":
            self._note_election(event["epoch"])
        elif event["event"] == "lease_ended":
            process = current_process()
            assert process is not None
            self.history.note("led", of=f"{process.address}:{PORT}")
        self.log(level, " ".join(f"{name}={value}" for name, value in event.items()))
        raise structlog.DropEvent

    def _note_election(self, epoch: int) -> None:
        process = current_process()
        assert process is not None
        wall_ms = time.time_ns() // 1_000_000
        self.history.note("leads", epoch=epoch, address=f"{process.address}:{PORT}", wall_ms=wall_ms)
        if epoch > 1:
            name = f"failover {epoch}"
            self.failovers += 1
            self.history.disturb(name, "failover")
            self.platform.timers.after(_AFTERMATH_S, lambda: self.calm(name))
            self.may_lose(*TAKEN_BY_FAILOVER, kept_by=f"{process.address}:{PORT}")

    def may_lose(self, *levels: str, **facts: str) -> None:
        """Note that what was stored until now at these levels, and "offsets", may be gone; see the judges' `Loss`."""
        self.history.note("may-lose", levels=levels, stored_by=time.time_ns() // 1_000_000, **facts)

    def calm(self, name: str) -> None:
        """A disturbance has no effects any more."""
        self.history.calm(name)

    def failed(self, name: str, error: BaseException) -> None:
        """Note that a process has ended by an error."""
        self.history.note("failed", process=name, log="".join(traceback.format_exception(error))[-3000:])

    @property
    def endpoints(self) -> str:
        """Where clients learn addresses: the name servers, without one the brokers."""
        machines = self.name_servers or self.group.serving(self.brokers)
        return ",".join(machine.endpoint for machine in machines)

    # -- clients -----------------------------------------------------------------------------------------------

    def _start(
        self, letter: str, group: str, make: Callable[[str, trio.Event], Callable[[], Awaitable[None]]]
    ) -> Client:
        self._numbers[letter] += 1
        name = f"{letter}{self._numbers[letter]}"
        number = {"m": 2, "p": 3, "r": 4, "q": 8}[letter]
        client = Client(Process(name, f"127.0.{number}.{self._numbers[letter]}"), group, trio.Event())

        def ended(error: BaseException | None) -> None:
            client.is_gone = True
            self.history.note("left", process=name, code=0)
            if error is not None:
                self.failed(name, error)

        client.process._on_end = ended
        self.history.groups[name] = group
        if letter == "m":
            self.history.note("starting", process=name, group=group, options=[])
        client.process.start(self.nursery, make(name, client.leaving))
        self.clients.append(client)
        return client

    def join(self, group: str, **options: Any) -> Client:
        """Start one more member of a group."""

        def make(_: str, leaving: trio.Event) -> Callable[[], Awaitable[None]]:
            member = Member(self.endpoints, group, self.history.note, **options)
            return lambda: member.run(leaving.wait)

        return self._start("m", group, make)

    def produce(self, load: Load) -> Producers:
        """Start producers."""
        made: list[Producers] = []

        def make(name: str, _: trio.Event) -> Callable[[], Awaitable[None]]:
            made.append(Producers(name, load, self.history.note, self.chance(name)))
            return made[0].run

        self._start("p", "", make)
        return made[0]

    def read(self, topic: str) -> Client:
        """Start a reader without a group."""

        def make(name: str, _: trio.Event) -> Callable[[], Awaitable[None]]:
            return Reader(self.endpoints, topic, self.history.note, self.chance(name)).run

        return self._start("r", "", make)

    def pop(self, over: trio.Event) -> None:
        """Start what sends to the topic that is popped until `over`, and the members that pop."""
        addresses = [broker.endpoint for broker in self.group.serving(self.brokers)]

        def producer(name: str, _: trio.Event) -> Callable[[], Awaitable[None]]:
            chance = self.chance(name)
            return lambda: poppers.produce(self.endpoints, self.group.default_ack, over, self.history.note, chance)

        def member(name: str, _: trio.Event) -> Callable[[], Awaitable[None]]:
            return poppers.Popper(addresses, self.history.note, self.chance(name)).run

        self._start("q", "", producer)
        for _ in range(poppers.MEMBERS):
            self._start("q", "", member)

    def members(self, *groups: str) -> list[Client]:
        """Return the living members of groups."""
        return [client for client in self.clients if client.group in groups and not client.is_gone]

    def kill(self, client: Client) -> None:
        """SIGKILL a client."""
        name = client.process.name
        self.history.note("kill", process=name)
        client.process.kill()
        client.is_gone = True
        for sock in list(client.process.sockets):
            sock.end()
        self.history.note("killed", process=name)

    def stop(self, client: Client) -> None:
        """SIGSTOP a client."""
        self.history.note("stop", process=client.process.name)
        client.process.stop()

    def resume(self, client: Client) -> None:
        """SIGCONT a client."""
        if not client.is_gone:
            client.process.resume()
            self.history.note("go-on", process=client.process.name)

    async def as_operator(self, work: Callable[[Admin], Awaitable[None]]) -> None:
        """Do something with an Admin, as often as it takes."""
        done = trio.Event()

        async def run() -> None:
            while not done.is_set():
                try:
                    async with Admin(self.endpoints, timeout_s=5.0) as admin:
                        await work(admin)
                    done.set()
                except ReputError as error:
                    self.log("warning", str(error))
                    await trio.sleep(0.2)

        Process("operator", "127.0.5.1").start(self.nursery, run)
        await done.wait()

    async def make_topics(self) -> None:
        """Create the topics of the histories."""

        async def work(admin: Admin) -> None:
            for topic, queues in (*terms.TOPICS.items(), (poppers.TOPIC, poppers.QUEUES)):
                await admin.create_topic(topic, queues=queues)

        await self.as_operator(work)
