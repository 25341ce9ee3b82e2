"""`reput client ...`: the connections of a broker."""

from __future__ import annotations

import click

from reput_cli.options import Settings, broker_option, shared_options
from reput_cli.output import Printer, duration_text
from reput_protocol.exit_codes import ExitCode


@click.group()
def command() -> None:
    """List the clients of a broker."""


@command.command(name="list")
@click.option(
    "--role",
    type=click.Choice(["producer", "consumer", "admin", "broker", "unknown"]),
    help="Only this role.",
)
@broker_option
@shared_options
def list_clients(settings: Settings, role: str | None, name: str | None) -> int:
    """List the connections of the broker, this command's own included.

    The role follows from the requests of a connection so far. Client id, groups, language and version are known of
    group members, and of producers of RocketMQ's clients.
    """
    with settings.admin() as admin:
        clients = [client for client in admin.list_clients(name) if role in (None, client.role)]
    printer = Printer(settings)
    idle, connected = ("idle", "connected") if printer.is_table else ("idle_s", "connected_s")

    def age(millis: int) -> str | float:
        return duration_text(millis / 1000) if printer.is_table else millis / 1000

    printer.rows(
        [
            "role",
            "client_id",
            "groups",
            "address",
            "language",
            "version",
            "protocol",
            "listener",
            idle,
            connected,
        ],
        [
            (
                client.role,
                client.client_id,
                client.groups if printer.is_json else " ".join(client.groups) or None,
                client.address,
                client.language,
                client.version,
                client.protocol,
                client.listener,
                age(client.idle_millis),
                age(client.connected_millis),
            )
            for client in sorted(clients, key=lambda one: (one.role, one.client_id or "", one.address))
        ],
    )
    return ExitCode.DONE
