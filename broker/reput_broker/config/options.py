"""Options by their dotted key (`store.flush`): the rows that the models declare, their values and texts."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reput_broker.config.value_types import is_duration, is_size, public_url
from reput_protocol.quantities import format_duration, format_size


def shown(field: FieldInfo, value: Any) -> str:
    """Return a value like `written`, and stars for a secret and for the secret part of a URL."""
    return '"***"' if value and is_secret(field) else written(field, public(value))


def public(value: Any) -> Any:
    """Return a value without the secret part of a URL."""
    return public_url(value) if isinstance(value, str) and "://" in value else value


def is_secret(field: FieldInfo) -> bool:
    """Tell whether the option's value is never shown."""
    return bool(_noted(field, "secret"))


def is_live(field: FieldInfo) -> bool:
    """Tell whether the option can change while the broker runs."""
    return bool(_noted(field, "live"))


def rocketmq_name(field: FieldInfo) -> str:
    """Return RocketMQ's name of the option; "" if RocketMQ does not have it."""
    return str(_noted(field, "rocketmq") or "")


def _noted(field: FieldInfo, name: str) -> object:
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None


def written(field: FieldInfo, value: Any) -> str:
    """Return a value as in a TOML file, durations and sizes with their unit."""
    if value is None:
        return '""'
    if is_duration(field):
        return f'"{format_duration(value)}"'
    if is_size(field):
        return f'"{format_size(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, Path)):
        text = path_text(value) if isinstance(value, Path) else value
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"[{', '.join(written(field, item) for item in value)}]"
    return str(value)


def path_text(path: Path) -> str:
    """Return a path as text that JSON can hold: it may have bytes that are not UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def option_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return every option of `model` and its sections, by dotted key, in the order of declaration."""
    return {key: owner.model_fields[key.rpartition(".")[2]] for key, owner in _owners(model)}


@cache
def option_texts(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the text below the declaration of every option of `model` and its sections, by dotted key."""
    return {key: _texts_in(owner.__module__)[owner.__name__, key.rpartition(".")[2]] for key, owner in _owners(model)}


def section_of(model: type[BaseModel], name: str) -> type[BaseModel]:
    """Return the model of a section."""
    section = model.model_fields[name].annotation
    assert isinstance(section, type)
    assert issubclass(section, BaseModel)
    return section


def _owners(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every option with the model that declares it."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _owners(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, model


@cache
def _texts_in(module: str) -> Mapping[tuple[str, str], str]:
    """Return the texts below the attributes of a module's classes. They are not in memory before they are needed."""
    return {
        (owner.name, field.target.id): inspect.cleandoc(text.value.value)
        for owner in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(owner, ast.ClassDef)
        for field, text in pairwise(owner.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(text.value.value, str)
    }


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key; an empty section, or a value that is not a mapping, stays as it is."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`. If a key is also the name of a section, the members of the section win."""
    nested: dict[str, Any] = {}
    for key, value in sorted(flat.items(), key=lambda item: item[0].count(".")):
        *sections, name = key.split(".")
        level = nested
        for section in sections:
            inner = level.get(section)
            if not isinstance(inner, dict):
                inner = level[section] = {}
            level = inner
        level[name] = value
    return nested


def option_value(config: BaseModel, key: str) -> Any:
    """Return the value of the option with this dotted key."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def plain(value: Any) -> Any:
    """Return a value of the configuration as JSON has it."""
    if isinstance(value, Path):
        return path_text(value)
    return [plain(item) for item in value] if isinstance(value, tuple) else value
