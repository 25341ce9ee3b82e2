"""`reput doctor cluster`: masters, copies, election and clocks of all members."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from reput_cli.doctor.findings import CLOCK_S, Finding, fault, ok, report, unreachable
from reput_cli.options import Settings, shared_options
from reput_cli.output import duration_text
from reput_protocol.errors import ReputError
from reput_protocol.printable import counted
from reput_protocol.quantities import size_text

if TYPE_CHECKING:
    from reput_client import ClusterMember

BEHIND_S = 10.0
"""A slave that lacks messages older than this is far behind, as in the alert ReplicationLag."""
BEHIND_B = 256 << 20
TABLES_S = 120.0
"""As in the alert ReplicaTablesOld."""


@click.command("cluster")
@shared_options
def command(settings: Settings) -> int:
    """Check that every broker of the cluster has one master, that slaves follow it, and that clocks agree."""
    return report(settings, examine(settings))


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield the findings about the cluster: ask the server for its members, and each member for its state."""
    try:
        with settings.admin() as admin:
            members = admin.cluster_members()
    except ReputError as error:
        yield unreachable(settings.server, error)
        return
    states: dict[str, Mapping[str, Any]] = {}
    asked_at: dict[str, float] = {}
    for member in members:
        if member.error is None:
            try:
                with replace(settings, server=member.address).admin() as admin:
                    states[member.address] = admin.describe_broker()
                    asked_at[member.address] = time.time()
            except ReputError:
                continue  # a broker of RocketMQ
    yield from check_members(members, states)
    skews = {address: state["clock_ms"] / 1000 - asked_at[address] for address, state in states.items()}
    yield check_clocks(skews)


def check_members(members: Sequence[ClusterMember], states: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the findings about members.

    Args:
        members: as the name service lists them.
        states: what those of Reput report, by address, as on their page /status (`Admin.describe_broker`).
    """
    silent = [member for member in members if member.error is not None]
    for member in silent:
        yield fault(
            f"broker {member.broker_name}/{member.broker_id}",
            f"{member.address} does not report",
            str(member.error).splitlines()[0],
            "start it, or check the network to it; its address comes from its option advertise",
        )
    if not silent:
        yield ok("brokers", f"{counted(len(members), 'broker')} report")
    by_name: dict[str, list[ClusterMember]] = defaultdict(list)
    for member in members:
        by_name[member.broker_name].append(member)
    for name, group in by_name.items():
        yield _check_master(name, group, states)
        yield from _check_slaves(name, group, states)


def _check_master(name: str, group: Sequence[ClusterMember], states: Mapping[str, Mapping[str, Any]]) -> Finding:
    masters = [member for member in group if member.takes_messages]
    check = f"master of {name}"
    if len(masters) > 1:
        places = ", ".join(member.address for member in masters)
        return fault(
            check,
            f"{len(masters)} brokers accept messages: {places}",
            "two brokers have one name and are both configured as masters",
            "give one of them another broker_name, or ha.role = SLAVE",
        )
    elections = [states[member.address].get("election") for member in group if member.address in states]
    reasons = [election["reason"] for election in elections if election and election.get("reason")]
    if not masters:
        return fault(
            check,
            "no broker accepts messages",
            f"the election has no result: {reasons[0]}" if reasons else "the master is down",
            "check that most members of etcd (or Kubernetes) run and are reached, then the log event of each broker"
            if any(elections)
            else "start the master, or make a slave the master: docs/cluster.md",
        )
    check_of = states.get(masters[0].address, {}).get("checks", {}).get("replication", {"ok": True})
    if not check_of["ok"]:
        return fault(
            check,
            f"{masters[0].address} has too few copies",
            check_of["detail"],
            "start the missing slaves; to continue without: reput config set ha.in_sync_replicas=1",
        )
    return ok(check, f"{masters[0].address}, {counted(masters[0].in_sync or 1, 'copy', 'copies')} in sync")


def _check_slaves(
    name: str, group: Sequence[ClusterMember], states: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    for member in group:
        if member.is_master or member.takes_messages or member.error is not None:
            continue
        check = f"slave {name}/{member.broker_id}"
        state = states.get(member.address, {})
        behind_s = float(state.get("behind_s") or 0.0)
        if not member.is_copying:
            yield fault(
                check,
                f"{member.address} receives no log",
                str(state.get("replication") or "it is not connected to its master"),
                "check the master's ha_port from there; the slave's log event replication_stopped says more",
            )
        elif (member.lag_bytes or 0) > BEHIND_B or behind_s > BEHIND_S:
            yield fault(
                check,
                f"{member.address} is {size_text(member.lag_bytes or 0)} and {duration_text(behind_s)} behind",
                "it has just started, or its disk or the network is slower than the master's",
                "reput cluster status, again in a minute; then its disk: iostat -x 5",
            )
        elif float(state.get("tables_age_s") or 0.0) > TABLES_S:
            yield fault(
                check,
                f"{member.address} has not compared offsets, topics and groups for "
                + duration_text(float(state["tables_age_s"])),
                "the master does not respond in time, or its disk is full",
                "the slave's log events tables_not_synchronized and table_not_taken_over",
            )
        else:
            yield ok(check, f"{member.address} is {size_text(member.lag_bytes or 0)} behind")


def check_clocks(skews: Mapping[str, float]) -> Finding:
    """Compare clocks.

    Args:
        skews: seconds that each member's clock is ahead of this machine's, by address.
    """
    if not skews:
        return ok("clocks", "no broker to compare")
    low, high = min(skews, key=skews.__getitem__), max(skews, key=skews.__getitem__)
    if skews[high] - skews[low] > CLOCK_S:
        return fault(
            "clocks",
            f"the clock of {high} is {duration_text(skews[high] - skews[low])} ahead of that of {low}",
            "a machine does not synchronize its clock; delays and retention differ after a failover",
            "timedatectl on both; start chrony or systemd-timesyncd",
        )
    return ok("clocks", f"within {duration_text(CLOCK_S)} of each other")
