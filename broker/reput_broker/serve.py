"""Running a broker or a name server until a signal ends it, for `reput serve` and `reput namesrv`.

SIGTERM or SIGINT drains and exits with 0, a second one exits immediately with 1. SIGHUP reads the configuration again;
without a configuration to read it ends the process, because its terminal is closed.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import structlog
import trio

from reput_broker.broker import Broker
from reput_broker.compose.live_config import LiveConfig
from reput_broker.config.environment import is_service_link
from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.name_server import NameServer
from reput_broker.observe.log import configure_logging, flush_log
from reput_broker.observe.metrics import MetricsSources
from reput_broker.service_manager import ServiceManager
from reput_broker.store.errors import StoreDamaged
from reput_protocol.errors import ReputError, leaves
from reput_protocol.exit_codes import ExitCode

log = structlog.get_logger(__name__)


class Served(Protocol):
    """What runs in the foreground: an async context manager."""

    config: BrokerConfig
    sources: MetricsSources

    @property
    def address(self) -> str:
        """Where clients reach it."""

    def stop(self) -> None:
        """Ask it to stop."""

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""

    async def stopped(self) -> None:
        """Wait until `stop` was called."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...


S = TypeVar("S", bound=Served)


def run_broker(
    config: BrokerConfig,
    *,
    reload: Callable[[], BrokerConfig] | None = None,
    on_ready: Callable[[Broker], None] | None = None,
) -> int:
    """Run a broker in the foreground and return the exit code: 0 stopped normally, 1 failed, 7 damage found.

    Args:
        reload: reads the configuration's sources again, for SIGHUP. Without it SIGHUP ends the broker.
        on_ready: called once the broker serves.
    """
    return _run(lambda: Broker(config, embedded=False, reload=reload), config, reload, on_ready)


def run_name_server(
    config: BrokerConfig, *, reload: Callable[[], BrokerConfig], on_ready: Callable[[NameServer], None] | None
) -> int:
    """Run a name server in the foreground; see `run_broker`."""
    return _run(lambda: NameServer(config), config, reload, on_ready)


def _run(
    make: Callable[[], S],
    config: BrokerConfig,
    reload: Callable[[], BrokerConfig] | None,
    on_ready: Callable[[S], None] | None,
) -> int:
    gc.freeze()  # what the imports made stays, and need not be searched when the broker is ready
    _fill_standard_descriptors()
    configure_logging(format=config.log.format, level=config.log.level)
    _log_what_python_prints()
    ignored = [name for name, value in sorted(os.environ.items()) if is_service_link(name, value)]
    if ignored:
        log.info("kubernetes_variables_ignored", names=ignored)
    try:
        trio.run(_serve, make(), reload, on_ready)
    except Exception as error:
        return _say_why(error)
    return ExitCode.DONE


def _fill_standard_descriptors() -> None:
    """Open /dev/null for closed stdin, stdout and stderr.

    Otherwise files of the store would get their numbers, and what a library prints would be written into the store.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def _say_why(error: Exception) -> int:
    failures = leaves(error)
    for failure in failures:
        if isinstance(failure, (ReputError, OSError)):
            log.error("broker_failed", kind=type(failure).__name__, detail=str(failure))
        else:
            log.error("broker_failed", exc_info=failure, hint="a defect; please report it")
    return (
        ExitCode.DAMAGE if any(isinstance(failure, StoreDamaged) for failure in failures) else ExitCode.FAILED
    )


class _ToLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except Exception:  # as a handler must
            text = str(record.msg)
        log.warning("library_warning", logger=record.name, detail=text, exc_info=record.exc_info)


def _log_what_python_prints() -> None:
    """Send to the log what Python prints to stderr otherwise, where a print may fail or block."""
    logging.basicConfig(handlers=[_ToLog()], level=logging.WARNING)
    logging.captureWarnings(capture=True)

    def unraisable(failed: sys.UnraisableHookArgs) -> None:
        place = getattr(failed.object, "__qualname__", type(failed.object).__qualname__)
        log.error("error_ignored", place=place, exc_info=failed.exc_value)

    def in_thread(failed: threading.ExceptHookArgs) -> None:
        log.error("thread_failed", thread=str(failed.thread), exc_info=failed.exc_value)

    sys.unraisablehook = unraisable
    threading.excepthook = in_thread


async def _serve(
    broker: S, reload: Callable[[], BrokerConfig] | None, on_ready: Callable[[S], None] | None
) -> None:
    heard = [signal.SIGTERM, signal.SIGINT]
    if reload is not None or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)  # under `nohup` it is ignored, and a closed terminal ends nothing
    with ServiceManager(os.environ) as manager, trio.open_signal_receiver(*heard) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(manager.run, broker.sources.health)
            nursery.start_soon(_obey, signals, broker, reload, manager)
            async with broker:
                # Objects that exist now stay; collecting them repeatedly would cost a tenth of the broker's time.
                gc.collect()
                gc.freeze()
                if not broker.is_stopping:
                    if on_ready is not None:
                        on_ready(broker)
                    manager.ready(f"serving at {broker.address}")
                await broker.stopped()
                manager.stopping()
            nursery.cancel_scope.cancel()


async def _obey(
    signals: object, broker: Served, reload: Callable[[], BrokerConfig] | None, manager: ServiceManager
) -> None:
    stopping = False
    async for number in signals:  # type: ignore[attr-defined]
        if number == signal.SIGHUP and reload is not None:
            manager.reloading()
            manager.reloaded(_reload(broker, reload))
        elif stopping and number == signal.SIGHUP:
            continue  # the shell and the kernel each send one when a terminal is closed
        elif stopping:
            log.error("stopped_at_once", hint="a second signal came; the next start recovers the store")
            flush_log()
            os._exit(ExitCode.FAILED)
        else:
            stopping = True
            log.info("stopping", signal=signal.Signals(number).name)
            broker.stop()


def _reload(broker: Served, load: Callable[[], BrokerConfig]) -> str:
    """Read the configuration again; return the outcome in words."""
    try:
        LiveConfig(broker.config, load, broker.sources).reload()
    except ConfigError:  # already logged and counted
        return "serving; the configuration has errors, and nothing changed"
    return "serving; the configuration was read again"


def write_address(path: Path, address: str) -> None:
    """Write a server's address to a file, atomically, for programs that wait for it."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(f"{address}\n")
    fresh.replace(path)
