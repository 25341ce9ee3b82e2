"""What a broker is built from in one tenure of a role: each feature takes it whole and keeps what it needs.

Clocks and disks are one value in it, so that tests can replace them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reput_broker.access.control import Access
from reput_broker.config.model import BrokerConfig
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.groups.group_state import GroupAccess, GroupState
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import StoreHealth
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.statistics import Statistics
from reput_broker.pull.filter_check import FilterCheck
from reput_broker.pull.long_polling import PullRequestHoldService
from reput_broker.put.arrivals import Arrivals
from reput_broker.put.put_path import PutPath
from reput_broker.store.message_store import MessageStore
from reput_broker.store.retention import DiskUsage, disk_used_ratio
from reput_broker.tables.tables import Tables
from reput_broker.tables.topic_access import TopicAccess
from reput_broker.tenure.roles import TenureSource


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
