"""A command line as click takes it: shared options after the command, and `ls` and `rm` under their names here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

ALIASES = {"ls": ("list",), "rm": ("delete", "remove")}
"""Words that stand for a command of a group: for the first of these that it has."""
_OF_EVERY_COMMAND = ("-h", "--help", "--version")
_BY_DEFAULT = ("doctor",)
"""Groups that take options without a command."""


class UnknownCommand(click.UsageError):
    """A word of a line is not a command: the names before it, and the rest of the line from it on."""

    def __init__(self, path: list[str], rest: list[str], context: click.Context) -> None:
        super().__init__(f"No such command {rest[0]!r}.", context)
        self.path = path
        self.rest = rest


def ordered(root: click.Group, context: click.Context, words: Sequence[str]) -> list[str]:
    """Return the words of a line with shared options, such as --server, behind the command.

    Raises:
        UnknownCommand: a word is not a command; `mistakes.unknown_command` says what was probably meant.
    """
    command: click.Command = root
    path: list[str] = []
    moved: list[str] = []
    rest = list(words)
    while isinstance(command, click.Group):
        moved += _take_shared(rest)
        if not rest:
            return [*path, *(moved if path[-1:] and path[-1] in _BY_DEFAULT else [])]
        if rest[0].startswith("-"):
            break
        word = rest[0]
        name = name_of(command, context, word)
        found = None if name is None else command.get_command(context, name)
        if name is None or found is None:
            if context.resilient_parsing:
                break
            raise UnknownCommand(path, [*rest, *moved], context)
        del rest[0]
        path.append(name)
        command = found
    if "--json" in moved and not any(
        param.name == "wants_json" and isinstance(param, _shared_kind()) for param in command.params
    ):
        # Of `produce` it says what the input is; before the command it is meant as everywhere.
        place = moved.index("--json")
        moved[place : place + 1] = ["-O", "json"]
    return [*path, *moved, *rest]


def name_of(group: click.Group, context: click.Context, word: str) -> str | None:
    """Return the name of the command of a group that a word stands for; None if it stands for none."""
    names = group.list_commands(context)
    return next((name for name in (word, *ALIASES.get(word, ())) if name in names), None)


def _take_shared(rest: list[str]) -> list[str]:
    """Remove the shared options at the beginning of a line, with their values, and return them."""
    if not rest or not rest[0].startswith("-") or rest[0] in _OF_EVERY_COMMAND:
        return []
    takes_value = dict(_shared())
    taken: list[str] = []
    while rest and (name := rest[0].partition("=")[0]) in takes_value:
        taken.append(rest.pop(0))
        if takes_value[name] and "=" not in taken[-1] and rest:
            taken.append(rest.pop(0))
    return taken


def _shared_kind() -> type[click.Option]:
    from reput_cli.options import SharedOption

    return SharedOption


def _shared() -> Iterator[tuple[str, bool]]:
    """Yield the names of the shared options, and whether each takes a value."""
    from reput_cli.options import every_shared_option

    for option in every_shared_option():
        for name in option.opts:
            yield name, not (option.is_flag or option.count)
