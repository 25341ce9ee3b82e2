"""The options of a configuration as people read them: value, origin, unit, live or not, meaning."""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import (
    is_live,
    is_secret,
    option_fields,
    option_texts,
    option_value,
    plain,
    public,
    shown,
    written,
)
from reput_broker.config.value_types import is_duration, is_size
from reput_protocol.commands.operation import ConfigOption

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
            else public(plain(option_value(config, row.key))),
            row.value,
            row.source,
            _UNITS.get(row.unit, ""),
            row.live,
            row.default,
            row.description,
        )
        for row in describe(config)
    ]


def digest(config: BrokerConfig) -> str:
    """Return 12 hex digits that are the same for equal configurations, whatever the origin of their values."""
    text = "\n".join(
        f"{key}={shown(field, option_value(config, key))}" for key, field in option_fields(type(config)).items()
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _first_sentence(text: str) -> str:
    found = _FIRST_SENTENCE.match(" ".join(text.split()))
    assert found is not None, text
    return found[0]
