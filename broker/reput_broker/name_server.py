"""A name server alone, without a broker around it, for `reput namesrv`.

Its configuration is that of a broker, as far as it has a meaning here (`OPTIONS`), with other defaults.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import structlog
import trio

from reput_broker.access.control import Access, AccessControl, open_access
from reput_broker.access.pages import GuardedPages
from reput_broker.access.processor import UsersProcessor
from reput_broker.compose.live_config import LiveConfig
from reput_broker.compose.open_files import raise_limit, shares_of, warn_if_few
from reput_broker.config.errors import ConfigError, ConfigProblem, nearest_key
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import option_fields
from reput_broker.config.properties import Properties
from reput_broker.namesrv.processor import NameServerProcessor
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.counters import Counters
from reput_broker.observe.figures import measure_loop_delay
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.pages import make_app
from reput_broker.processors.operations import PropertiesProcessor
from reput_broker.remoting.tls import ServerTls
from reput_broker.server.gate import Gate
from reput_broker.server.handling import RequestHandling
from reput_broker.server.http_server import App, serve_http
from reput_broker.server.listener import Server, address_of, bind
from reput_broker.store.base.errors import directory_refusals
from reput_broker.store.base.file_io import make_directories
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.tables import KVConfigManager
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

DEFAULTS: Final = {"data_dir": "reput-names", "port": 9876, "http_port": 9877}
_PLAIN: Final = (
    "data_dir",
    "allow_insecure",
    "host",
    "port",
    "http_host",
    "http_port",
    "http_allowed_hosts",
    "proxy_protocol_from",
    "shutdown_grace",
)
_SECTIONS: Final = ("access.", "limits.", "log.", "tls.")
_OF_BROKERS: Final = (
    "access.broker_user",
    "access.broker_secret",
    "access.send_rocketmq_signatures",
    "limits.pull_bytes",
    "limits.pull_messages",
    "tls.connect",
    "tls.server_name",
)


def is_option(key: str) -> bool:
    """Tell whether a name server has this option of a broker."""
    return key in _PLAIN or (key.startswith(_SECTIONS) and key not in _OF_BROKERS)


def check_options(config: BrokerConfig) -> BrokerConfig:
    """Return the configuration. Raises ConfigError if options are set that a name server does not have."""
    keys = [key for key in option_fields(type(config)) if is_option(key)]
    problems = [
        ConfigProblem(key, origin, "a name server has no such option", nearest_key(key, keys))
        for key, origin in config.origins.items()
        if not is_option(key)
    ]
    if problems:
        raise ConfigError(problems)
    return config


class DirectoryInUse(ReputError):
    """Another name server uses the data directory. Nothing in it was changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is used by another name server; stop it, or give each its own data_dir")
        self.path = path


class NameServer:
    """A name server in this process: an async context manager, ready inside its block and drained after it.

    Args:
        config: the object is kept, and live options are read from it while the name server runs.

    Raises (on entering):
        ListenFailed, HttpListenFailed: a port is taken.
        TlsFilesUnusable: a certificate or its key cannot be used.
        NoUsers, UserFileRefused: access control is on, and there is no user, or the file with them cannot be used.
        DirectoryInUse, StoreNotWritable, DataDirUnusable, ConfigFileDamaged, OSError: the data directory cannot be
            used.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.counters = Counters()
        self.health = Health()
        self.sources = MetricsSources(config, self.counters, self.health)
        self.routes = RouteInfoManager(None, trio.current_time)
        self._kv_config = KVConfigManager(config.data_dir / "config" / "kvConfig.json")
        self._address = ("", 0)
        self._http_address: tuple[str, int] | None = None
        self._stop_wanted = trio.Event()
        self._running: AbstractAsyncContextManager[None] | None = None
        self.sources.registered_brokers = lambda: self.routes.registered

    @property
    def address(self) -> str:
        """The address for brokers and clients: `ip:port`, with the real port if the configuration has 0."""
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def http_address(self) -> str | None:
        """The address of metrics and health, `ip:port`; None if there is no HTTP listener."""
        return None if self._http_address is None else f"{self._http_address[0]}:{self._http_address[1]}"

    def stop(self) -> None:
        """Ask the name server to stop; `stopped` returns."""
        self._stop_wanted.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_wanted.is_set()

    async def stopped(self) -> None:
        """Wait until `stop` was called."""
        await self._stop_wanted.wait()

    async def __aenter__(self) -> NameServer:
        self._running = self._run()
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._running is not None
        return await self._running.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        config = self.config
        files = shares_of(raise_limit())
        warn_if_few(files, config.limits.connections)
        tls = self.sources.tls = await trio.to_thread.run_sync(ServerTls.of, config.tls)
        gate = Gate(config, tls)
        with bind(config.host, config.port) as bound, _locked(config.data_dir):
            self._address = address_of(bound)
            access = await trio.to_thread.run_sync(open_access, config, self.counters)
            with directory_refusals(config.data_dir):
                await trio.to_thread.run_sync(self._kv_config.load)
            processor = NameServerProcessor(self.routes, self._kv_config, TableSaver(self._kv_config))
            properties = PropertiesProcessor(
                Properties(config, is_option), LiveConfig(config, None, self.sources), self.sources.clock_ms
            )
            handlers = {**processor.handlers(), **properties.handlers()}
            if isinstance(access, AccessControl):
                handlers |= UsersProcessor(access, config.cluster).handlers()
            server = Server(
                config,
                RequestHandling(handlers, limits=config.limits, access=access),
                self.counters,
                connections_max=files.connections,
                on_gone=self.routes.client_gone,
                gate=gate,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(measure_loop_delay, self.counters.loop_delay_seconds)
                await self._start_http(nursery, files.http_connections, gate, access)
                if tls is not None:
                    nursery.start_soon(tls.watch)
                if isinstance(access, AccessControl):
                    nursery.start_soon(access.watch)
                for task in processor.tasks():
                    nursery.start_soon(task)
                await nursery.start(server.run, {"main": bound})
                self.health.state = BrokerState.RUNNING
                log.info(
                    "name_server_ready",
                    address=self.address,
                    http=self.http_address,
                    data_dir=str(config.data_dir),
                    tls=config.tls.mode,
                    access_control="on" if config.access.enabled else "off",
                )
                try:
                    yield
                finally:
                    with trio.CancelScope(shield=True):
                        await self._drain(server)
                    nursery.cancel_scope.cancel()
        log.info("name_server_stopped")

    async def _start_http(self, nursery: trio.Nursery, connections_max: int, gate: Gate, access: Access) -> None:
        config = self.config
        port = config.http_port_to_open(embedded=False)
        if port is None:
            return
        app: App = make_app(self.sources, self._status)
        if isinstance(access, AccessControl):
            app = GuardedPages(app, access)
        names = (socket.gethostname(), config.host, *config.http_allowed_hosts)
        serve = partial(serve_http, allowed_hosts=names, connections_max=connections_max, gate=gate)
        self._http_address = await nursery.start(serve, app, config.http_host, port)

    async def _drain(self, server: Server) -> None:
        self.health.state = BrokerState.DRAINING
        server.stop_accepting()
        await server.drain(self.config.shutdown_grace)

    def _status(self) -> Mapping[str, Any]:
        return {
            "address": self.address,
            "http": self.http_address,
            "data_dir": str(self.config.data_dir),
            "registered_brokers": self.routes.registered,
        }


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Hold the lock of the data directory, which is created if it is missing."""
    with directory_refusals(data_dir):
        make_directories(data_dir)
        fd = os.open(data_dir / "namesrv.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUse(data_dir) from None
        yield
    finally:
        os.close(fd)
