"""`reput dlq ...`: dead letters, the messages that a consumer group has given up."""

from __future__ import annotations

import click

from reput_cli.dlq.listing import list_dead_letters, peek
from reput_cli.dlq.purge import purge
from reput_cli.dlq.replay import replay


@click.group()
def command() -> None:
    """List, show, replay and purge dead letters: messages that a consumer group has given up.

    GROUP is the consumer group. Its dead letters are in the topic %DLQ%GROUP until they expire like all messages.
    """


for _subcommand in (list_dead_letters, peek, replay, purge):
    command.add_command(_subcommand)
