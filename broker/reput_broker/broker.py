"""A broker in this process: the order in which it starts and stops. `compose` has its parts.

Start: bind the sockets, open HTTP (alive, not ready), then run one tenure after the other (`running_tenure`): lock and
recover the store, read the tables, start services and listeners, ready.
With `proxy_port`, a process with the gRPC proxy runs while the broker serves; it drains first.
Stop: not ready, close the listeners, answer held pulls, finish running requests, close connections, flush everything,
save the tables, close the store.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import structlog
import trio

from reput_broker.access.control import AccessControl, open_access
from reput_broker.access.pages import GuardedPages
from reput_broker.compose.live_config import LiveConfig
from reput_broker.compose.master import MasterParts
from reput_broker.compose.open_files import raise_limit, shares_of, warn_if_few
from reput_broker.compose.parts import BrokerBase
from reput_broker.compose.proxy_process import ProxyProcess, check_proxy, port_of_proxy, proxy_task
from reput_broker.compose.running_tenure import RunningTenure
from reput_broker.compose.storage import Storage
from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import path_text
from reput_broker.config.properties import Properties
from reput_broker.console.app import Console
from reput_broker.groups.cold_quotas import ColdQuotas
from reput_broker.ha.election.candidacy import OtherMembers
from reput_broker.ha.election.elector import NOT_OPEN, Elector, make_elector, slave_id
from reput_broker.ha.epochs import OwnLog
from reput_broker.namesrv.registration import Announced, Registration
from reput_broker.observe.counters import Counters, ProxyCounters
from reput_broker.observe.figures import measure_loop_delay
from reput_broker.observe.health import Health
from reput_broker.observe.history.file import What
from reput_broker.observe.history.recorder import History
from reput_broker.observe.log import close_log, configure_logging
from reput_broker.observe.metrics import MetricsSources, broker_version
from reput_broker.observe.pages import make_app, status_of
from reput_broker.observe.span_exporter import SpanExporter
from reput_broker.processors.operations import MessageIntake, Operations, PropertiesProcessor
from reput_broker.remoting.request import Handler
from reput_broker.remoting.tls import ServerTls
from reput_broker.server.gate import Gate
from reput_broker.server.http_server import App, HttpListenFailed, serve_http
from reput_broker.server.listener import ListenFailed, address_of, bind
from reput_broker.server.local_requests import LocalRequests
from reput_broker.store.base.results import RecoveryReport
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import StaticTenures, Surroundings, Tenure, TenureSource
from reput_protocol import kernel
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

log = structlog.get_logger(__name__)

_FITNESS_S = 0.5
_SPANS_S = 2.0
"""How long a stop waits until the last spans are exported."""


class Broker:
    """A broker in this process: an async context manager, ready inside its block and drained after it.

    Args:
        config: the object is kept, and live options are read from it while the broker runs.
        embedded: inside a program or a test. HTTP is then off unless the configuration names its port.
        surroundings: clocks and disks; tests may replace the real ones.
        tenures: decides the broker's role; the configuration does by default.
        reload: reads the configuration's sources again, when an administrator asks for it; None: there are none.

    Runs under trio. In a program that has not configured structlog, its warnings go to stderr.

    Raises (on entering):
        RuntimeError: there is no trio loop.
        ListenFailed, HttpListenFailed: a port is taken.
        NoUsers, UserFileRefused: access control is on, and there is no user, or the file with them cannot be used.
        StoreError: the directory is in use, foreign or damaged. Nothing in it was changed.
        TlsFilesUnusable: a certificate or its key cannot be used.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        embedded: bool = True,
        surroundings: Surroundings | None = None,
        tenures: TenureSource | None = None,
        reload: Callable[[], BrokerConfig] | None = None,
    ) -> None:
        self.config = config
        surroundings = surroundings or Surroundings()
        self.counters = Counters()
        self.health = Health()
        self.sources = MetricsSources(config, self.counters, self.health, clock_ms=surroundings.clock_ms)
        source = tenures or StaticTenures(config)
        live, intake = LiveConfig(config, reload, self.sources), MessageIntake(self.health)
        operations = Operations(
            config,
            self.health,
            live,
            lambda: {**status_of(self.sources), **self._status()},
            intake,
            PropertiesProcessor(Properties(config), live, surroundings.clock_ms, permission=intake),
        )
        self._base = BrokerBase(
            config,
            surroundings,
            self.sources,
            source,
            waits_for_room=not embedded,
            operations=operations,
            history=History(self.sources),
            cold_quotas=ColdQuotas(surroundings.clock_ms),
        )
        on_master = source.master_found if isinstance(source, StaticTenures) else _ignore
        self._registration = Registration(config, self.counters, on_master)
        self._embedded = embedded
        self._has_configured_log = False
        self._context: AbstractAsyncContextManager[None] | None = None
        self._http_address: tuple[str, int] | None = None
        self._running: RunningTenure | None = None
        self._proxy: ProxyProcess | None = None
        self._is_ending = False
        self._entered = trio.Event()
        self._ended = trio.Event()

    # For users of the broker

    @property
    def address(self) -> str:
        """The address for clients: `ip:port`, with the real port if the configuration has 0."""
        return f"{self._base.address[0]}:{self._base.address[1]}"

    @property
    def http_address(self) -> str | None:
        """The address of metrics and health, `ip:port`; None if there is no HTTP listener."""
        return None if self._http_address is None else f"{self._http_address[0]}:{self._http_address[1]}"

    @property
    def proxy_address(self) -> str | None:
        """Where gRPC clients connect, `ip:port`; None without `proxy_port`."""
        return None if self._proxy is None else f"{self._base.address[0]}:{self._proxy.port}"

    @property
    def ha_address(self) -> str | None:
        """Where slaves copy the log, `ip:port`; None if they cannot."""
        listener = self._base.ha_listener
        return None if listener is None else f"{self._base.address[0]}:{address_of(listener)[1]}"

    @property
    def store(self) -> MessageStore:
        """The message store; another one after a change of role."""
        return self._storage.store

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """What handles each request code, for descriptions of the broker; another mapping after a change of role."""
        return self._parts.server.handling.handlers

    @property
    def _storage(self) -> Storage:
        storage = None if self._running is None else self._running.storage
        assert storage is not None, "the broker is entered first"
        return storage

    @property
    def _parts(self) -> MasterParts:
        parts = None if self._running is None else self._running.parts
        assert isinstance(parts, MasterParts), "the broker is entered first, and a master"
        return parts

    def stop(self) -> None:
        """Ask the broker to stop; `stopped` returns."""
        self._base.stop_wanted.set()
        self._entered.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called; a broker that was still starting then is entered and serves nothing."""
        return self._base.stop_wanted.is_set()

    async def stopped(self) -> None:
        """Wait until `stop` was called."""
        await self._base.stop_wanted.wait()

    async def __aenter__(self) -> Broker:
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            raise RuntimeError(
                "a Broker runs in a trio program; from asyncio or without a loop, start one with `reput serve`"
            ) from None
        if self._embedded and not structlog.is_configured():
            configure_logging(level="warning")
            self._has_configured_log = True
        self._context = self._run()
        try:
            await self._context.__aenter__()
        except BaseException:
            self._reset_log()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        context, self._context = self._context, None
        try:
            return await context.__aexit__(kind, error, trace)
        finally:
            self._reset_log()

    def _reset_log(self) -> None:
        if self._has_configured_log:
            structlog.reset_defaults()
            close_log()

    # Start and stop

    @asynccontextmanager
    async def _run(self) -> AsyncIterator[None]:
        """Run everything; the caller's block is the time between ready and draining."""
        base = self._base
        check_proxy(self.config)
        base.open_files = shares_of(raise_limit())
        warn_if_few(base.open_files, self.config.limits.connections)
        tls = self.sources.tls = await trio.to_thread.run_sync(ServerTls.of, self.config.tls)
        base.gate = Gate(self.config, tls)
        self._bind()
        try:
            if self.config.tracing.endpoint:
                self.sources.spans = await trio.to_thread.run_sync(make_span_exporter, self.config)
            proxy = await self._make_proxy()
            base.access = await trio.to_thread.run_sync(open_access, self.config, self.counters)
            async with trio.open_nursery() as nursery:
                await self._start_http(nursery)
                if isinstance(base.access, AccessControl):
                    nursery.start_soon(base.access.watch)
                await self._start_election(nursery)
                self._name_member()
                nursery.start_soon(measure_loop_delay, self.counters.loop_delay_seconds)
                if tls is not None:
                    nursery.start_soon(tls.watch)
                nursery.start_soon(self._registration.run)
                nursery.start_soon(self._serve_tenures)
                await self._entered.wait()
                if self.is_stopping:
                    proxy = None  # nothing is served
                if base.elector is not None:
                    nursery.start_soon(self._watch_fitness, base.elector)
                if proxy is not None:
                    nursery.start_soon(proxy.run)
                try:
                    yield
                finally:
                    with trio.CancelScope(shield=True):
                        if proxy is not None:
                            await proxy.stop()
                        await self._registration.leave()
                        await self._end_tenures()
                        await self._ended.wait()
                        if base.elector is not None:
                            await base.elector.resign()
                    nursery.cancel_scope.cancel()
        finally:
            self._close_sockets()
            if self.sources.spans is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(self.sources.spans.close, _SPANS_S)
            if base.elector is not None:
                with trio.CancelScope(shield=True):
                    await base.elector.close()

    async def _make_proxy(self) -> ProxyProcess | None:
        """Return the proxy of `proxy_port`, which does not run yet. Raises ListenFailed."""
        if self.config.proxy_port == "off":
            return None
        port = await port_of_proxy(self.config)
        host, own_port = self._base.address
        task = proxy_task(self.config, f"[{host}]:{own_port}" if ":" in host else f"{host}:{own_port}", port)
        self.sources.proxy = ProxyCounters()
        self._proxy = ProxyProcess(task, self.sources.proxy, self.health, self.sources.spans)
        return self._proxy

    async def _serve_tenures(self) -> None:
        """Run one tenure after the other; the broker is entered once the first one serves."""

        def is_ready(tenure: Tenure, report: RecoveryReport) -> None:
            self._say_ready(tenure, report)
            self._announce()
            self._entered.set()

        try:
            follows = True
            while follows and not self._is_ending:
                self._running = RunningTenure(self._base)
                follows = await self._running.run(is_ready)
        finally:
            self._ended.set()

    def _announce(self) -> None:
        """Have name servers list this broker, in the role that it now has."""
        own = self._base.routes.own
        assert own is not None, "it serves"
        self._registration.announce(Announced(own, self._announced_addresses()[0]))

    def _name_member(self) -> None:
        """Note how the other members of the group are to list this one."""
        members, number = self._base.routes.members, self.config.broker_id
        members.own_id = number if self._base.elector is None else slave_id(number)
        members.own_address = self._announced_addresses()[0]

    def _announced_addresses(self) -> tuple[str, str]:
        """Return where clients and where slaves reach this broker; empty if slaves cannot."""
        address = self.config.advertise or f"{self.config.host}:{self._base.address[1]}"
        listener = self._base.ha_listener
        return address, "" if listener is None else f"{address.rpartition(':')[0]}:{address_of(listener)[1]}"

    async def _end_tenures(self) -> None:
        self._is_ending = True
        self._base.history.note(What.STOPPED)
        if self._base.elector is not None and self._running is not None:
            await self._base.elector.leave()
        if self._running is not None:
            self._running.end()

    async def _start_election(self, nursery: trio.Nursery) -> None:
        """Campaign, if the configuration names an engine; the caller may have given an elector too."""
        base = self._base
        if self.config.election.is_on and base.elector is None:
            base.tenures = await trio.to_thread.run_sync(make_elector, self.config, *self._announced_addresses())
        if base.elector is not None:
            base.elector.others = OtherMembers(self.config, base.routes.members, self._own_log)
            await base.elector.set_unfit(NOT_OPEN, may_lead=False)
            nursery.start_soon(base.elector.run)

    def _own_log(self) -> OwnLog | None:
        storage = None if self._running is None else self._running.storage
        return None if storage is None else OwnLog.of(self.config, storage.store, storage.epochs.entries)

    async def _watch_fitness(self, elector: Elector) -> None:
        """Have another member be the master while the log of this one is not open or cannot be written."""
        while True:
            if self._running is None or self._running.parts is None:
                await elector.set_unfit(NOT_OPEN, may_lead=False)
            else:
                await elector.set_unfit(self.store.unfit_reason)
            await trio.sleep(_FITNESS_S)

    def _bind(self) -> None:
        config, base = self.config, self._base
        try:
            base.listeners["main"] = bind(config.host, config.port)
            for name in ("name", "fast"):
                bound = self._bind_other(f"{name}_port")
                if bound is not None:
                    base.listeners[name] = bound
            base.ha_listener = self._bind_other("ha_port")
        except ReputError:
            self._close_sockets()
            raise
        base.address = address_of(base.listeners["main"])
        if base.address[0] in ("0.0.0.0", "::"):
            base.address = ("127.0.0.1", base.address[1])

    def _bind_other(self, option: str) -> socket.socket | None:
        """Return a socket bound to one of the other ports; None if there is none, or it may be missing and is."""
        port = self.config.port_to_open(option)
        if port is None:
            return None
        try:
            return bind(self.config.host, port)
        except ListenFailed as error:
            if not self.config.may_miss(option):
                raise
            _say_missing(option, port, error, "off")
            return None

    def _close_sockets(self) -> None:
        base = self._base
        for bound in (*base.listeners.values(), *filter(None, [base.ha_listener])):
            bound.close()

    async def _start_http(self, nursery: trio.Nursery) -> None:
        port = self.config.http_port_to_open(embedded=self._embedded)
        if port is None:
            return
        routes: list[BaseRoute] = []
        access = self._base.access
        console: Console | None = None
        if self.config.console.enabled:
            history = self._base.history
            history.is_kept = True
            users = access if isinstance(access, AccessControl) else None
            console = Console(self.sources, history, self._local_requests, users)
            routes = console.routes()
            nursery.start_soon(history.run)
            nursery.start_soon(console.members.run)
        app: App = make_app(self.sources, self._status, routes)
        if isinstance(access, AccessControl):
            app = GuardedPages(app, access, console)
        serve = partial(
            serve_http,
            allowed_hosts=self._own_names(),
            connections_max=self._base.open_files.http_connections,
            gate=self._base.gate,
        )
        host = self.config.http_host
        try:
            self._http_address = await nursery.start(serve, app, host, port)
        except HttpListenFailed as error:
            if not self.config.may_miss("http_port"):
                raise
            self._http_address = await nursery.start(serve, app, host, 0)
            _say_missing("http_port", port, error, self.http_address)

    def _local_requests(self) -> LocalRequests | None:
        """Return what makes requests to the present tenure."""
        parts = None if self._running is None else self._running.parts
        return None if parts is None else parts.server.local

    def _own_names(self) -> tuple[str, ...]:
        """Return the names by which HTTP clients may know this broker."""
        config = self.config
        advertised = (config.advertise or "").rpartition(":")[0]
        return (socket.gethostname(), config.host, advertised, *config.http_allowed_hosts)

    def _say_ready(self, tenure: Tenure, report: RecoveryReport) -> None:
        log.info(
            "broker_ready",
            role=str(tenure.role),
            broker_id=tenure.broker_id,
            data_dir=str(self.config.data_dir),
            address=self.address,
            listeners={name: address_of(bound)[1] for name, bound in self._base.listeners.items()},
            ha=self.ha_address,
            http=self.http_address,
            flush=self.config.store.flush,
            kernel=kernel.FORM,
            tls=self.config.tls.mode,
            access_control="on" if self.config.access.enabled else "off",
            recovery=report.kind,
            records_checked=report.records,
            truncated_bytes=report.truncated_bytes,
            duration_s=round(report.duration_s, 3),
        )
        if self.config.access.enabled or not self.config.is_reachable:
            return
        log.warning(
            "listening_without_access_control",
            hint="any client that can connect may read and write everything; see access.enabled",
        )

    def _status(self) -> dict[str, Any]:
        base, running = self._base, self._running
        return {
            "address": self.address,
            "http": self.http_address,
            "ha": self.ha_address,
            "listeners": {name: address_of(s)[1] for name, s in base.listeners.items() if s.fileno() >= 0},
            "cluster": self.config.cluster,
            "broker_name": self.config.broker_name,
            "data_dir": path_text(self.config.data_dir),
            "flush": self.config.store.flush,
            "name_servers": self._registration.status(),
            **({} if self._proxy is None else {"proxy": self._proxy.status()}),
            **({} if base.elector is None else {"election": base.elector.status()}),
            **({} if running is None else running.status()),
        }


def _ignore(_address: str, _ha_address: str) -> None:
    """An election says who the master is, not a name server."""


def _say_missing(option: str, port: int, error: ReputError, instead: object) -> None:
    log.warning(
        "port_taken",
        option=option,
        port=port,
        instead=instead,
        error=str(error),
        hint=f"it follows from port; set {option}, or choose a port 10 away from that of another broker",
    )


def make_span_exporter(config: BrokerConfig) -> SpanExporter:
    """Return a started exporter to `tracing.endpoint`. Blocks: it imports OpenTelemetry.

    Raises:
        ConfigError: OpenTelemetry's exporter is not installed.
    """
    resource = {
        "service.name": "reput",
        "service.namespace": config.cluster,
        "service.instance.id": f"{config.broker_name}/{config.broker_id}",
        "service.version": broker_version(),
    }
    try:
        exporter = SpanExporter(config.tracing.endpoint, resource)
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("opentelemetry"):
            raise
        text = (
            "needs OpenTelemetry's exporter, which is not installed (the extra `otel` of reput brings it): "
            "pip install opentelemetry-exporter-otlp-proto-http"
        )
        key = "tracing.endpoint"
        raise ConfigError([ConfigProblem(key, config.origins.get(key, "code"), text)]) from missing
    exporter.start()
    return exporter
