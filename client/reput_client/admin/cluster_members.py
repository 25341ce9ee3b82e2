"""The members of a cluster with their state, as each of them reports it.

A member is a broker here, a master or a slave; those with one broker name are a group. Elsewhere, groups and members
are of consumers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from reput_client.transport.address import parse_address
from reput_client.transport.routing import MASTER_ID
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.ha import HARuntimeInfo
from reput_protocol.commands.replica import QueryReplicaStateHeader, ReplicaState
from reput_protocol.commands.topic import ClusterInfo
from reput_protocol.errors import ReputError, RequestNotSupported
from reput_protocol.wire.header import HeaderType

_MSGPACK: Final = HeaderType.MSGPACK


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One member of a broker name. What it did not report is None."""

    cluster: str
    broker_name: str
    broker_id: int
    """The announced id: 0 is the master."""
    address: str
    number: int | None = None
    """Its number in a group that elects its master: `broker_id` of its configuration, which `promote_broker` takes."""
    takes_messages: bool | None = None
    """Whether it says that it is a master."""
    epoch: int | None = None
    """Of a master with slaves: its epoch."""
    end_offset: int | None = None
    """The end of its log."""
    lag_bytes: int | None = None
    """Of a slave: how much of its master's log it lacks."""
    slaves: int | None = None
    """Of a master: slaves that are connected."""
    in_sync: int | None = None
    """Of a master: copies that are in sync, its own included."""
    is_copying: bool | None = None
    """Of a slave: whether it receives its master's log."""
    error: str | None = None
    """Why it did not report."""

    @property
    def is_master(self) -> bool:
        """Whether it is announced as the master."""
        return self.broker_id == MASTER_ID


async def cluster_members(session: Session) -> list[ClusterMember]:
    """Return every member that the name service lists, sorted. Raises if the name service does not answer."""
    call = await session.ask_ok(RequestCode.GET_BROKER_CLUSTER_INFO, {}, what="brokers of the cluster")
    info = ClusterInfo.from_json(call.body)
    members: list[ClusterMember] = []
    for name, data in sorted(info.broker_addr_table.items()):
        group = [
            await _reported(session, ClusterMember(data.cluster, name, number, address))
            for number, address in sorted(data.broker_addrs.items())
        ]
        master_end = group[0].end_offset if group and group[0].is_master else None
        members += [_with_lag(member, master_end) for member in group]
    return sorted(members, key=lambda member: (member.cluster, member.broker_name, member.broker_id))


async def _reported(session: Session, member: ClusterMember) -> ClusterMember:
    """Return the member with what it reports."""
    try:
        address = parse_address(member.address)
        what = f"state of {member.broker_name} at {member.address}"
        call = await session.ask_ok(RequestCode.GET_BROKER_HA_STATUS, {}, what=what, address=address)
        copies = HARuntimeInfo.from_json(call.body)
        asked = QueryReplicaStateHeader().to_ext(_MSGPACK)
        try:
            call = await session.ask_ok(RequestCode.QUERY_REPLICA_STATE, asked, what=what, address=address)
            state = ReplicaState.from_json(call.body)
            number, epoch, end = state.member, state.epoch or None, state.max_offset
        except RequestNotSupported:  # by RocketMQ's brokers
            own_end = 0 if copies.client is None else copies.client.max_offset
            number, epoch = None, None
            end = copies.master_commit_log_max_offset if copies.master else own_end
    except (ReputError, ValueError) as error:
        session.check_open()
        return replace(member, error=str(error))
    member = replace(member, number=number, takes_messages=copies.master)
    if copies.master:
        return replace(
            member,
            epoch=epoch,
            end_offset=end,
            slaves=len(copies.connections),
            in_sync=1 + copies.in_sync_slave_nums,
        )
    is_copying = copies.client is not None and copies.client.activated
    return replace(member, end_offset=end, is_copying=is_copying)


def _with_lag(member: ClusterMember, master_end: int | None) -> ClusterMember:
    if member.is_master or member.end_offset is None or master_end is None:
        return member
    return replace(member, lag_bytes=max(0, master_end - member.end_offset))
