"""The configuration of a running broker: reloaded from its sources, or changed by an administrator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import structlog

from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.loading import ConfigChange, apply_live, with_values
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.log import set_level
from reput_broker.observe.metrics import MetricsSources
from reput_broker.remoting.tls import TlsFilesUnusable

log = structlog.get_logger(__name__)

_NO_SOURCES = ConfigProblem("", "code", "this broker runs inside a program; there is no file to read again")


class LiveConfig:
    """Changes live options and reports every change to the log and the metrics.

    Args:
        load: reads the same sources again (see `config.loading.load_config`); None: there are none.
    """

    def __init__(
        self,
        config: BrokerConfig,
        load: Callable[[], BrokerConfig] | None,
        sources: MetricsSources,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._load = load
        self._sources = sources
        self._clock = clock

    def reload(self) -> list[ConfigChange]:
        """Read the sources again and apply live options; return every difference. `set` is undone by it.

        Raises:
            ConfigError: the sources have mistakes; nothing changed. Already logged and counted.
        """
        if self._load is None:
            raise ConfigError([_NO_SOURCES])
        try:
            new = self._load()
            self._reload_certificates()
        except ConfigError as error:
            self._sources.config_reload_ok = False
            log.error(
                "config_reload_failed",
                problems=[str(problem) for problem in error.problems],
                hint="nothing was changed; correct the configuration and reload it again",
            )
            raise
        changes = self._apply(new)
        self._sources.config_reload_ok = True
        self._sources.config_reload_time_s = self._clock()
        log.info(
            "config_reloaded",
            applied=[f"{change.key} = {change.after}" for change in changes if change.live],
            needs_restart=[f"{change.key} = {change.after}" for change in changes if not change.live],
        )
        return changes

    def _reload_certificates(self) -> None:
        """Read the files of certificates again. Raises ConfigError, and those in use stay."""
        if self._sources.tls is None:
            return
        try:
            self._sources.tls.reload()
        except TlsFilesUnusable as error:
            raise ConfigError([ConfigProblem("tls", "the files that it names", str(error))]) from error

    def set(self, values: Mapping[str, str]) -> list[ConfigChange]:
        """Set live options until the next reload or restart; return those that changed.

        Args:
            values: by key, as text without quotes, such as `async` or `500ms`.

        Raises:
            ConfigError: a key is unknown or not live, or a value is not valid; nothing changed.
        """
        changes = self._apply(with_values(self._config, values))
        log.info("config_set", changed=[f"{change.key} = {change.after}" for change in changes])
        return changes

    def _apply(self, new: BrokerConfig) -> list[ConfigChange]:
        level_before = self._config.log.level
        changes = apply_live(self._config, new)
        if self._config.log.level != level_before:
            set_level(self._config.log.level)
        return changes
