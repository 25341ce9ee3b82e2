"""The machines of a simulation that servers run on: brokers, and name servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from histories import terms
from reput_broker import Broker, BrokerConfig
from reput_broker.name_server import NameServer
from reput_broker.tenure.core import Surroundings
from reput_protocol.errors import ReputError
from simulation.disks import Disk
from simulation.scheduling import Process

if TYPE_CHECKING:
    from simulation.world import World

PORT: Final = 10911
HA_PORT: Final = 10912
NAMES_PORT: Final = 9876
_STORE: Final = {
    "commit_log_file_size": 1 << 16,
    "consume_queue_entries": 200,
    "index_slots": 100,
    "index_entries": 400,
    "message_size_max": 8192,
}


class Machine:
    """A machine with a disk and a server, which may be killed.

    Attributes:
        is_up: whether there is a server that has not been killed.
    """

    kind_of_disk: ClassVar[type[Disk]] = Disk

    def __init__(self, world: World, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.is_up = False
        self.process: Process | None = None
        self._world = world
        self._down_s = 0.0
        self.disk = self.kind_of_disk(world.directory / name, world.chance(f"disk {name}"))

    def start(self) -> None:
        """Start its server, on what the last one has left; nothing if there is one."""
        if self.is_up:
            return
        self.disk.restore()
        self._world.platform.network.machine_found(self.address)
        self.is_up = True
        self.process = Process(self.name, self.address, self._ended)
        self.process.start(self._world.nursery, self._serve)

    async def _serve(self) -> None:
        raise NotImplementedError

    def _ended(self, error: BaseException | None) -> None:
        self._is_gone()
        if error is not None:
            self._world.failed(self.name, error)
        else:
            self._world.platform.timers.after(self._down_s, self.start)

    def _is_gone(self) -> None:
        self.is_up = False

    def kill(self) -> None:
        """SIGKILL: the operating system closes its connections, and keeps what it wrote."""
        self._end(silently=False)

    def _end(self, *, silently: bool) -> None:
        assert self.process is not None
        self.process.kill()
        self._is_gone()
        for sock in list(self.process.sockets):
            sock.end(silently=silently)


class NameServerMachine(Machine):
    """A machine with a name server."""

    @property
    def endpoint(self) -> str:
        """Where brokers and clients connect to."""
        return f"{self.address}:{NAMES_PORT}"

    async def _serve(self) -> None:
        config = BrokerConfig(
            data_dir=self.disk.data_dir, host=self.address, port=NAMES_PORT, http_port="off", shutdown_grace="1s"
        )
        async with NameServer(config) as server:
            await server.stopped()


class BrokerMachine(Machine):
    """A machine with a broker, which may be killed, stopped, or lose its power."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"b{number}", f"127.0.1.{number}")
        self.number = number
        self.has_power = True
        self.broker: Broker | None = None

    @property
    def endpoint(self) -> str:
        """Where clients connect to."""
        return f"{self.address}:{PORT}"

    def config(self) -> BrokerConfig:
        """The configuration of its broker."""
        return BrokerConfig(
            **self._world.group.options(self.number),
            data_dir=self.disk.data_dir,
            host=self.address,
            port=PORT,
            name_port="off",
            name_servers=[machine.endpoint for machine in self._world.name_servers],
            http_port="off",
            shutdown_grace="2s",
            delay={"timer_log_file_size": 1 << 16},
            store={**_STORE, "transient_store_pool": self._world.has_pool},
            groups={"heartbeat_timeout": f"{terms.HEARTBEAT_TIMEOUT_S}s"},
            transactions={"timeout": "500ms", "check_interval": "300ms", "check_max": 10_000, "op_interval": "100ms"},
        )

    def start(self) -> None:
        self.has_power |= not self.is_up
        super().start()

    async def _serve(self) -> None:
        surroundings = Surroundings(disk_usage=lambda _: 0.1, local_hour=lambda: 12)
        async with Broker(self.config(), surroundings=surroundings) as broker:
            self.broker = broker
            self._world.history.note("up")
            await broker.stopped()

    def _end(self, *, silently: bool) -> None:
        world = self._world
        if self in world.group.serving(world.brokers):
            world.history.note("dies", of=self.endpoint, wall_ms=time.time_ns() // 1_000_000)
        super()._end(silently=silently)

    def _is_gone(self) -> None:
        self.is_up, self.broker = False, None

    def restart(self, down_s: float) -> None:
        """Ask the broker to stop in order; it is started again so long after it has."""
        assert self.broker is not None
        self._down_s = down_s
        self.broker.stop()

    @property
    def leads(self) -> bool:
        """Whether its broker believes to be the elected master."""
        elector = None if self.broker is None else self.broker._base.elector
        return elector is not None and elector.current.is_master

    @property
    def confirmed(self) -> tuple[int, int] | None:
        """Up to which log offset its broker knows all to be confirmed, and where its log ends; None while it is not
        open.
        """
        elector = None if self.broker is None else self.broker._base.elector
        tenure = None if self.broker is None else self.broker._running
        if elector is None or tenure is None or tenure.storage is None:
            return None
        storage, end = tenure.storage, tenure.storage.store.max_physical_offset
        return elector.confirmed(storage.epochs.entries, end), end

    @property
    def knows_more(self) -> bool:
        """Whether its status says that it saw a later record than the engine has, or has what its master lacks."""
        said = "" if self.broker is None else str(self.broker._status())
        return "but this member saw" in said or "this broker's log is confirmed up to" in said

    def promote(self) -> None:
        """Make its broker the master by force, as an operator does."""
        self.hand_over(self.number, force=True)

    def hand_over(self, member: int, *, force: bool = False) -> None:
        """Ask its broker to make another member the master; whether it does is its own decision, unless forced."""
        broker, process = self.broker, self.process
        assert broker is not None
        assert process is not None

        async def ask() -> None:
            elector, tenure = broker._base.elector, broker._running
            assert elector is not None
            if tenure is None or tenure.storage is None:
                return  # between two tenures it takes no request
            try:
                made = await elector.hand_over(member, tenure.storage.store.max_physical_offset, force=force)
                self._world.history.note("handed-over", member=member, end=made.end, kept=made.kept)
            except ReputError as error:
                self._world.history.note("not-handed-over", member=member, error=str(error))

        process.spawn(ask)

    def lose_power(self) -> None:
        """The machine stops in this moment: its peers hear nothing of it."""
        self.disk.on_sync = None
        if self.has_power:
            self.has_power = False
            self.disk.lose_power()
            self._world.platform.network.machine_lost(self.address)
            self._end(silently=True)

    def lose_power_at_sync(self, number: int, then: Callable[[], None]) -> None:
        """Stop the machine right before the given of the next syncs, in the middle of what the broker does."""
        left = number

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.lose_power()
                self._world.platform.timers.after(0.0, then)

        self.disk.on_sync = count
