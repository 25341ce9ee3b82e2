"""`reput broker ...`: a broker's runtime figures."""

from __future__ import annotations

import re

import click

from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"-?[0-9]{1,19}\.[0-9]{1,19}")


@click.group()
def command() -> None:
    """Show a broker's runtime figures."""


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


def _value(text: str) -> str | int | float | bool:
    """Return a figure with its type: on the wire, as in RocketMQ, all figures are text."""
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text
