"""`reput dlq ...`: commands in `listing` (list, peek, purge) and `replay`; `letters` reads and filters dead letters."""

from __future__ import annotations

import click

from reput_cli.dlq.listing import list_dead_letters, peek, purge
from reput_cli.dlq.replay import replay


@click.group()
def command() -> None:
    """List, show, replay and purge dead letters: messages that a consumer group could not handle.

    The dead letters of a consumer group GROUP are in the topic %DLQ%GROUP, and expire like all messages.
    """


for _subcommand in (list_dead_letters, peek, replay, purge):
    command.add_command(_subcommand)
