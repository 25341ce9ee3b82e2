"""`reput broker ...`: a broker's runtime figures, and which broker of a group is the master."""

from __future__ import annotations

import re
from dataclasses import replace

import click

from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_protocol.commands.election import Promotion
from reput_protocol.errors import NotMaster
from reput_protocol.exit_codes import ExitCode

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,19}\.[0-9]{1,19}")


@click.group()
def command() -> None:
    """Show a broker's runtime figures; make a broker the master of its group."""


@command.command()
@shared_options
def status(settings: Settings) -> int:
    """Print the broker's runtime figures. In JSON they are numbers, booleans and strings."""
    with settings.admin() as admin:
        figures = admin.broker_status()
    printer = Printer(settings)
    printer.fields(
        {name: _value(text) if printer.is_json else text for name, text in sorted(figures.items())}
    )
    return ExitCode.DONE


@command.command()
@click.argument("broker_id", type=click.IntRange(0))
@click.option(
    "--force", is_flag=True, help="Even a member that is not in sync: messages that it has not are lost."
)
@shared_options
def promote(settings: Settings, broker_id: int, force: bool) -> int:
    """Make the member BROKER_ID the master of its group.

    Any member may be asked. The master refuses new messages, waits until the member has all of the log, and hands over;
    nothing is lost. Without a master, --force makes the member that is asked the master.
    """
    if force and not settings.yes:
        click.confirm(
            f"Messages that broker {broker_id} does not have are lost. Continue?", abort=True, err=True
        )
    made = _promote(settings, broker_id, force)
    lost_b = made.end_offset - made.kept_offset
    printer = Printer(settings)
    printer.fields(
        {
            "broker_id": made.broker_id,
            "end_offset": made.end_offset,
            "kept_offset": made.kept_offset,
            "lost_b": lost_b,
        }
    )
    if lost_b:
        printer.note(
            f"{lost_b} bytes from offset {made.kept_offset} on are kept in a file of the old master only"
        )
    return ExitCode.DONE


def _promote(settings: Settings, broker_id: int, force: bool) -> Promotion:
    """Ask the broker that the settings name, and the master that it names instead."""
    with settings.admin() as admin:
        try:
            return admin.promote_broker(broker_id, force=force)
        except NotMaster as error:
            master = error.ext.get("master")
            if not master:
                raise
    with replace(settings, server=str(master)).admin() as admin:
        return admin.promote_broker(broker_id, force=force)


def _value(text: str) -> str | int | float | bool:
    """Return a figure with its type: on the wire, as in RocketMQ, all figures are text."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
