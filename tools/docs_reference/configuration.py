"""The page of options, from their rows."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docs_reference.markdown import cell, escaped
from reput_broker.config.environment import OTHER_VARIABLES, variable_of
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import (
    flatten,
    is_live,
    option_fields,
    option_texts,
    rocketmq_name,
    section_of,
    written,
)
from reput_broker.config.value_types import is_duration, is_size
from reput_protocol.quantities import format_duration, format_size

CONF: Final = Path(__file__).resolve().parents[2] / "conf"

HEAD = """\
# Configuration

Order: built-in default < file (`reput serve -c broker.toml`) < environment < flag. Durations need a
unit (`us ms s m h d`), sizes too (`B KB MB GB TB`, `KiB MiB GiB TiB`). The environment variable of
an option is `REPUT_` and its key in capitals, with `__` for a dot: `REPUT_STORE__FLUSH_INTERVAL=500ms`.
With `_FILE` appended, the value is read from the named file.

A *live* option changes while the broker runs: with SIGHUP, `reput config reload` or
`reput config set KEY=VALUE`. The others need a restart. `reput generate config` prints a file with
every option at its default, `reput config check -c FILE` names every mistake in one, and
`reput config show` prints the values of a running broker, with what set each.
"""


def page() -> str:
    """Return the page."""
    return "".join((HEAD, *_variables(), "\n## At the top\n", *_options(BrokerConfig), *_name_server()))


def _variables() -> Iterator[str]:
    yield "\n## Other variables\n\n| Variable | Meaning |\n|---|---|\n"
    yield from (f"| `{name}` | {cell(text)} |\n" for name, text in OTHER_VARIABLES.items())
    yield "\n`reput serve` refuses other variables that begin with `REPUT_`; the other commands warn of them.\n"


def _name_server() -> Iterator[str]:
    shipped = flatten(tomllib.loads((CONF / "namesrv.toml").read_text(encoding="utf-8")))
    fields = option_fields(BrokerConfig)
    yield "\n## Name server\n\n`reput namesrv -c FILE` has these options of the above, with its own defaults.\n\n"
    yield "| Option | Default |\n|---|---|\n"
    yield from (f"| [{key}](#{key}) | `{json.dumps(value)}` |\n" for key, value in shipped.items() if key in fields)


def _options(model: type[BaseModel]) -> Iterator[str]:
    texts, section = option_texts(model), ""
    for key, field in option_fields(model).items():
        prefix = key.rpartition(".")[0]
        if prefix != section:
            section = prefix
            yield f"\n## [{prefix}]\n\n{_line(section_of(model, prefix).__doc__ or '')}\n"
        facts = [f"Default `{written(field, field.default)}`", *_limits(field)]
        facts += ["live"] if is_live(field) else []
        facts += [f"`{variable_of(key)}`"]
        facts += [f"RocketMQ: `{name}`"] if (name := rocketmq_name(field)) else []
        yield f'\n### <a id="{key}"></a>{key}\n\n{_line(texts[key])}\n\n{"; ".join(facts)}\n'


def _line(text: str) -> str:
    return escaped(" ".join(text.split()))


def _limits(field: FieldInfo) -> Iterator[str]:
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for limit in field.metadata:
        for name, text in words.items():
            value = getattr(limit, name, None)
            if value is not None:
                yield f"{text} `{_in_its_unit(field, value)}`"


def _in_its_unit(field: FieldInfo, value: float) -> str:
    if is_duration(field):
        return format_duration(value)
    return format_size(int(value)) if is_size(field) else str(value)
