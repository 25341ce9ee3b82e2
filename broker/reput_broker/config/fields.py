"""Options by their dotted key (`store.flush`) instead of by nested sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def option_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return every option of `model` and of its sections, by dotted key, in the order of declaration."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            fields |= option_fields(field.annotation, f"{prefix}{name}.")
        else:
            fields[prefix + name] = field
    return fields


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted key; a section that is empty or no mapping stays as it is."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `flatten`. Of two keys of which one is a section's own name, the section's members win."""
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
