"""Several brokers of one cluster on one machine, for `reput serve --brokers N`: the way to use more than one core.

Each broker is a process with a directory, ports 10 apart and a name of its own; each is a name server of the others
(`name_servers`), so that any address leads clients to all, and clients spread topics over them by themselves. They
share nothing else: each acknowledges, recovers and is upgraded alone, and a directory can be moved to a machine of its
own later.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import ascii_lowercase
from typing import Final

import structlog
import trio

from reput_broker.compose.supervisor import supervise
from reput_broker.config.environment import FILE_SUFFIX, PREFIX
from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.log import configure_logging, write_event
from reput_protocol.exit_codes import ExitCode

log = structlog.get_logger(__name__)

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
        refuse(
            "port",
            f"is 0; several brokers on one machine have ports {PORTS_APART} apart from one that you choose",
        )
    if config.election.etcd or config.election.kubernetes_namespace or config.ha.role == "SLAVE":
        refuse(
            "ha.role",
            "several brokers on one machine are masters without slaves: copies belong on other machines",
        )
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
    def __init__(
        self, parts: Sequence[Part], command: Sequence[str], on_ready: Callable[[], None] | None
    ) -> None:
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
        environment = {
            name: value for name, value in os.environ.items() if name.removesuffix(FILE_SUFFIX) not in own
        }
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
        if (
            event == "registered_with_name_server"
            and registered_with in self._addresses
            and not self._is_ready
        ):
            self._registered.add((part.name, registered_with))
            if self._is_ready:
                log.info("brokers_ready", server=",".join(self._addresses))
                if self._on_ready is not None:
                    self._on_ready()


def _end_with_parent() -> None:
    """Have the kernel stop this process when its parent was killed: nothing would start it again."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
