"""The JSON form of a group's record, in etcd's keys and in the annotation of a Kubernetes Lease."""

from __future__ import annotations

import json
from typing import Any

from reput_broker.ha.election.engine import GroupRecord, Leader


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
        {
            "member": leader.member,
            "address": leader.address,
            "ha_address": leader.ha_address,
            "epoch": record.epoch,
        },
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
