"""A tenure is a period in one role and epoch; a broker runs one after the other.

A `TenureSource` reports the current tenure and its changes. `Core` is what a broker is built from in one tenure of a
role: each feature takes it whole and keeps what it needs. Clocks and disks are one value in it, so that tests can
replace them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import trio

from reput_broker.access.control import Access
from reput_broker.config.model import BrokerConfig
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.groups.group_state import GroupAccess, GroupState
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.statistics import Statistics
from reput_broker.put.held_pulls import Arrivals, FilterCheck, PullRequestHoldService
from reput_broker.put.put_path import PutPath
from reput_broker.store.message_store import MessageStore
from reput_broker.store.retention import DiskUsage, disk_used_ratio
from reput_broker.tables.tables import Tables
from reput_broker.tables.topic_access import TopicAccess


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


@dataclass(eq=False, repr=False)
class TenureSource:
    """Decides the role of a broker.

    Args:
        current: the first tenure.
    """

    current: Tenure
    """The tenure now."""
    _change: trio.Event = field(default_factory=trio.Event, init=False)

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


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _local_hour() -> int:
    return time.localtime().tm_hour


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Clocks and disks. Called from the event loop and from worker threads."""

    clock_ms: Callable[[], int] = _clock_ms
    """Milliseconds since the epoch: store times, ages of files, versions of tables."""
    monotonic_ms: Callable[[], int] = _monotonic_ms
    """Milliseconds for the intervals of retention."""
    local_hour: Callable[[], int] = _local_hour
    """Hour of the day, 0 to 23, for `store.delete_when`."""
    disk_usage: DiskUsage = disk_used_ratio
    """The used part of the disk of a directory."""


class RoleDuties(Protocol):
    """What features of every role ask the role that the broker has."""

    is_slave: bool

    async def before_delete(self) -> None:
        """Do what must be done before files of the log are deleted; an error keeps them."""

    def needed_from(self) -> int | None:
        """Return the log offset from which on files are kept even if the disk is full; None: none. In any thread."""

    def waiting_from(self) -> int:
        """Return the log offset from which on messages wait for delivery, here or at a slave. In any thread."""

    def runtime_figures(self) -> dict[str, object]:
        """Return runtime figures that only this role has."""

    def reaches_master(self) -> bool:
        """Whether this is a slave that is connected to its master."""

    def ids_to_pull_from(self) -> Sequence[int]:
        """Return the announced ids of the slaves that can be suggested to consumers; none if they are not known."""


@dataclass(slots=True, kw_only=True)
class Core:
    """The parts that several features share.

    Attributes:
        surroundings: clocks and disks of the machine.
        clock_ms: the time of day.
        sources: what the metrics show; features add their figures.
        store_health: what the health page says of the store.
        tenures: the current one is what routes show of this broker.
        access: checks the requests.
        cold_quotas: how much groups may read from the disk.
        store: open, and so are `tables`.
        warm_from: log offset from which on recovery has read the log, so that the page cache holds it.
        hold: requests that wait for messages.
    """

    config: BrokerConfig
    surroundings: Surroundings
    clock_ms: Callable[[], int]
    counters: Counters
    sources: MetricsSources
    store_health: StoreHealth
    tenures: TenureSource
    access: Access
    cold_quotas: ColdQuotas
    store: MessageStore
    tables: Tables
    warm_from: int
    hold: PullRequestHoldService
    arrivals: Arrivals
    puts: PutPath
    groups: GroupState
    topic_access: TopicAccess
    group_access: GroupAccess
    filter_check: FilterCheck
    statistics: Statistics
