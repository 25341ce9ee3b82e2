"""What a change of an administrator would do. The command line prints it for `--dry-run`, the console shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would do; nothing was changed to find out.

    Attributes:
        text: what will change, in a sentence.
        notes: more sentences: what stays, what may surprise.
        columns, rows: a table, such as the offsets of each queue before and after.
        brokers: of each row the broker, to be shown if there are several.
        loses: what is lost that a confirmation should name; None if nothing is, or `text` says it.
        is_change: whether anything would change.
        obstacle: why the change is refused; None if it is not.
        remedy: what to do about the obstacle.
        can_force: whether the change can be made in spite of the obstacle.
    """

    text: str
    notes: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str | int | None]] = ()
    brokers: Sequence[str] = ()
    loses: str | None = None
    is_change: bool = True
    obstacle: str | None = None
    remedy: str | None = None
    can_force: bool = False
