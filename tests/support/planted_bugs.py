"""The option `--bug` of the harnesses: plants bugs in the product, so that a harness proves that it notices them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from typing import Final

NONE: Final = "none"
ONLY: Final = "only"


def add_bug_option(parser: ArgumentParser, names: Sequence[str] = ()) -> None:
    """Add `--bug`: `none` plants nothing, `only` plants each bug, a name that one; the last two run nothing else.

    Args:
        names: of the bugs; none if they can be imported only later.
    """
    of_names = f": {', '.join(names)}" if names else ""
    parser.add_argument(
        "--bug",
        choices=[NONE, ONLY, *names] if names else None,
        default=NONE,
        metavar="none|only|NAME",
        help=f"plant each bug (only), or the one of this name, in place of the other runs{of_names}",
    )


def chosen_bugs(chosen: str, names: Iterable[str]) -> list[str]:
    """Return the names of the bugs that the value of `--bug` stands for."""
    return {NONE: [], ONLY: [*names]}.get(chosen, [chosen])
