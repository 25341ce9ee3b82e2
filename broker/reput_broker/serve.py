"""Running a broker or a name server until a signal ends it, for `reput serve` and `reput namesrv`.

SIGTERM or SIGINT drains and exits with 0, a second one exits immediately with 1. SIGHUP reads the configuration again;
without a configuration to read it ends the process, because its terminal is closed.

The service manager that started the process (systemd: sd_notify, `Type=notify-reload`) gets reports. Each is a datagram
of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names. Without that variable nothing is sent.

`reput serve --brokers N` runs several brokers of one cluster on one machine: the way to use more than one core. Each
broker is a process with a directory, ports 10 apart and a name of its own; each is a name server of the others
(`name_servers`), so that any address leads clients to all, and clients spread topics over them by themselves. They
share nothing else: each acknowledges, recovers and is upgraded alone, and a directory can be moved to a machine of its
own later.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Final, TypeAlias, TypeVar

import structlog
import trio

from reput_broker.broker import Broker
from reput_broker.compose.live_config import LiveConfig
from reput_broker.compose.proxy_process import supervise
from reput_broker.config.environment import FILE_SUFFIX, PREFIX, is_service_link
from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.name_server import NameServer
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.log import configure_logging, flush_log, write_event
from reput_broker.store.base.errors import StoreDamaged
from reput_protocol.errors import ReputError, leaves
from reput_protocol.exit_codes import ExitCode

log = structlog.get_logger(__name__)


Served: TypeAlias = Broker | NameServer
"""What runs in the foreground."""
S = TypeVar("S", Broker, NameServer)


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
    return ExitCode.DAMAGE if any(isinstance(failure, StoreDamaged) for failure in failures) else ExitCode.FAILED


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


async def _serve(broker: S, reload: Callable[[], BrokerConfig] | None, on_ready: Callable[[S], None] | None) -> None:
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


_TICK_S = 10.0
_EXTENSION_US = 30_000_000
"""How much longer the start may take from each report on; three ticks."""


class ServiceManager:
    """The socket of the service manager; a context manager. One owner: the event loop.

    Args:
        environment: has `NOTIFY_SOCKET`, and `WATCHDOG_USEC` if reports are expected at that interval.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._watchdog_s = _watchdog_s(environment)
        self._socket: socket.socket | None = None
        self._phase = "starting"
        if name.startswith(("/", "@")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        elif name:
            log.warning("service_manager_ignored", address=name, hint="NOTIFY_SOCKET needs a path, or @name")

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._socket is not None:
            self._socket.close()

    def ready(self, status: str) -> None:
        """Report that the server has started; `status` is for the operator."""
        self._phase = "serving"
        self._report(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being read; `reloaded` follows. Neither counts before or after serving."""
        if self._phase == "serving":
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._report(f"RELOADING=1\nMONOTONIC_USEC={now_us}")

    def reloaded(self, status: str) -> None:
        """Report that this is done, successfully or not."""
        if self._phase == "serving":
            self.ready(status)

    def stopping(self) -> None:
        """Report that the server stops."""
        self._phase = "stopping"
        self._report("STOPPING=1\nSTATUS=stopping")

    async def run(self, health: Health) -> None:
        """Extend the time for a long start, and feed the watchdog while the event loop runs and the log can be written.

        A store that a failed sync has made read-only can be written again only after a restart, so the watchdog is not
        fed any more, and the service manager restarts the broker. It is fed if a directory or file of the store is not
        at its path any more: the open files may be the only copy of the messages, and an operator copies them first.
        """
        if self._socket is None:
            return
        is_fed = True
        while True:
            if self._phase == "starting":
                self._report(f"EXTEND_TIMEOUT_USEC={_EXTENSION_US}\nSTATUS=recovering the store")
            if self._watchdog_s:
                directories = health.checks.get("directories")
                is_lost = directories is not None and not directories.ok
                works = health.state is not BrokerState.READONLY or is_lost
                if works:
                    self._report("WATCHDOG=1")
                elif is_fed:
                    log.error("watchdog_not_fed", hint="the service manager restarts the broker")
                is_fed = works
            await trio.sleep(min(_TICK_S, self._watchdog_s / 2 or _TICK_S))

    def _report(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            log.warning("service_manager_not_reached", report=text.partition("\n")[0], detail=str(error))


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the interval at which the watchdog expects a report, in seconds; 0 if it expects none of this process."""
    interval = environment.get("WATCHDOG_USEC", "")
    is_ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(interval) / 1e6 if interval.isdecimal() and is_ours else 0.0


PORTS_APART: Final = 10
"""Ports of neighbours, as with RocketMQ: each broker also has those from two before to two after its own."""
BROKERS_MAX: Final = len(ascii_lowercase)
_OTHER_PORTS: Final = ("name_port", "fast_port", "ha_port", "http_port", "proxy_port")
_prctl = getattr(ctypes.CDLL(None), "prctl", None)
"""Loaded here: between fork and exec nothing may be that needs a lock of another thread."""
_LINE_BYTES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_STAYS_STOPPED: Final = (ExitCode.USAGE, ExitCode.DAMAGE)
"""A start that ends with these ends so again: an operator has to act first."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the brokers: its name, and the options in which it differs, as variables of the environment."""

    name: str
    address: str
    options: Mapping[str, str]


def parts_of(config: BrokerConfig, count: int) -> list[Part]:
    """Return the brokers of a configuration, the first of which has its `port`.

    The first is called `broker_name`, the others by the next letters if that ends with "-a", else NAME-b, NAME-c, ....
    Their directories are in `data_dir`, by their names.

    Raises:
        ConfigError: an option cannot be the same for several brokers.
    """
    problems: list[ConfigProblem] = []

    def refuse(option: str, problem: str) -> None:
        problems.append(ConfigProblem(option, config.origins.get(option, "default"), problem))

    if not 2 <= count <= BROKERS_MAX:
        refuse("port", f"--brokers takes 2 to {BROKERS_MAX}")
    if config.port == 0:
        refuse("port", f"is 0; several brokers on one machine have ports {PORTS_APART} apart from one that you choose")
    if config.election.etcd or config.election.kubernetes_namespace or config.ha.role == "SLAVE":
        refuse("ha.role", "several brokers on one machine are masters without slaves: copies belong on other machines")
    access = config.access
    if access.enabled and not access.admin_secret:
        refuse(
            "access.admin_secret",
            "is needed, so that all brokers have the same administrator; "
            "REPUT_ACCESS__ADMIN_SECRET_FILE names a file with it",
        )
    if problems:
        raise ConfigError(problems)
    base = config.broker_name.removesuffix("-a")
    names = [config.broker_name, *(f"{base}-{letter}" for letter in ascii_lowercase[1:count])]
    ports = [config.port + PORTS_APART * number for number in range(count)]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    advertised = config.advertise.rpartition(":")[0] if config.advertise else ""
    if not advertised and ":" in host:
        host = f"[{host}]"
    addresses = [f"{advertised or host}:{port}" for port in ports]
    return [
        Part(
            name,
            address,
            {
                "DATA_DIR": str(config.data_dir / name),
                "BROKER_NAME": name,
                "PORT": str(port),
                "NAME_SERVERS": ",".join([*addresses, *config.name_servers]),
                "ADVERTISE": address if advertised else "",
                "LOG__FORMAT": "json",
                **_named_ports(config, port - config.port),
            },
        )
        for name, port, address in zip(names, ports, addresses, strict=True)
    ]


def _named_ports(config: BrokerConfig, apart: int) -> dict[str, str]:
    """Return the ports that have numbers in the configuration, so far from the first broker's."""
    ports = {name: getattr(config, name) for name in _OTHER_PORTS}
    return {name.upper(): str(port + apart) for name, port in ports.items() if isinstance(port, int) and port}


def run_side_by_side(
    config: BrokerConfig, parts: Sequence[Part], command: Sequence[str], on_ready: Callable[[], None] | None
) -> int:
    """Run the brokers in the foreground until SIGTERM or SIGINT, which they get too.

    One that ends is started again after a pause, but for a wrong configuration or a damaged store. If one cannot be
    started at all, all are stopped. Their events are this process's log, each with the name of its broker.

    Args:
        command: starts one broker; the options of its part are in its environment.
        on_ready: called once all serve.

    Returns:
        The exit code: 0, or that of the first broker that failed.
    """
    configure_logging(format=config.log.format, level=config.log.level)
    return trio.run(_SideBySide(parts, command, on_ready).run)


class _SideBySide:
    def __init__(self, parts: Sequence[Part], command: Sequence[str], on_ready: Callable[[], None] | None) -> None:
        self._parts = parts
        self._command = command
        self._on_ready = on_ready
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses = [part.address for part in parts]
        self._registered: set[tuple[str, str]] = set()
        self._code = 0
        self._stopping = trio.Event()

    @property
    def _is_ready(self) -> bool:
        """Whether each has begun to serve, and registered with each: a topic is then created on all."""
        return len(self._registered) == len(self._parts) ** 2

    async def run(self) -> int:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, signals)
                async with trio.open_nursery() as brokers:
                    for part in self._parts:
                        brokers.start_soon(self._keep, part)
                nursery.cancel_scope.cancel()
        return self._code

    async def _obey(self, signals: object) -> None:
        async for number in signals:  # type: ignore[attr-defined]
            if number == signal.SIGHUP:
                self._tell(signal.SIGHUP)
            else:
                self._stop()

    def _stop(self) -> None:
        """Stop all; again: at once."""
        self._stopping.set()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            process.send_signal(number)

    async def _keep(self, part: Part) -> None:
        await supervise(partial(self._run_one, part), partial(self._note_end, part), self._stopping)
        await self._stopping.wait()  # if it stays stopped, the others run

    def _note_end(self, part: Part, code: int, _pause_s: float) -> bool:
        """Log the end of a broker; return whether it is started again."""
        log.error("broker_ended", from_broker=part.name, exit_code=code)
        if not self._is_ready:
            self._code = self._code or code or ExitCode.FAILED
            self._stop()
            return False
        if code in _STAYS_STOPPED:
            log.error("broker_stays_stopped", from_broker=part.name, hint="its last events say what to do")
            self._code = self._code or code
            return False
        return True

    async def _run_one(self, part: Part) -> int:
        """Run the process of a broker until it has ended, and return its exit code."""
        own = {PREFIX + name: value for name, value in part.options.items()}
        environment = {name: value for name, value in os.environ.items() if name.removesuffix(FILE_SUFFIX) not in own}
        # In this thread: the kernel signals a child when the thread that made it has ended, see _end_with_parent.
        process = subprocess.Popen(  # noqa: ASYNC220
            self._command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment | own,
            process_group=0,  # Ctrl-C at a terminal is for this process, which tells them
            preexec_fn=_end_with_parent,
        )
        self._processes[part.name] = process
        if self._stopping.is_set():
            process.terminate()
        assert process.stderr is not None
        try:
            async with trio.lowlevel.FdStream(os.dup(process.stderr.fileno())) as stderr:
                process.stderr.close()
                await self._read(part, stderr)
            code = await trio.to_thread.run_sync(process.wait)
            if self._stopping.is_set():
                self._code = self._code or code
            return code
        finally:
            self._processes.pop(part.name)
            process.kill()

    async def _read(self, part: Part, stderr: trio.abc.ReceiveStream) -> None:
        rest = b""
        while True:
            piece = await stderr.receive_some()
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._write(part, line)
            rest = rest[-_LINE_BYTES_MAX:]

    def _write(self, part: Part, line: bytes) -> None:
        try:
            facts = json.loads(line)
            event, level = facts.pop("event"), facts.pop("level")
        except (ValueError, TypeError, KeyError, AttributeError):
            log.warning("broker_output", from_broker=part.name, text=line[:500].decode(errors="replace"))
            return
        facts.pop("ts", None)
        write_event(__name__, str(level), event, {**facts, "from_broker": part.name})
        registered_with = facts.get("name_server")
        if event == "registered_with_name_server" and registered_with in self._addresses and not self._is_ready:
            self._registered.add((part.name, registered_with))
            if self._is_ready:
                log.info("brokers_ready", server=",".join(self._addresses))
                if self._on_ready is not None:
                    self._on_ready()


def _end_with_parent() -> None:
    """Have the kernel stop this process when its parent was killed: nothing would start it again."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
