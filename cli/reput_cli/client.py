"""`reput client ...`: the connections of a broker."""

from __future__ import annotations

import click

from reput_cli.options import Settings, broker_option, shared_options
from reput_cli.output import Printer
from reput_cli.preview import dry_run_option, show
from reput_protocol.exit_codes import ExitCode


@click.group()
def command() -> None:
    """List the clients of a broker, and disconnect one."""


@command.command(name="list")
@click.option(
    "--role", type=click.Choice(["producer", "consumer", "admin", "broker", "unknown"]), help="Only this role."
)
@broker_option
@shared_options
def list_clients(settings: Settings, role: str | None, name: str | None) -> int:
    """List the connections of the broker, this command's own included.

    The role follows from the requests of a connection so far. Client id, groups, language and version are known for
    group members, and for producers of RocketMQ's clients.
    """
    with settings.admin() as admin:
        clients = [client for client in admin.list_clients(name) if role in (None, client.role)]
    printer = Printer(settings)
    idle, connected = ("idle", "connected") if printer.is_table else ("idle_s", "connected_s")

    printer.rows(
        ["role", "client_id", "groups", "address", "language", "version", "protocol", "listener", idle, connected],
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
                printer.duration(client.idle_millis),
                printer.duration(client.connected_millis),
            )
            for client in sorted(clients, key=lambda one: (one.role, one.client_id or "", one.address))
        ],
    )
    return ExitCode.DONE


@command.command()
@click.argument("address")
@dry_run_option
@broker_option
@shared_options
def disconnect(settings: Settings, address: str, dry_run: bool, name: str | None) -> int:
    """Close the connection of the client at ADDRESS, as `reput client list` shows it.

    The client reconnects. To keep it out, remove its rights, or stop its program.
    """
    with settings.admin() as admin:
        if dry_run:
            show(settings, admin.preview_disconnect_client(address, broker_name=name))
            return ExitCode.DONE
        admin.disconnect_client(address, broker_name=name)
    Printer(settings).note(f"connection of {address} closed")
    return ExitCode.DONE
