"""Which options there are, for the source and for the sink, and what becomes of one that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

SOURCE_OPTIONS: Final = (
    "nameServer",
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "failOnDataLoss",
    "onDamage",
    "includeHeaders",
    "subExpression",
    "columns",
    "select",
    "groupId",
    "pullTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Every option of the source as it is written; Spark compares them without regard to case."""


class OptionError(ValueError):
    """An option is unknown, has a value that it cannot have, or contradicts another. Nothing was read or written."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option}: {reason}")
        self.option = option
        self.reason = reason


def check_names(given: Iterable[str], known: Iterable[str], role: str = "source") -> dict[str, str]:
    """Return the given names by the way that they are documented, each mapped to the way it was written.

    Args:
        given: names in any case.
        known: the options of this side, `SOURCE_OPTIONS` or the sink's.
        role: what the options belong to, for the message.

    Raises:
        OptionError: one of them is none of the known; it names the nearest.
    """
    by_lower = {name.lower(): name for name in known}
    found: dict[str, str] = {}
    for name in given:
        proper = by_lower.get(name.lower())
        if proper is None:
            near = difflib.get_close_matches(name.lower(), by_lower, 1, 0.5)
            hint = (
                f"did you mean {by_lower[near[0]]}?" if near else f"it knows {', '.join(by_lower.values())}"
            )
            raise OptionError(name, f"the {role} has no such option; {hint}")
        found[proper] = name
    return found


class OptionReader:
    """Options of one side by their documented names, with their values read as what they have to be."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str], role: str = "source") -> None:
        """Take the options as Spark hands them over.

        Raises:
            OptionError: one of them is unknown.
        """
        names = check_names(options, known, role)
        self._values = {proper: str(options[written]).strip() for proper, written in names.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """Return the value of an option, or None if it was not given.

        Raises:
            OptionError: it is empty.
        """
        value = self._values.get(name)
        if value == "":
            raise OptionError(name, "is empty; give it a value or leave it out")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of `choices`, in any case written, or the default."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in choices:
            raise OptionError(name, f"is {value!r}; it is one of {', '.join(choices)}")
        return value.lower()

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """Return a whole number of at least `least`, or the default."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal() and int(value) >= least):
            raise OptionError(name, f"is {value!r}; it is a whole number from {least} on")
        return int(value)

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Refuse options that mean nothing here.

        Raises:
            OptionError: one of them was given.
        """
        for name in names:
            if name in self._values:
                raise OptionError(name, reason)

    def exactly_one(self, *names: str) -> str:
        """Return which of the names was given.

        Raises:
            OptionError: none was, or more than one.
        """
        given = [name for name in names if name in self._values]
        if not given:
            raise OptionError(names[0], f"is missing; give exactly one of {', '.join(names)}")
        if len(given) > 1:
            raise OptionError(given[1], f"contradicts {given[0]}; give exactly one of {', '.join(names)}")
        return given[0]
