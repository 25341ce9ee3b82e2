"""`reput store ...`: work on a store directory, Reput's or RocketMQ's, without asking a broker.

Each command is in the file of its name, `verify` and `rebuild` in that of `repair`; `directory` is shared.
"""

from __future__ import annotations

import click

from reput_cli.store.dump import dump
from reput_cli.store.export import export
from reput_cli.store.repair import rebuild, repair, verify
from reput_cli.store.snapshot import snapshot


@click.group()
def command() -> None:
    """Verify, dump, repair, rebuild, export and copy a store directory.

    All but snapshot fail for a directory that a running broker has open. Only repair and rebuild change anything in it.
    """


for _subcommand in (verify, dump, repair, rebuild, export, snapshot):
    command.add_command(_subcommand)
