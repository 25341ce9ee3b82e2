"""How far the slaves of a master are behind, in bytes and in seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from reput_broker.config.sections import HAConfig

_LOOK_S: Final = 0.25
_LOOK_ALONE_S: Final = 1.0
"""The same without a slave: one that comes is late by the time of a note that is as precise."""
_SAMPLES_MAX: Final = 4096


class Slave(Protocol):
    """A connected slave (see `HAConnection`)."""

    peer: str
    member: int | None
    acked_offset: int
    next_offset: int


S = TypeVar("S", bound=Slave)


def copies_among(slaves: Iterable[S]) -> list[S]:
    """Return the connections that count as a copy each, of all in the order in which they were made.

    RocketMQ's slaves do not say who they are, and may connect again before this side has noticed the end of the earlier
    connection. So of those from one machine only the last one counts.
    """
    copies: dict[int | str, S] = {}
    for slave in slaves:
        copies[slave.peer.rpartition(":")[0] if slave.member is None else slave.member] = slave
    return list(copies.values())


class SlaveProgress(NamedTuple):
    """How far one slave is."""

    peer: str
    member: int | None
    """Its number in the group; None for one of RocketMQ."""
    acked_offset: int
    next_offset: int
    lag_bytes: int
    lag_s: float
    """Age of the oldest byte that it does not have; 0 if it has all."""
    bytes_per_s: float
    is_in_sync: bool


class LogTimes:
    """When the log grew beyond which offset, to the precision of the notes."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def note(self, end: int, now_s: float) -> None:
        """Note the end of the log."""
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times.append(now_s)
        if len(self._ends) > _SAMPLES_MAX:  # the older half becomes half as precise
            half = _SAMPLES_MAX // 2
            self._ends[:half], self._times[:half] = self._ends[:half:2], self._times[:half:2]

    def behind_s(self, offset: int, now_s: float) -> float:
        """Return how long the log has been longer than `offset`; 0 if it is not."""
        place = bisect_right(self._ends, offset)
        return now_s - self._times[place] if place < len(self._ends) else 0.0


class MasterLog:
    """The master's log, as its slave knows it.

    Args:
        own_end: returns the end of its own log.
    """

    def __init__(self, own_end: Callable[[], int]) -> None:
        self.end = 0
        """Its end in the last answer of the master."""
        self._own_end = own_end
        self._times = LogTimes()

    def note_end(self, end: int) -> None:
        """Note the end that the master has reported."""
        self.end = end
        self._times.note(end, trio.current_time())

    @property
    def lag_bytes(self) -> int:
        """Bytes of it that are known to be missing here."""
        return max(0, self.end - self._own_end())

    @property
    def lag_s(self) -> float:
        """How long ago the first of them was written at most; 0 if none is missing."""
        return self._times.behind_s(self._own_end(), trio.current_time())


class ReplicationProgress:
    """The progress of all slaves of a master, looked at four times a second; without any, once.

    Args:
        log_end: returns the end of the log.
        slaves: returns those that are connected.
        members: returns the in-sync set of an election; None without one, where every slave counts that is not too
            far behind.
    """

    def __init__(
        self,
        log_end: Callable[[], int],
        slaves: Callable[[], Sequence[Slave]],
        config: HAConfig,
        members: Callable[[], Collection[int]] | None = None,
    ) -> None:
        self._members = members
        self._log_end = log_end
        self._slaves = slaves
        self._config = config
        self._times = LogTimes()
        self._rates: dict[Slave, tuple[int, float]] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await trio.sleep(_LOOK_S if self._slaves() else _LOOK_ALONE_S)

    def look(self) -> None:
        """Note where the log and the slaves are now."""
        self._times.note(self._log_end(), trio.current_time())
        rates = {}
        for slave in self._slaves():
            before, rate = self._rates.get(slave, (slave.acked_offset, 0.0))
            # The mean of about a second.
            rates[slave] = slave.acked_offset, 0.75 * rate + 0.25 * (slave.acked_offset - before) / _LOOK_S
        self._rates = rates

    @property
    def copies_in_sync(self) -> int:
        """Copies of the log that are in sync, the master's own included."""
        if self._members is not None:
            return len(self._members())
        low = self._log_end() - self._config.max_gap_not_in_sync
        return 1 + sum(slave.acked_offset >= low for slave in copies_among(self._slaves()))

    def slaves(self) -> list[SlaveProgress]:
        """Return the progress of every slave, the one that is furthest first."""
        now_s, end = trio.current_time(), self._log_end()
        low = end - self._config.max_gap_not_in_sync
        members = None if self._members is None else self._members()
        found = []
        for slave in self._slaves():
            acked = max(0, slave.acked_offset)
            lag = max(0, end - acked)
            found.append(
                SlaveProgress(
                    slave.peer,
                    slave.member,
                    acked,
                    slave.next_offset,
                    lag,
                    self._times.behind_s(acked, now_s) if lag else 0.0,
                    self._rates.get(slave, (0, 0.0))[1],
                    acked >= low if members is None else slave.member in members,
                )
            )
        return sorted(found, key=lambda slave: slave.lag_bytes)
