"""Bugs that a harness plants in the product to prove that it notices them, and its option `--bug`.

None of them is reachable from the product.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

NONE: Final = "none"
ONLY: Final = "only"


@dataclass(frozen=True)
class Bug:
    """A bug; a harness adds what has to notice it, and what has to happen for that.

    Attributes:
        plant: changes the running program; its docstring says what goes wrong then.
    """

    plant: Callable[..., Any]

    @property
    def name(self) -> str:
        """What `--bug` calls it: the name of its function."""
        return self.plant.__name__

    @property
    def story(self) -> str:
        """What goes wrong."""
        return str(self.plant.__doc__)


B = TypeVar("B", bound=Bug)


def table_of(bugs: Iterable[B]) -> dict[str, B]:
    """Return bugs by name.

    Raises:
        ValueError: two have the same name, and only one of them would be planted.
    """
    table: dict[str, B] = {}
    for bug in bugs:
        if bug.name in table:
            raise ValueError(f"two planted bugs have the name {bug.name}")
        table[bug.name] = bug
    return table


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
