"""`reput broker ...`: the broker itself."""

from __future__ import annotations

import click

from reput_cli.exit_codes import ExitCode
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_client.blocking import Admin


@click.group()
def command() -> None:
    """Ask a broker about itself."""


@command.command()
@shared_options
def status(settings: Settings) -> int:
    """Print the broker's runtime figures."""
    with Admin(settings.server, timeout_s=settings.timeout_s) as admin:
        figures = admin.broker_status()
    Printer(settings).fields(dict(sorted(figures.items())))
    return ExitCode.DONE
