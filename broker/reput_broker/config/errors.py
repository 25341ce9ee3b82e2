"""Mistakes in a configuration: all of them at once, each with its key, origin and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pydantic import ValidationError

from reput_broker.config.environment import FILE_SUFFIX, variable_of
from reput_broker.config.options import is_secret
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake: its key, the origin of the value, and what is wrong."""

    key: str
    origin: str
    """A file name, an environment variable, a flag, or `code`."""
    problem: str
    nearest: str | None = None
    """The valid key that an unknown key resembles most."""

    def __str__(self) -> str:
        hint = f'; did you mean "{self.nearest}"?' if self.nearest else ""
        key = f"{self.key}: " if self.key else ""
        return f"{key}{self.problem}{hint} (from {self.origin})"


class ConfigError(ReputError, ValueError):
    """The configuration cannot be used. `problems` has every mistake; nothing was started or changed."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        self.problems: Sequence[ConfigProblem] = tuple(problems)
        count = len(self.problems)
        head = "the configuration has a mistake" if count == 1 else f"the configuration has {count} mistakes"
        super().__init__("\n  ".join([head + ":", *map(str, self.problems)]))


def nearest_key(key: str, valid: Iterable[str]) -> str | None:
    """Return the valid key that `key` resembles most, by its whole path or by its last part; else None."""
    names = list(valid)
    close = get_close_matches(key, names, n=1, cutoff=0.6)
    if close:
        return close[0]
    last = key.rpartition(".")[2]
    by_last = {name.rpartition(".")[2]: name for name in reversed(names)}
    close = get_close_matches(last, list(by_last), n=1, cutoff=0.7)
    return by_last[close[0]] if close else None


def file_variable_hint(key: str) -> str:
    """Say how the value of the option `key` is read from a file."""
    return f"the environment variable {variable_of(key)}{FILE_SUFFIX} names the file with {key}"


def problems_of(
    error: ValidationError, origins: Mapping[str, str], fields: Mapping[str, FieldInfo]
) -> list[ConfigProblem]:
    """Translate pydantic's errors into problems; a key without an entry in `origins` came from code.

    Args:
        fields: every option, by its key.
    """
    keys = list(fields)
    names = keys + sorted({key.rpartition(".")[0] for key in keys if "." in key})
    problems = []
    for detail in error.errors(include_url=False):
        key = ".".join(part for part in detail["loc"] if isinstance(part, str))
        origin = _origin_of(key, origins)
        if detail["type"] != "extra_forbidden":
            problems.append(ConfigProblem(key, origin, _explain(detail)))
            continue
        # The nearest key of a secret's file would be the secret itself, and the path its value.
        secret = key.removesuffix(FILE_SUFFIX.lower())
        if secret in fields and is_secret(fields[secret]):
            problems.append(ConfigProblem(key, origin, f"unknown key; {file_variable_hint(secret)}"))
            continue
        near = nearest_key(key, names)
        if near is not None and near in fields and is_secret(fields[near]) and key.endswith("file"):
            near = None
        problems.append(ConfigProblem(key, origin, "unknown key", near))
    return problems


def _origin_of(key: str, origins: Mapping[str, str]) -> str:
    # A section that is not a table has no entry of its own, but its members may have.
    below = (origin for name, origin in origins.items() if name.startswith(key + "."))
    return origins.get(key) or next(below, "code")


def _explain(detail: ErrorDetails) -> str:
    kind, given = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"{context['expected']} is needed, not {given!r}"
    if kind in ("model_type", "dict_type"):
        return f"this is a section: a table of options is needed, not {given!r}"
    if "type" in kind or "parsing" in kind or kind in _NEEDED:
        needed = _NEEDED.get(kind) or _NEEDED.get(kind.rpartition("_")[0], detail["msg"])
        return f"{needed} is needed, not {given!r}"
    if kind in _BOUNDS:
        return f"{given!r} is out of range: it must be {_BOUNDS[kind]} {next(iter(context.values()))}"
    return detail["msg"]


_NEEDED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "string": "a text",
    "is_instance_of": "a path",
    "path": "a path",
}
_BOUNDS = {"greater_than_equal": "at least", "less_than_equal": "at most"}
