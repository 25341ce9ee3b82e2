"""Have the user confirm what cannot be taken back."""

from __future__ import annotations

import sys

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_protocol.exit_codes import ExitCode


def confirm_group(settings: Settings, group: str, verb: str, what_not: str) -> None:
    """Return if the user types the name of a group on the terminal, or has given --yes.

    Args:
        verb: what is done, as in "to send them".
        what_not: the error if it is not confirmed, as in "the dead letters of billing were not sent".

    Raises:
        CommandFailed: another name was typed, or there is no terminal: a pipe confirms nothing.
    """
    if settings.yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(
            what_not,
            reason="there is no terminal to ask for confirmation",
            remedy="--yes",
            code=ExitCode.USAGE,
        )
    if click.prompt(f"type the group's name to {verb}", err=True) != group:
        raise CommandFailed(what_not, reason="the name was not typed")
