"""A simulated network: streams like TCP's between addresses, over links that are slow, lossy or cut.

A link has one direction. What is sent on a connection arrives in order and whole, after the link's latency and at its
rate. A lost segment delays all that follows it on its connection until it is repeated. On a cut link everything waits,
and is repeated some time after the link is mended, as TCP does. A single connection can be held in the same way. The
receiver's window limits what is unread or unacknowledged, so a peer that does not read, or whose acknowledgements do
not arrive, stops the sender.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulation.scheduling import Timers

if TYPE_CHECKING:
    from simulation.sockets import SimulatedSocket

WINDOW_BYTES: Final = 64 << 10
_FIRST_PORT: Final = 40_000
_REPEAT_S: Final = (0.2, 0.6)
"""After how long a lost segment is repeated."""
_REPEAT_MAX_S: Final = 3.0
_SPLIT: Final = 0.15
"""How many of the sends arrive in two parts."""


@dataclass(slots=True)
class Link:
    """One direction between two addresses."""

    latency_s: float = 0.0002
    jitter_s: float = 0.0005
    bytes_per_s: float = 1e8
    loss: float = 0.0
    is_cut: bool = False
    cut_at: float = 0.0
    free_at: float = 0.0
    stuck: list[Lane] = field(default_factory=list)
    """What waits until the link is mended."""


class Network:
    """All machines, by address, and the links between them."""

    def __init__(self, timers: Timers, now: Callable[[], float]) -> None:
        self.timers = timers
        self.now = now
        self.seed = 0
        self._connections = 0
        self._links: dict[tuple[str, str], Link] = defaultdict(Link)
        self._listening: dict[tuple[str, int], SimulatedSocket] = {}
        self._ports: defaultdict[str, int] = defaultdict(lambda: _FIRST_PORT)
        self._down: dict[str, list[Lane]] = {}
        self._from: defaultdict[str, list[Lane]] = defaultdict(list)

    def link(self, source: str, target: str) -> Link:
        """Return the link from one address to another."""
        return self._links[source, target]

    def cut(self, source: str, target: str) -> None:
        """Let nothing through in one direction."""
        link = self.link(source, target)
        link.is_cut, link.cut_at = True, self.now()

    def mend(self, source: str, target: str) -> None:
        """Let everything through again; what waited is repeated a moment later."""
        link = self.link(source, target)
        if not link.is_cut:
            return
        link.is_cut = False
        stuck, link.stuck = link.stuck, []
        for lane in stuck:
            lane.repeat(self.now() - link.cut_at)

    def machine_lost(self, address: str) -> None:
        """The machine is without power: it answers nothing, and what it has sent and not delivered is gone."""
        self._down[address] = []
        for lane in self._from.pop(address, []):
            lane.drop()

    def machine_found(self, address: str) -> None:
        """It is up again, and resets the connections of before."""
        for lane in self._down.pop(address, []):
            lane.reset_sender()

    def is_down(self, lane: Lane) -> bool:
        """Whether nothing arrives at a lane's end, which then waits for the machine."""
        waiting = self._down.get(lane.target)
        if waiting is None:
            return False
        waiting.append(lane)
        return True

    # -- ports -------------------------------------------------------------------------------------------------

    def free_port(self, address: str) -> int:
        """Return a port that was not used yet."""
        self._ports[address] += 1
        return self._ports[address]

    def listen(self, at: tuple[str, int], sock: SimulatedSocket) -> bool:
        """Register who listens; return False if the port is taken."""
        return self._listening.setdefault(at, sock) is sock

    def no_longer_listens(self, at: tuple[str, int], sock: SimulatedSocket) -> None:
        """Free the port."""
        if self._listening.get(at) is sock:
            del self._listening[at]

    def listener(self, at: tuple[str, int]) -> SimulatedSocket | None:
        """Return who listens."""
        return self._listening.get(at)

    def lanes(self, one: str, other: str) -> tuple[Lane, Lane]:
        """Return both directions of a new connection."""
        self._connections += 1
        chance = random.Random(f"{self.seed}/{self._connections}")
        there, back = Lane(self, one, other, chance), Lane(self, other, one, chance)
        self._from[one].append(there)
        self._from[other].append(back)
        return there, back


class Lane:
    """One direction of one connection: what is sent arrives in order."""

    def __init__(self, network: Network, source: str, target: str, chance: random.Random) -> None:
        self.source, self.target = source, target
        self._network = network
        self._link = network.link(source, target)
        self._chance = chance
        self._on_its_way: deque[tuple[float, Callable[[], None]]] = deque()
        self._last_at = 0.0
        self._is_held = self._waits = False
        self.sender: SimulatedSocket | None = None

    def put(self, size: int, arrives: Callable[[], None]) -> None:
        """Call `arrives` when so many bytes have arrived."""
        link, now = self._link, self._network.now()
        link.free_at = max(now, link.free_at) + size / link.bytes_per_s
        at = link.free_at + link.latency_s + link.jitter_s * self._chance.random()
        self._last_at = max(self._last_at, at)
        self._on_its_way.append((self._last_at, arrives))
        if len(self._on_its_way) == 1:
            self._network.timers.at(self._last_at, self._arrive)

    def split(self, size: int) -> int:
        """Return how many bytes arrive at once of so many that were sent."""
        return self._chance.randrange(1, size) if size > 1 and self._chance.random() < _SPLIT else size

    def _arrive(self) -> None:
        if not self._on_its_way:
            return
        if self._link.is_cut:
            self._link.stuck.append(self)
            return
        if self._is_held:
            self._waits = True
            return
        if self._network.is_down(self):
            return
        if self._link.loss and self._chance.random() < self._link.loss:
            self._network.timers.after(self._chance.uniform(*_REPEAT_S), self._arrive)
            return
        now = self._network.now()
        while self._on_its_way and self._on_its_way[0][0] <= now:
            self._on_its_way.popleft()[1]()
        if self._on_its_way:
            self._network.timers.at(self._on_its_way[0][0], self._arrive)

    def repeat(self, waited_s: float) -> None:
        """Send again what waited; the longer it waited, the longer until the next attempt."""
        self._network.timers.after(self._chance.uniform(0.0, min(waited_s, _REPEAT_MAX_S)), self._arrive)

    def hold(self) -> None:
        """Let nothing arrive until `release`."""
        self._is_held = True

    def release(self) -> None:
        """Let everything through again; what waited is repeated a moment later."""
        self._is_held = False
        if self._waits:
            self._waits = False
            self.repeat(_REPEAT_MAX_S)

    def drop(self) -> None:
        """Forget what is on its way."""
        self._on_its_way.clear()

    def reset_sender(self) -> None:
        """The target does not know this connection any more."""
        self.drop()
        sender = self.sender
        if sender is not None:
            self._network.timers.after(self._link.latency_s, sender.was_reset)
