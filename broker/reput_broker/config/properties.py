"""RocketMQ's names and units of options, for its tools: `fileReservedTime` is `store.file_reserved_time` in hours
(RocketMQ: BrokerConfig, MessageStoreConfig, NamesrvConfig, NettyServerConfig)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic.fields import FieldInfo

from reput_broker.config.errors import ConfigError, ConfigProblem, nearest_key
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import option_fields, option_value, rocketmq_name, shown
from reput_broker.config.value_types import is_duration, is_size
from reput_protocol.names import TRACE_TOPIC
from reput_protocol.store.unit import UNIT_BYTES

_ORIGIN: Final = "update of the configuration"


class _Form(NamedTuple):
    """How RocketMQ writes a value, and what an option's text is for what it writes."""

    written: Callable[[Any], str]
    text: Callable[[str], str]


def _counted(unit: str, in_unit: float) -> _Form:
    """Return the form of a number of units, one of which is `in_unit` of the option's value."""
    return _Form(lambda value: str(round(value / in_unit)), lambda text: f"{_number(text)}{unit}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r:.80} is not a whole number")
    return int(text)


def _flush(text: str) -> str:
    modes = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    if text not in modes:
        raise ValueError(f"{text!r:.80} is neither SYNC_FLUSH nor ASYNC_FLUSH")
    return modes[text]


def _inverse(text: str) -> str:
    return {"true": "false", "false": "true"}.get(text.lower(), text)


def _joined(separator: str) -> _Form:
    return _Form(lambda values: separator.join(map(str, values)), str)


_PLAIN: Final = _Form(lambda value: str(value).lower() if isinstance(value, bool) else str(value), str)
_MS: Final = _counted("ms", 0.001)
_SECONDS: Final = _counted("s", 1)
_HOURS: Final = _counted("h", 3600)
_BYTES: Final = _counted("B", 1)
_PERCENT: Final = _Form(lambda value: f"{round(100 * value)}", lambda text: f"{_number(text) / 100:g}")
_UNITS: Final = _Form(lambda value: str(value * UNIT_BYTES), lambda text: str(_number(text) // UNIT_BYTES))
_FORMS: Final = {
    "deleteWhen": _PLAIN,
    "diskMaxUsedSpaceRatio": _PERCENT,
    "diskSpaceCleanForciblyRatio": _PERCENT,
    "diskSpaceWarningLevelRatio": _PERCENT,
    "fileReservedTime": _HOURS,
    "flushDiskType": _Form(lambda value: f"{value.upper()}_FLUSH", _flush),
    "mappedFileSizeConsumeQueue": _UNITS,
    "namesrvAddr": _joined(";"),
    "readOnlyCommitLogStorePaths": _joined(","),
    "serverChannelMaxIdleTimeSeconds": _SECONDS,
    "timerMaxDelaySec": _SECONDS,
    "useServerSideResetOffset": _Form(lambda value: "false" if value else "true", _inverse),
}
"""Of other options: durations in milliseconds, sizes in bytes."""
_OF_NAME_SERVER: Final = ("listenPort", "bindAddress", "serverChannelMaxIdleTimeSeconds")


def _form(name: str, field: FieldInfo) -> _Form:
    return _FORMS.get(name) or (_MS if is_duration(field) else _BYTES if is_size(field) else _PLAIN)


_FACTS_OF_BROKER: Final = {
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "msgTraceTopicName": TRACE_TOPIC,
    "traceTopicEnable": "true",
    "traceOn": "true",
    "clientCallbackExecutorThreads": str(os.cpu_count() or 1),
}
"""What RocketMQ's tools read and no option changes. `mqadmin exportMetrics` shows the last as the number of CPUs."""


class Properties:
    """The configuration of a broker, or of a name server alone, as RocketMQ's tools see it.

    Options that RocketMQ does not have bear Reput's keys; `updateBrokerConfig` takes these for all options.

    Args:
        is_option: whether an option counts; all do for a broker.
    """

    def __init__(self, config: BrokerConfig, is_option: Callable[[str], bool] | None = None) -> None:
        self._config = config
        self._is_option = is_option or (lambda _: True)
        self._is_broker = is_option is None
        self._fields = option_fields(type(config))
        self._names = {
            name: key
            for key, field in self._fields.items()
            if (name := rocketmq_name(field)) and (self._is_broker or name in _OF_NAME_SERVER)
        }

    def all(self) -> dict[str, str]:
        """Return every property; secrets are stars."""
        config = self._config
        found = dict(_FACTS_OF_BROKER) if self._is_broker else {}
        for name, key in self._names.items():
            found[name] = _form(name, self._fields[key]).written(option_value(config, key))
        if self._is_broker:
            own_dirs = config.store.commit_log_dirs or (Path(config.data_dir) / "commitlog",)
            found["storePathCommitLog"] = ",".join(map(str, own_dirs))
            if config.advertise:
                found["brokerIP1"] = config.advertise.rpartition(":")[0]
        else:
            found["kvConfigPath"] = str(Path(config.data_dir) / "config" / "kvConfig.json")
        named = {*self._names.values()}
        for key, field in self._fields.items():
            if key not in named and self._is_option(key):
                found[key] = shown(field, option_value(config, key)).strip('"')
        return dict(sorted(found.items()))

    def options(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Return texts by option key, as `LiveConfig.set` takes them.

        Raises:
            ConfigError: a name is not that of an option, or a value is not one of RocketMQ's form.
        """
        fields = self._fields
        options, problems = {}, []
        for name, value in properties.items():
            if name in self._names:
                key = self._names[name]
                try:
                    options[key] = _form(name, fields[key]).text(value)
                except ValueError as error:
                    problems.append(ConfigProblem(name, _ORIGIN, str(error)))
            elif name in fields and self._is_option(name):
                options[name] = value
            elif name in self.all():
                problems.append(ConfigProblem(name, _ORIGIN, "cannot be changed here"))
            else:
                problems.append(ConfigProblem(name, _ORIGIN, "unknown key", nearest_key(name, [*self._names, *fields])))
        if problems:
            raise ConfigError(problems)
        return options

    def name_of(self, key: str) -> str:
        """Return RocketMQ's name of an option with Reput's key, or just that key."""
        return next((f"{name} ({key})" for name, own in self._names.items() if own == key), key)


def written_properties(properties: Mapping[str, str]) -> bytes:
    """Return a line `name=value` for each, as Java reads properties."""
    lines = (f"{name}={value}\n" for name, value in properties.items())
    return "".join(lines).replace("\\", "\\\\").encode()


def read_properties(data: bytes) -> dict[str, str]:
    """Read lines `name=value`; blank lines and comments are skipped.

    Raises:
        ValueError: it is not UTF-8, or a line is no such pair.
    """
    found = {}
    for line in data.decode().splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            name, equals, value = text.partition("=")
            if not equals:
                raise ValueError(f"line {text!r:.80} is not of the form name=value")
            found[name.strip()] = value.strip()
    return found
