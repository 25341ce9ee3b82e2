"""The options as people read them: a row each with value, origin, unit, whether it is live, and meaning."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from reput_broker.config.fields import option_fields, option_value
from reput_broker.config.model import BrokerConfig
from reput_broker.config.units import format_duration, format_size, is_duration, is_size


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
            written(field, option_value(config, key)),
            config.origins.get(key, "default"),
            "duration" if is_duration(field) else "size" if is_size(field) else "",
            is_live(field),
            field.description or "",
            written(field, field.default),
        )
        for key, field in option_fields(BrokerConfig).items()
    ]


def is_live(field: FieldInfo) -> bool:
    """Tell whether the option can change while the broker runs."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("live"))


def written(field: FieldInfo, value: Any) -> str:
    """Write a value as it stands in a TOML file, durations and sizes with their unit."""
    if value is None:
        return '""'
    if is_duration(field):
        return f'"{format_duration(value)}"'
    if is_size(field):
        return f'"{format_size(value)}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, Path)):
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"[{', '.join(written(field, item) for item in value)}]"
    return str(value)


def digest(config: BrokerConfig) -> str:
    """Return 12 hex digits that are equal for equal configurations, wherever their values came from."""
    text = "\n".join(f"{row.key}={row.value}" for row in describe(config))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
