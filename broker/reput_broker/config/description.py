"""Options by their dotted key (`store.flush`), as people read them: value, origin, unit, live or not, meaning."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reput_broker.config.units import is_duration, is_size, public_url
from reput_protocol.commands.operation import ConfigOption
from reput_protocol.units import format_duration, format_size

if TYPE_CHECKING:
    from reput_broker.config.model import BrokerConfig


_UNITS = {"duration": "s", "size": "B"}


class OptionRow(NamedTuple):
    """One option; `value` and `default` are written as in a configuration file."""

    key: str
    value: str
    source: str
    unit: str
    live: bool
    description: str
    default: str


def describe(config: BrokerConfig) -> list[OptionRow]:
    """Return a row for every option of `config`, in the order of `conf/broker.toml`."""
    return [
        OptionRow(
            key,
            shown(field, option_value(config, key)),
            config.origins.get(key, "default"),
            "duration" if is_duration(field) else "size" if is_size(field) else "",
            is_live(field),
            field.description or "",
            written(field, field.default),
        )
        for key, field in option_fields(type(config)).items()
    ]


def config_options(config: BrokerConfig) -> list[ConfigOption]:
    """Return every option with its value and its source, as administrators get it: without secrets."""
    fields = option_fields(type(config))
    return [
        ConfigOption(
            row.key,
            "***"
            if is_secret(fields[row.key]) and option_value(config, row.key)
            else _public(_plain(option_value(config, row.key))),
            row.value,
            row.source,
            _UNITS.get(row.unit, ""),
            row.live,
            row.default,
            row.description,
        )
        for row in describe(config)
    ]


def shown(field: FieldInfo, value: Any) -> str:
    """Return a value like `written`, and stars for a secret and for the secret part of a URL."""
    return '"***"' if value and is_secret(field) else written(field, _public(value))


def _public(value: Any) -> Any:
    return public_url(value) if isinstance(value, str) and "://" in value else value


def is_secret(field: FieldInfo) -> bool:
    """Tell whether the option's value is never shown."""
    return _is_marked(field, "secret")


def is_live(field: FieldInfo) -> bool:
    """Tell whether the option can change while the broker runs."""
    return _is_marked(field, "live")


def _is_marked(field: FieldInfo, mark: str) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(mark))


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


def digest(config: BrokerConfig) -> str:
    """Return 12 hex digits that are the same for equal configurations, whatever the origin of their values."""
    text = "\n".join(f"{row.key}={row.value}" for row in describe(config))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def option_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Return every option of `model` and its sections, by dotted key, in the order of declaration."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            fields |= option_fields(field.annotation, f"{prefix}{name}.")
        else:
            fields[prefix + name] = field
    return fields


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


def _plain(value: Any) -> Any:
    """Return a value of the configuration as JSON has it."""
    if isinstance(value, Path):
        return path_text(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
