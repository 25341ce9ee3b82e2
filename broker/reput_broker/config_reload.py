"""Reload the configuration of a running broker (SIGHUP): all of it or nothing.

The sources are read and checked as at start. If anything is wrong, nothing changes. Otherwise options marked
live are set, at once, on the `BrokerConfig` that everybody holds, and the others are named as waiting for a
restart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from reput_broker.config.description import is_live, written
from reput_broker.config.errors import ConfigError
from reput_broker.config.fields import option_fields, option_value
from reput_broker.config.model import BrokerConfig
from reput_broker.log import set_level
from reput_broker.metrics import MetricsSources

log = structlog.get_logger(__name__)


class ConfigChange(NamedTuple):
    """One option that the sources now give another value; values as in a configuration file."""

    key: str
    before: str
    after: str
    live: bool
    """Whether the change is in effect; if not, it waits for a restart."""


def apply_live(config: BrokerConfig, new: BrokerConfig) -> list[ConfigChange]:
    """Set the live options of `new` on `config` and return every difference, live or not."""
    changes = []
    for key, field in option_fields(BrokerConfig).items():
        before, after = option_value(config, key), option_value(new, key)
        if before == after:
            continue
        live = is_live(field)
        changes.append(ConfigChange(key, written(field, before), written(field, after), live))
        if live:
            section, _, name = key.rpartition(".")
            # The models are frozen for everybody else; both values have passed the same checks.
            vars(option_value(config, section) if section else config)[name] = after
    config.note_origins(
        {
            key: origin
            for key, origin in (*config.origins.items(), *new.origins.items())
            if option_value(config, key) == option_value(new, key)
        },
        config.path,
    )
    return changes


class ConfigReloader:
    """Reloads one broker's configuration when told to, and tells the log and the metrics how that went."""

    def __init__(
        self,
        config: BrokerConfig,
        load: Callable[[], BrokerConfig],
        sources: MetricsSources,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep `load`, which reads the same sources again (see `config.loading.load_config`)."""
        self._config = config
        self._load = load
        self._sources = sources
        self._clock = clock

    def reload(self) -> list[ConfigChange]:
        """Read the sources again and apply what is live; return every difference.

        Raises:
            ConfigError: the sources have mistakes; nothing changed. Logged and counted already.
        """
        level_before = self._config.log.level
        try:
            new = self._load()
        except ConfigError as error:
            self._sources.config_reload_ok = False
            log.error(
                "config_reload_failed",
                problems=[str(problem) for problem in error.problems],
                hint="nothing was changed; correct the configuration and send SIGHUP again",
            )
            raise
        changes = apply_live(self._config, new)
        self._sources.config_reload_ok = True
        self._sources.config_reload_time_s = self._clock()
        if self._config.log.level != level_before:
            set_level(self._config.log.level)
        log.info(
            "config_reloaded",
            applied=[f"{change.key} = {change.after}" for change in changes if change.live],
            needs_restart=[f"{change.key} = {change.after}" for change in changes if not change.live],
        )
        return changes
