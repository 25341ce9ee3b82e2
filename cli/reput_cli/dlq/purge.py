"""`reput dlq purge`: delete all dead letters of a group."""

from __future__ import annotations

import click

from reput_cli.completion import GROUP
from reput_cli.dlq.letters import letters_of
from reput_cli.failures import CommandFailed
from reput_cli.options import Settings, shared_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted


@click.command()
@click.argument("group", type=GROUP)
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@shared_options
def purge(settings: Settings, group: str, dry_run: bool) -> int:
    """Delete all dead letters of GROUP. Asks for the group's name unless --yes is given.

    A log cannot delete single messages, so this deletes the topic %DLQ%GROUP with all dead letters, replayed or not,
    and with the progress of replays. The group's next dead letter creates the topic again. Nothing is deleted if
    dead letters have been added since they were counted.
    """
    printer = Printer(settings)
    with settings.admin() as admin:
        letters = letters_of(admin, group)
        left = len(letters.after(admin.replay_progress(letters)))
        printer.note(
            f"topic {letters.topic}: {counted(len(letters), 'dead letter')}, {left} not replayed yet"
        )
        if dry_run:
            return ExitCode.DONE
        if not settings.yes and click.prompt("type the group's name to delete them", err=True) != group:
            raise CommandFailed(
                f"the dead letters of {group} were not deleted", reason="the name was not typed"
            )
        now = letters_of(admin, group)
        more = len(now.after({name: end for name, (_, end) in letters.spans.items()}))
        if more:
            raise CommandFailed(
                f"the dead letters of {group} were not deleted",
                reason=f"{counted(more, 'more has', 'more have')} been added since they were counted",
                remedy=f"reput dlq peek {group} -o -{more}, then purge again",
            )
        admin.delete_topic(letters.topic)
    printer.note(f"topic {letters.topic} deleted")
    return ExitCode.DONE
