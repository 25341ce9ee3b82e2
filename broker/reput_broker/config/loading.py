"""Reading the configuration, at the start and for a reload: built-in default < TOML file < environment < flag.

    REPUT_STORE__FLUSH_INTERVAL=200ms         store.flush_interval
    REPUT_NAME_SERVERS=["names1:9876"]        name_servers, as in the file; also names1:9876,names2:9876
    REPUT_ADVERTISE_FILE=/run/secrets/addr    advertise, read from that file

Every value has an origin, so that a mistake is reported as "limits.conections (from broker.toml)".
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from pydantic.fields import FieldInfo

from reput_broker.config.environment import FILE_SUFFIX, own_variables, unknown_variables, variable_of
from reput_broker.config.errors import ConfigError, ConfigProblem, file_variable_hint, nearest_key
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import flatten, is_live, is_secret, nest, option_fields, option_value, shown, written
from reput_broker.config.value_types import is_duration, is_size

_SET = "config set"
"""The origin of options that were set while the broker ran."""

_VALUE_FILE_BYTES_MAX = 65536
_KEY = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")
_PLAIN_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


@dataclass(slots=True)
class _Gathered:
    """Values by dotted key, later sources over earlier ones, and the mistakes so far."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def put(self, key: str, value: object, origin: str) -> None:
        self.values[key] = value
        self.origins[key] = origin


def load_config(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> BrokerConfig:
    """Return the configuration that the sources give together.

    Args:
        path: a TOML file, or None.
        environ: the environment; None reads nothing from it.
        overrides: values of flags by dotted key (`{"store.flush": "async"}`); None for flags that were not given.
        defaults: values by dotted key in place of the built-in defaults.

    Raises:
        ConfigError: it lists every mistake of every source, each with key, origin, problem and nearest key.
    """
    fields = option_fields(BrokerConfig)
    gathered = _Gathered()
    if path is not None:
        _read_file(path, fields, gathered)
    _read_environment(environ or {}, fields, gathered)
    for key, value in (overrides or {}).items():
        if value is not None:
            given = _from_text(fields[key], value) if isinstance(value, str) and key in fields else value
            gathered.put(key, given, "--" + key.replace(".", "-").replace("_", "-"))
    _refuse_paths_as_secrets(fields, gathered)
    try:
        config = BrokerConfig(**nest({**(defaults or {}), **gathered.values}))
    except ConfigError as error:
        found = [_with_origin(problem, gathered.origins) for problem in error.problems]
        reported = {problem.key for problem in gathered.problems}
        gathered.problems += [problem for problem in found if problem.key not in reported]
    if gathered.problems:
        raise ConfigError(gathered.problems)
    config.note_origins(gathered.origins, path)
    return config


class ConfigChange(NamedTuple):
    """An option with a new value in the sources; values as in a configuration file."""

    key: str
    before: str
    after: str
    live: bool
    """Whether the change is in effect; if not, it waits for a restart."""


def apply_live(config: BrokerConfig, new: BrokerConfig) -> list[ConfigChange]:
    """Set the live options of `new` on `config` and return every difference, live or not."""
    changes = []
    for key, option in option_fields(BrokerConfig).items():
        before, after = option_value(config, key), option_value(new, key)
        if before == after:
            continue
        live = is_live(option)
        changes.append(ConfigChange(key, shown(option, before), shown(option, after), live))
        if live:
            section, _, name = key.rpartition(".")
            # The models are frozen for all other code; both values passed the same checks.
            vars(option_value(config, section) if section else config)[name] = after
    origins = {}
    for key in option_fields(BrokerConfig):
        source = new if option_value(config, key) == option_value(new, key) else config
        if key in source.origins:
            origins[key] = source.origins[key]
    config.note_origins(origins, config.path)
    return changes


def with_values(config: BrokerConfig, values: Mapping[str, str]) -> BrokerConfig:
    """Return a configuration like `config` with other values of live options; `config` itself stays.

    Args:
        values: by key, as text without quotes, such as `async` or `500ms`.

    Raises:
        ConfigError: a key is unknown or not live, or a value is not valid.
    """
    fields = option_fields(BrokerConfig)
    problems = []
    for key in values:
        if key not in fields:
            problems.append(ConfigProblem(key, _SET, "unknown key", nearest_key(key, fields)))
        elif not is_live(fields[key]):
            text = "needs a restart: write it into the configuration file, then restart the broker"
            problems.append(ConfigProblem(key, _SET, text))
    if problems:
        raise ConfigError(problems)
    before = {
        key: tomllib.loads(f"value = {written(option, option_value(config, key))}")["value"]
        for key, option in fields.items()
    }
    given = {key: _from_text(fields[key], text) for key, text in values.items()}
    origins = dict.fromkeys(given, _SET)
    try:
        new = BrokerConfig(**nest({**before, **given}))
    except ConfigError as error:
        raise ConfigError([_with_origin(problem, origins) for problem in error.problems]) from None
    new.note_origins({**config.origins, **origins}, config.path)
    return new


def option_variables() -> dict[str, str]:
    """Return the environment variables of all options, with their keys."""
    return {variable_of(key): key for key in option_fields(BrokerConfig)}


def _with_origin(problem: ConfigProblem, origins: Mapping[str, str]) -> ConfigProblem:
    """Return the problem with the origin of its key, or of a member of that section.

    If neither is set, because another option needs them, it is the origin of the first set option that the text names.
    """
    below = (origin for key, origin in origins.items() if key.startswith(problem.key + "."))
    named = (origins[name] for name in _KEY.findall(problem.problem) if name in origins)
    origin = origins.get(problem.key) or next(below, None) or next(named, problem.origin)
    return ConfigProblem(problem.key, origin, problem.problem, problem.nearest)


def _refuse_paths_as_secrets(fields: Mapping[str, FieldInfo], gathered: _Gathered) -> None:
    """Report secrets that are the name of a file: its content was meant."""
    for key, value in gathered.values.items():
        if (
            key in fields
            and is_secret(fields[key])
            and isinstance(value, str)
            and os.sep in value
            and os.path.isfile(value)
        ):
            text = f"its value is the name of a file; {file_variable_hint(key)}"
            gathered.problems.append(ConfigProblem(key, gathered.origins[key], text))


def _read_file(path: Path, fields: Mapping[str, FieldInfo], gathered: _Gathered) -> None:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except FileNotFoundError:
        gathered.problems.append(ConfigProblem("", str(path), "there is no such file"))
    except OSError as error:
        gathered.problems.append(ConfigProblem("", str(path), f"cannot be read: {error.strerror}"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        gathered.problems.append(ConfigProblem("", str(path), f"is not TOML: {error}"))
    else:
        for key, value in flatten(tables).items():
            gathered.put(key, value, str(path))
            if key in fields and is_size(fields[key]) and isinstance(value, int) and type(value) is not bool:
                problem = f'the unit is missing: write "{value}B", "{value}KiB" or "{value}MiB"'
                gathered.problems.append(ConfigProblem(key, str(path), problem))


def _read_environment(environ: Mapping[str, str], fields: Mapping[str, FieldInfo], gathered: _Gathered) -> None:
    variables = {variable_of(key): key for key in fields}
    for name, nearest in unknown_variables(environ, variables).items():
        gathered.problems.append(ConfigProblem(name, "the environment", "unknown variable", nearest))
    for name, text in own_variables(environ).items():
        key = variables.get(name) or variables.get(name.removesuffix(FILE_SUFFIX))
        if key is None:
            continue
        if name not in variables:
            try:
                text = _read_value(Path(text))
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                gathered.problems.append(ConfigProblem(key, name, f"{text} cannot be read: {reason}"))
                continue
        elif name + FILE_SUFFIX in environ:
            problem = f"is set twice: by {name} and by {name}{FILE_SUFFIX}; keep one"
            gathered.problems.append(ConfigProblem(key, name, problem))
        gathered.put(key, _from_text(fields[key], text), name)


def _read_value(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_VALUE_FILE_BYTES_MAX + 1)
    if len(data) > _VALUE_FILE_BYTES_MAX:
        raise ValueError(f"it is larger than {_VALUE_FILE_BYTES_MAX} bytes")
    return data.decode().rstrip("\r\n")


def _from_text(option: FieldInfo, text: str) -> object:
    """Read a number, a truth value, or a list as in a file; validation reports an invalid one."""
    if text.startswith("[") and get_origin(option.annotation) is tuple:
        with suppress(tomllib.TOMLDecodeError):
            return tomllib.loads(f"value = {text}")["value"]
    if is_size(option) or is_duration(option):
        return text
    if option.annotation in (int, int | str):
        return int(text) if text.isascii() and text.isdigit() else text
    if option.annotation is float:
        return float(text) if _PLAIN_NUMBER.fullmatch(text) else text
    if option.annotation is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    return text
