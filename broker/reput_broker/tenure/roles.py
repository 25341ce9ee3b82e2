"""The role of a broker, its tenure, and the sources that decide it.

A tenure is a period in one role and epoch. The broker runs one tenure after the other; a `TenureSource` reports the
current one and its changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import trio

from reput_broker.config.model import BrokerConfig


class Role(StrEnum):
    """The role of a broker (RocketMQ: BrokerRole)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True)
class Master:
    """The master that a slave follows."""

    address: str
    """Its address for clients, `host:port`."""
    ha_address: str
    """The address of its log, `host:port`; empty if it has none."""


@dataclass(frozen=True, slots=True)
class Tenure:
    """A role, with its id, epoch and master."""

    role: Role
    broker_id: int
    """The announced id: 0 for a master."""
    epoch: int = 0
    """The epoch that an election gave; 0 without an election, where the broker counts epochs itself."""
    master: Master | None = None
    """Of a slave: its master; None while that is unknown."""

    @property
    def is_master(self) -> bool:
        """Whether a broker in this tenure takes messages."""
        return self.role is not Role.SLAVE

    def differs_in_role(self, other: Tenure) -> bool:
        """Tell whether a broker has to restart in place between the two: all but the master has changed."""
        return replace(self, master=None) != replace(other, master=None)


class TenureSource:
    """Decides the role of a broker.

    Args:
        current: the first tenure.
    """

    def __init__(self, current: Tenure) -> None:
        self.current = current
        """The tenure now."""
        self._change = trio.Event()

    async def changed(self, tenure: Tenure) -> None:
        """Return once `current` differs from `tenure`."""
        while self.current == tenure:
            await self._change.wait()

    def _set(self, tenure: Tenure) -> None:
        if tenure != self.current:
            self.current = tenure
            self._change.set()
            self._change = trio.Event()

    @property
    def seen_record(self) -> tuple[int, int] | None:
        """Epoch and version of the last record of an election that this broker has seen; None without an election."""
        return None

    def known_confirmed(self, epochs: Sequence[tuple[int, int]], end: int) -> tuple[int, int] | None:  # noqa: ARG002
        """Return an epoch, and up to which offset its master has confirmed this log; None without an election.

        Args:
            epochs, end: see `confirmed`.
        """
        return None

    def confirmed(self, epochs: Sequence[tuple[int, int]], end: int) -> int:  # noqa: ARG002 - an election needs them
        """Return the log offset below which this broker's log must not be cut; 0 if none is known, and an operator
        decides which log holds.

        Args:
            epochs, end: of this log; epochs with their starts.
        """
        return 0

    def note_confirmed(self, epoch: int, offset: int, epochs: Sequence[tuple[int, int]], end: int) -> None:
        """Note that all before an offset is confirmed, as a master of that epoch says whose history is this log's."""


class StaticTenures(TenureSource):
    """The role as configured, for as long as the broker runs; a slave's master may change.

    Args:
        config: names the role, and perhaps the master. If it does not, the name servers do: see `master_found`.
    """

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(Tenure(Role(config.ha.role), config.broker_id, master=_configured(config)))
        self._ha = config.ha

    def master_found(self, address: str, ha_address: str) -> None:
        """Note the master that a name server named; what the configuration names stays.

        Args:
            address: its address for clients; empty if it has no master now, which changes nothing.
            ha_address: the address of its log; empty if the name server does not know it.
        """
        if not address or self.current.is_master or self._ha.master:
            return
        master = Master(address, self._ha.master_ha_address or ha_address or next_port(address))
        self._set(replace(self.current, master=master))


def _configured(config: BrokerConfig) -> Master | None:
    ha = config.ha
    return Master(ha.master, ha.master_ha_address or next_port(ha.master)) if ha.master else None


def next_port(address: str) -> str:
    """Return `address` with the port after its own, which is that of the log unless configured otherwise."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"
