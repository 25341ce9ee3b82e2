"""`reput store ...`: a store directory without a broker, Reput's own or RocketMQ's."""

from __future__ import annotations

import click

from reput_cli.store.dump import dump
from reput_cli.store.export import export
from reput_cli.store.rebuild import rebuild
from reput_cli.store.repair import repair
from reput_cli.store.verify import verify


@click.group()
def command() -> None:
    """Verify, dump, repair, rebuild and export a store directory, offline.

    They refuse a directory that a running broker has. All but repair and rebuild change nothing, not a byte.
    """


for _subcommand in (verify, dump, repair, rebuild, export):
    command.add_command(_subcommand)
