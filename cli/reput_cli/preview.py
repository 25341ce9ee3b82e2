"""Dry runs and questions before a change, from the client's `Preview`, which the console shows too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from reput_cli.failures import CommandFailed
from reput_cli.options import Settings
from reput_cli.output import Printer
from reput_client.preview import Preview
from reput_protocol.exit_codes import ExitCode

_Command = TypeVar("_Command", bound=Callable[..., Any])


def dry_run_option(command: _Command) -> _Command:
    """Add the option --dry-run, which the command receives as `dry_run`."""
    return click.option("--dry-run", is_flag=True, help="Only print what would change.")(command)


def show(settings: Settings, preview: Preview) -> None:
    """Print what a change would do: a table if it has one, and notes."""
    printer = Printer(settings)
    if preview.columns:
        brokers = preview.brokers or [""] * len(preview.rows)
        printer.rows_by_broker(
            list(preview.columns), [(broker, tuple(row)) for broker, row in zip(brokers, preview.rows, strict=True)]
        )
    for text in (preview.text, preview.loses, *preview.notes):
        if text is not None:
            printer.note(text)


def may_proceed(
    settings: Settings,
    preview: Preview,
    failed: str,
    *,
    dry_run: bool,
    force: bool = False,
    name: str | None,
    question: str,
) -> bool:
    """Show a preview, and return whether to make the change: not in a dry run, and not if nothing would change.

    Args:
        failed: what has not been done if it is refused: `group billing was not changed`.
        force: make it in spite of an obstacle that permits that.
        name: what has to be typed to confirm it, unless --yes is given; None: nothing.
        question: what to ask for: `type its name to delete it`.

    Raises:
        CommandFailed: there is an obstacle, or the name was not typed.
    """
    refuse(preview)
    show(settings, preview)
    if dry_run:
        Printer(settings).note("nothing was changed")
        return False
    if preview.obstacle is not None and not force:
        raise CommandFailed(failed, reason=preview.obstacle, remedy=preview.remedy)
    if not preview.is_change:
        return False
    if name is not None:
        confirm(settings, name, question, failed)
    return True


def confirm(settings: Settings, name: str, question: str, failed: str, *, needs_terminal: bool = False) -> None:
    """Return if the user types a name, or has given --yes.

    Args:
        question: what to ask for: `type the group's name to send them`.
        failed: the error without that: `the dead letters of billing were not sent`.
        needs_terminal: whether a pipe confirms nothing.

    Raises:
        CommandFailed: another name was typed, or there is no terminal.
    """
    if settings.yes:
        return
    if needs_terminal and not sys.stdin.isatty():
        raise CommandFailed(
            failed, reason="there is no terminal to ask for confirmation", remedy="--yes", code=ExitCode.USAGE
        )
    if click.prompt(question, err=True) != name:
        raise CommandFailed(failed, reason="the name was not typed")


def refuse(preview: Preview) -> None:
    """Raise CommandFailed if there is an obstacle that cannot be overcome by force."""
    if preview.obstacle is not None and not preview.can_force:
        reason = "; ".join(note for note in preview.notes if note != preview.obstacle)
        raise CommandFailed(preview.obstacle, reason=reason or None, remedy=preview.remedy)
