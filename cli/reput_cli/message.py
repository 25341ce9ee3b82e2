"""`reput message ...`: single messages."""

from __future__ import annotations

import click

from reput_cli import message_lines
from reput_cli.exit_codes import ExitCode
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer, write_line
from reput_client.blocking import Admin
from reput_protocol.errors import NotFound


@click.group()
def command() -> None:
    """Look at single messages."""


@command.command()
@click.argument("message_id")
@shared_options
def get(settings: Settings, message_id: str) -> int:
    """Print the message with this offset message id (32 or 56 hexadecimal digits, as a send prints it)."""
    with Admin(settings.server, timeout_s=settings.timeout_s) as admin:
        try:
            message = admin.view_message(message_id)
        except NotFound as error:
            raise CommandFailed(
                f"no message has the offset message id {message_id}",
                reason=str(error),
                remedy="the offset_message_id that `reput produce -O json` and `reput consume -O json` show; the "
                "message_id is the producer's own and says nothing of the place",
                code=ExitCode.NOT_FOUND,
            ) from error
    if Printer(settings).form == "table":
        write_line(message_lines.block(message))
    else:
        write_line(message_lines.json_line(message))
    return ExitCode.DONE
