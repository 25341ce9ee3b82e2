"""Series of replication: the role, what the slaves of a master have, how far a slave is behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from reput_broker.observe.counters import REPLICATION_ROLES
from reput_broker.observe.exposition import Family, one


class MasterFigures(NamedTuple):
    """What a master knows of its slaves."""

    connected: int
    in_sync: int
    """Copies that are in sync, the master's own included."""
    wanted: int
    """`ha.in_sync_replicas`."""
    replicated_offset: int
    lag: Mapping[str, tuple[int, float]]
    """Bytes and seconds by slave: its number, or `other` for the furthest behind of RocketMQ's."""


class SlaveFigures(NamedTuple):
    """What a slave knows of itself."""

    has_master: bool
    """Whether it knows which broker is the master."""
    is_connected: bool
    lag_bytes: int
    lag_s: float
    tables_age_s: float
    """Time since its tables were last compared with the master's."""


class ReplicationFigures(NamedTuple):
    """What the metrics show; one of the last two is None."""

    role: str
    epoch: int
    master: MasterFigures | None
    slave: SlaveFigures | None


ReplicationSource: TypeAlias = Callable[[], ReplicationFigures]


def replication_families(source: ReplicationSource | None) -> Iterator[Family]:
    """Walk over the families of replication; none while no role is served."""
    if source is None:
        return
    figures = source()
    yield "reput_role", (((role,), int(role == figures.role)) for role in REPLICATION_ROLES)
    yield one("reput_epoch", figures.epoch)
    master, slave = figures.master, figures.slave
    if master is not None:
        yield one("reput_replication_slaves", master.connected)
        yield one("reput_replication_copies_in_sync", master.in_sync)
        yield one("reput_replication_copies_wanted", master.wanted)
        yield one("reput_replicated_offset_bytes", master.replicated_offset)
        lag = master.lag.items()
        yield "reput_replication_lag_bytes", (((name,), size) for name, (size, _) in lag)
        yield "reput_replication_lag_seconds", (((name,), age_s) for name, (_, age_s) in lag)
    if slave is not None:
        yield one("reput_replica_has_master", int(slave.has_master))
        yield one("reput_replica_connected", int(slave.is_connected))
        yield one("reput_replica_lag_bytes", slave.lag_bytes)
        yield one("reput_replica_lag_seconds", slave.lag_s)
        yield one("reput_replica_tables_age_seconds", slave.tables_age_s)
