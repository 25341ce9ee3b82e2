"""Options by their dotted key (`store.flush`), as people read them: value, origin, unit, live or not, meaning."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reput_broker.config.units import is_duration, is_size, public_url
from reput_protocol.commands.operation import ConfigOption
from reput_protocol.units import format_duration, format_size

if TYPE_CHECKING:
    from reput_broker.config.model import BrokerConfig


_UNITS = {"duration": "s", "size": "B"}
_FIRST_SENTENCE: Final = re.compile(r".*?\.(?= |$)")


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
    texts = option_texts(type(config))
    return [
        OptionRow(
            key,
            shown(field, option_value(config, key)),
            config.origins.get(key, "default"),
            "duration" if is_duration(field) else "size" if is_size(field) else "",
            is_live(field),
            _first_sentence(texts[key]),
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
        escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, tuple):
        return f"[{', '.join(written(field, item) for item in value)}]"
    return str(value)


def digest(config: BrokerConfig) -> str:
    """Return 12 hex digits that are the same for equal configurations, whatever the origin of their values."""
    text = "\n".join(
        f"{key}={shown(field, option_value(config, key))}"
        for key, field in option_fields(type(config)).items()
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def option_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return every option of `model` and its sections, by dotted key, in the order of declaration."""
    return {key: owner.model_fields[key.rpartition(".")[2]] for key, owner in _owners(model)}


@cache
def option_texts(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the text below the declaration of every option of `model` and its sections, by dotted key."""
    return {
        key: _texts_in(owner.__module__)[owner.__name__, key.rpartition(".")[2]]
        for key, owner in _owners(model)
    }


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


def _first_sentence(text: str) -> str:
    found = _FIRST_SENTENCE.match(" ".join(text.split()))
    assert found is not None, text
    return found[0]


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
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
