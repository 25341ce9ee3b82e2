"""A broker in this process: the order in which it starts and stops. `compose` has its parts.

Start: bind the sockets, open HTTP (alive, not ready), lock and recover the store, read the tables, start services and
listeners, ready.
Stop: not ready, close the listeners, answer held pulls, finish running requests, close connections, flush everything,
save the tables, close the store.
"""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any

import structlog
import trio

from reput_broker.compose.open_files import raise_limit, shares_of, warn_if_few
from reput_broker.compose.parts import BrokerParts
from reput_broker.compose.start import FreeSpace, open_or_close, open_when_there_is_room
from reput_broker.compose.storage import Storage, store_options
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.observe.figures import measure_loop_delay, refresh_disk_figures
from reput_broker.observe.health import BrokerState, Health, StoreHealth
from reput_broker.observe.log import close_log, configure_logging
from reput_broker.observe.metrics import MetricsCollector, MetricsSources
from reput_broker.observe.pages import make_app
from reput_broker.server.http_server import serve_http
from reput_broker.server.listener import address_of, bind
from reput_broker.staging.parts import StagingParts
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import RecoveryReport
from reput_broker.surroundings import Surroundings
from reput_protocol import kernel
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_BUSY_LOOK_S = 0.02


class Broker:
    """A broker in this process: an async context manager, ready inside its block and drained after it.

    Args:
        config: the object is kept, and live options are read from it while the broker runs.
        embedded: inside a program or a test. HTTP and the name port are then off unless the configuration names them.
        surroundings: clocks and disks; tests may replace the real ones.

    Runs under trio. In a program that has not configured structlog, its warnings go to stderr.

    Raises (on entering):
        RuntimeError: there is no trio loop.
        ListenFailed, HttpListenFailed: a port is taken.
        StoreError: the directory is in use, foreign or damaged. Nothing in it was changed.
    """

    def __init__(
        self, config: BrokerConfig, *, embedded: bool = True, surroundings: Surroundings | None = None
    ) -> None:
        self.config = config
        self._surroundings = surroundings or Surroundings()
        self.counters = Counters()
        self.health = Health()
        self._store_health = StoreHealth(self.health)
        self.sources = MetricsSources(
            config, self.counters, self.health, clock_ms=self._surroundings.clock_ms
        )
        self._embedded = embedded
        self._has_configured_log = False
        self._running: AbstractAsyncContextManager[None] | None = None
        self._sockets: dict[str, socket.socket] = {}
        self._http_address: tuple[str, int] | None = None
        self._address = ("", 0)
        self._stop_wanted = trio.Event()
        self._storage: Storage | None = None
        self._parts: BrokerParts | None = None

    # For users of the broker

    @property
    def address(self) -> str:
        """The address for clients: `ip:port`, with the real port if the configuration has 0."""
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def http_address(self) -> str | None:
        """The address of metrics and health, `ip:port`; None if there is no HTTP listener."""
        return None if self._http_address is None else f"{self._http_address[0]}:{self._http_address[1]}"

    @property
    def store(self) -> MessageStore:
        """The message store."""
        return self._opened.store

    @property
    def _opened(self) -> Storage:
        assert self._storage is not None, "the broker is entered first"
        return self._storage

    def stop(self) -> None:
        """Ask the broker to stop; `stopped` returns."""
        self._stop_wanted.set()

    async def stopped(self) -> None:
        """Wait until `stop` was called."""
        await self._stop_wanted.wait()

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
        self._running = self._run()
        try:
            await self._running.__aenter__()
        except BaseException:
            self._reset_log()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._running is not None
        running, self._running = self._running, None
        try:
            return await running.__aexit__(kind, error, trace)
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
        self._token = trio.lowlevel.current_trio_token()
        self._open_files = shares_of(raise_limit())
        warn_if_few(self._open_files, self.config.limits.connections)
        self._bind()
        try:
            async with trio.open_nursery() as nursery:
                await self._start_http(nursery)
                report = await self._open_storage()
                parts = self._parts = BrokerParts(
                    self._opened,
                    self.sources,
                    self._store_health,
                    self._surroundings,
                    connections_max=self._open_files.connections,
                )
                for task in parts.tasks():
                    nursery.start_soon(task)
                nursery.start_soon(measure_loop_delay, self.counters.loop_delay_seconds)
                nursery.start_soon(
                    refresh_disk_figures, self.sources.disk, self.config, self.store.oldest_store_timestamp
                )
                await self._complete_batches(parts.staging)
                await nursery.start(parts.server.run, self._sockets)
                self._say_ready(report)
                try:
                    yield
                finally:
                    with trio.CancelScope(shield=True):
                        await self._drain(parts)
                    nursery.cancel_scope.cancel()
        finally:
            for bound in self._sockets.values():
                bound.close()
            with trio.CancelScope(shield=True):
                await self._close()

    async def _complete_batches(self, staging: StagingParts) -> None:
        """Complete the batch that was being published, before serving. `stop` ends this early."""
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._stop_wanted.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            await staging.recover()
            nursery.cancel_scope.cancel()

    def _bind(self) -> None:
        config = self.config
        self._sockets["main"] = bind(config.host, config.port)
        self._address = address_of(self._sockets["main"])
        if self._address[0] in ("0.0.0.0", "::"):
            self._address = ("127.0.0.1", self._address[1])
        name_port = config.name_port_to_open()
        if name_port is not None:
            try:
                self._sockets["name"] = bind(config.host, name_port)
            except ReputError:
                self._sockets["main"].close()
                raise

    async def _start_http(self, nursery: trio.Nursery) -> None:
        port = self.config.http_port_to_open(embedded=self._embedded)
        if port is None:
            return
        app = make_app(MetricsCollector(self.sources), self._status)
        serve = partial(
            serve_http,
            allowed_hosts=self._own_names(),
            connections_max=self._open_files.http_connections,
        )
        self._http_address = await nursery.start(serve, app, self.config.http_host, port)

    def _own_names(self) -> tuple[str, ...]:
        """Return the names by which HTTP clients may know this broker."""
        config = self.config
        advertised = (config.advertise or "").rpartition(":")[0]
        return (socket.gethostname(), config.host, advertised, *config.http_allowed_hosts)

    async def _open_storage(self) -> RecoveryReport:
        """Lock and recover the directory and read the tables; the health page answers meanwhile.

        While the disk is too full, the start waits and retries; an embedded broker raises instead.
        """
        if self._embedded:
            storage = self._new_storage()
            report = await open_or_close(storage)
        else:
            directories = (self.config.data_dir, *self.config.store.commit_log_dirs)
            storage, report = await open_when_there_is_room(
                self._new_storage,
                FreeSpace(directories, self._stop_wanted),
                self.health,
                self._stop_wanted,
            )
        self._storage = storage
        self.sources.recovery_duration_s = report.duration_s
        self.sources.recovery_truncated_bytes = report.truncated_bytes
        return report

    def _new_storage(self) -> Storage:
        on_event = partial(self._store_health.report, self._token)
        return Storage(
            self.config,
            store_options(self.config, self._open_files, self._address, on_event),
            self._surroundings.clock_ms,
            self._store_health.note_table,
        )

    def _say_ready(self, report: RecoveryReport) -> None:
        is_read_only = self.store.read_only_reason is not None
        self.health.state = BrokerState.READONLY if is_read_only else BrokerState.RUNNING
        log.info(
            "broker_ready",
            data_dir=str(self.config.data_dir),
            address=self.address,
            listeners={name: address_of(bound)[1] for name, bound in self._sockets.items()},
            http=self.http_address,
            flush=self.config.store.flush,
            kernel=kernel.FORM,
            authentication="off",
            recovery=report.kind,
            records_checked=report.records,
            truncated_b=report.truncated_bytes,
            duration_s=round(report.duration_s, 3),
        )
        if not self.config.allow_insecure:
            return
        log.warning(
            "listening_without_authentication",
            hint="any client that can connect may read and write everything",
        )

    async def _drain(self, parts: BrokerParts) -> None:
        self.health.state = BrokerState.DRAINING
        server = parts.server
        server.stop_accepting()
        self._opened.hold.release_all()
        with trio.move_on_after(self.config.shutdown_grace):
            while server.is_busy:  # noqa: ASYNC110 - once, at the end; an event would cost every answer
                await trio.sleep(_BUSY_LOOK_S)
        server.close_all("shutdown")
        await parts.retry.finish()

    async def _close(self) -> None:
        storage = self._storage
        if storage is None:
            return
        started_at = time.monotonic()
        is_flushed = await storage.close()
        if is_flushed is not None and self.health.state is not BrokerState.RECOVERING:
            log.info(
                "broker_stopped",
                everything_flushed=is_flushed,
                duration_s=round(time.monotonic() - started_at, 3),
            )

    def _status(self) -> dict[str, Any]:
        storage, parts = self._storage, self._parts
        return {
            "address": self.address,
            "http": self.http_address,
            "listeners": {name: address_of(s)[1] for name, s in self._sockets.items() if s.fileno() >= 0},
            "data_dir": str(self.config.data_dir),
            "flush": self.config.store.flush,
            "held_pulls": 0 if storage is None else storage.hold.count,
            "delayed": {} if parts is None else parts.delay.status(),
            "transactions": {} if parts is None else parts.retry.status(),
        }
