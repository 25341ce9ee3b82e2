"""`reput doctor ...`: numbered checks, each with what was found, its cause, and what to do next.

A file for each subject; `findings` is shared.
"""

from __future__ import annotations

import click

from reput_cli.doctor import broker, cluster, machine, proxy


class _BrokerByDefault(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `reput doctor --server X` as `reput doctor broker --server X`."""
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["broker", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_BrokerByDefault)
def command() -> None:
    """Check a broker, or the named object, and print each fault with a remedy.

    Exits with 0 if there is none, otherwise with the code of the first: 3 if the broker cannot be reached, 7 if files
    are damaged, mostly 1.
    """


for _subcommand in (broker.broker, broker.group, cluster.command, proxy.command, machine.store, machine.container):
    command.add_command(_subcommand)
