"""`reput store ...`: work on a store directory, Reput's or RocketMQ's, without a broker.

A file for each command; `directory` is shared.
"""

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

    A directory that a running broker has open is refused. Only repair and rebuild change anything in it.
    """


for _subcommand in (verify, dump, repair, rebuild, export):
    command.add_command(_subcommand)
