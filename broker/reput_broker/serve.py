"""Run a broker until a signal ends it: the body of `reput serve`.

SIGTERM or SIGINT drains and ends with 0, a second one ends at once with 1. SIGHUP reads the configuration again.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog
import trio

from reput_broker.broker import Broker
from reput_broker.config import BrokerConfig
from reput_broker.config_errors import ConfigError
from reput_broker.config_reload import ConfigReloader
from reput_broker.log import configure_logging
from reput_broker.store.errors import StoreDamaged
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_GC_THRESHOLD = 20_000
_DONE, _FAILED, _DAMAGED = 0, 1, 7


def run_broker(
    config: BrokerConfig,
    *,
    reload: Callable[[], BrokerConfig] | None = None,
    on_ready: Callable[[Broker], None] | None = None,
) -> int:
    """Run a broker in the foreground and return the exit code: 0 stopped in order, 1 failed, 7 damage found.

    Args:
        reload: reads the configuration's sources again, for SIGHUP.
        on_ready: called once the broker serves.
    """
    configure_logging(format=config.log.format, level=config.log.level)
    broker = Broker(config, embedded=False)
    try:
        trio.run(_serve, broker, reload, on_ready)
    except BaseExceptionGroup as group:
        foreseen, others = group.split((ReputError, OSError))
        if others is not None:
            raise
        failures = _leaves(foreseen)
        for error in failures:
            log.error("broker_failed", kind=type(error).__name__, detail=str(error))
        return _DAMAGED if any(isinstance(error, StoreDamaged) for error in failures) else _FAILED
    return _DONE


async def _serve(
    broker: Broker, reload: Callable[[], BrokerConfig] | None, on_ready: Callable[[Broker], None] | None
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, broker, reload)
            async with broker:
                # What exists now stays; collecting it again and again would cost a tenth of the broker's time.
                gc.collect()
                gc.freeze()
                gc.set_threshold(_GC_THRESHOLD)
                if on_ready is not None:
                    on_ready(broker)
                await broker.stopped()
            nursery.cancel_scope.cancel()


async def _obey(signals: object, broker: Broker, reload: Callable[[], BrokerConfig] | None) -> None:
    stopping = False
    async for number in signals:  # type: ignore[attr-defined]
        if number == signal.SIGHUP:
            _reload(broker, reload)
        elif stopping:
            log.error("stopped_at_once", hint="a second signal came; the next start recovers the store")
            os._exit(_FAILED)
        else:
            stopping = True
            log.info("stopping", signal=signal.Signals(number).name)
            broker.stop()


def _reload(broker: Broker, load: Callable[[], BrokerConfig] | None) -> None:
    if load is None:
        return
    with suppress(ConfigError):  # logged and counted by the reloader; nothing was changed
        ConfigReloader(broker.config, load, broker.sources).reload()


def _leaves(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in _leaves(member)]
    return [] if error is None else [error]


def write_address(path: Path, broker: Broker) -> None:
    """Write the broker's address to a file that appears whole, for programs that wait for it."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(f"{broker.address}\n")
    fresh.replace(path)
