"""`reput cluster ...`: the brokers of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode

if TYPE_CHECKING:
    from reput_client import ClusterMember

_COLUMNS = (
    "cluster", "broker", "broker_id", "member", "role", "address", "epoch", "end_offset", "lag_bytes", "slaves",
    "in_sync", "state",
)  # fmt: skip


@click.group()
def command() -> None:
    """Show the brokers of a cluster."""


@command.command()
@shared_options
def status(settings: Settings) -> int:
    """List every broker that the name service has, with its role, its log and its copies.

    A master shows how many slaves are connected and how many copies are in sync, its own included; a slave how much of
    its master's log it lacks. Of a group that elects its master, `member` is the number that `reput broker promote`
    takes; `broker_id` is the id under which clients find the broker now.
    """
    with settings.admin() as admin:
        members = admin.cluster_members()
    Printer(settings).rows(
        _COLUMNS,
        [
            (
                member.cluster,
                member.broker_name,
                member.broker_id,
                member.number,
                "master" if member.is_master else "slave",
                member.address,
                member.epoch,
                member.end_offset,
                member.lag_bytes,
                member.slaves,
                member.in_sync,
                _state(member),
            )
            for member in members
        ],
    )
    return ExitCode.DONE


def _state(member: ClusterMember) -> str:
    if member.error is not None:
        return f"no report: {member.error}"
    if member.is_master:
        return "serves" if member.takes_messages else "is not a master"
    return "copies" if member.is_copying else "does not copy"
