"""The interface of an engine to the elector: one record for the group, and a lease on being its master.

The engine changes the record only if it is still the one that the caller has seen, so of two members that act at the
same time one succeeds. It removes the master from the record when the master's lease ends.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from reput_protocol.errors import ReputError

REQUESTS_PER_LEASE: Final = 5
"""A request that gets no answer is given up after this part of the lease, so that others follow before it ends."""


class EngineUnavailable(ReputError):
    """The engine did not answer, or could not. A change that was requested may have been made or not.

    Attributes:
        reason: what failed, with the addresses that were tried.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LeaseLost(ReputError):
    """The lease has ended or is another member's, according to the engine.

    Attributes:
        reason: the engine's answer.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Terms:
    """How the members of a group elect and follow a master.

    Attributes:
        lease_s: the length of the lease that the engine gives.
        first_master: the member that becomes master while the group has no state.
        in_sync_timeout_s, gap_max: see `InSyncSet`.
    """

    lease_s: float
    first_master: int
    in_sync_timeout_s: float
    gap_max: int


@dataclass(frozen=True, slots=True)
class Leader:
    """The master in the record."""

    member: int
    """Its `broker_id`, which is unique in the group."""
    address: str
    """Its address for clients, `host:port`."""
    ha_address: str
    """The address of its log, `host:port`."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The engine's record of a group. Without a state, before the group's first master, all is empty."""

    epoch: int = 0
    """The number of the last tenure of a master; each has a larger one. 0: the group has no state."""
    in_sync: frozenset[int] = frozenset()
    """The members that have every confirmed message. Only one of them may become master."""
    successor: int | None = None
    """The member that the last master handed over to."""
    leader: Leader | None = None
    """The master; None once its lease has ended."""
    version: int = 0
    """Of this record in its epoch; each change by the master has the next one. 0 always: an older version's master."""
    forced: int = 0
    """An operator has made the history of this epoch's master hold: what was confirmed before may be cut."""
    revision: tuple[str, ...] = field(default=(), compare=False)
    """The engine's mark of this state of the record."""

    def is_older_than(self, other: GroupRecord) -> bool:
        """Tell whether this is an earlier state of the group."""
        return (self.epoch, self.version) < (other.epoch, other.version)


class Engine(Protocol):
    """Keeps a group's record. One task at a time may change it; `keep_alive` and `changed` may run at the same time.

    Every method but `changed` returns or raises within a part of the lease (REQUESTS_PER_LEASE). Each may raise
    EngineUnavailable.
    """

    @property
    def name(self) -> str:
        """The engine and where it is, for the log."""

    async def read(self) -> GroupRecord:
        """Return the record as a majority of the engine has it."""

    async def take(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        """Take a new lease and replace the record that was seen, with its leader bound to the lease.

        Args:
            seen: without a leader, or with this member as one.

        Returns:
            The record as it is now kept; None if it has changed since it was seen, which changes nothing.
        """

    async def keep_alive(self) -> None:
        """Extend the lease to its full time from now. Raises LeaseLost."""

    async def write(self, seen: GroupRecord, new: GroupRecord) -> GroupRecord | None:
        """Replace the record as its leader; without a leader in `new`, the lease ends as well.

        Returns:
            The record as it is now kept; None if this member is not the leader that was seen, or the record has
            changed, which changes nothing.
        """

    async def changed(self, seen: GroupRecord) -> None:
        """Return when the record may have changed since it was seen. May never return, so bound it by a time."""

    async def close(self) -> None:
        """Close connections. The lease stays until its time is over."""


def group_text(record: GroupRecord) -> str:
    """Return all of the record but its leader as JSON."""
    return json.dumps(
        {
            "epoch": record.epoch,
            "version": record.version,
            "in_sync": sorted(record.in_sync),
            "successor": record.successor,
            "forced": record.forced,
        },
        separators=(",", ":"),
    )


def leader_text(record: GroupRecord) -> str:
    """Return the leader and its epoch as JSON."""
    leader = record.leader
    assert leader is not None
    return json.dumps(
        {"member": leader.member, "address": leader.address, "ha_address": leader.ha_address, "epoch": record.epoch},
        separators=(",", ":"),
    )


def group_of(members: dict[str, Any], *, leader: Leader | None, revision: tuple[str, ...]) -> GroupRecord:
    """Return the record; empty if `members` is.

    Raises:
        KeyError, TypeError, ValueError: it is not one.
    """
    if not members:
        return GroupRecord(leader=leader, revision=revision)
    successor = members.get("successor")
    return GroupRecord(
        epoch=int(members["epoch"]),
        in_sync=frozenset(map(int, members["in_sync"])),
        successor=None if successor is None else int(successor),
        leader=leader,
        version=int(members.get("version", 0)),
        forced=int(members.get("forced", 0)),
        revision=revision,
    )


def leader_of(members: dict[str, Any]) -> Leader:
    """Return the leader. Raises as `group_of`."""
    return Leader(int(members["member"]), str(members["address"]), str(members["ha_address"]))
