"""The composition root: what a broker consists of, in which order it starts, and in which order it stops.

Start: sockets bound, HTTP open (alive, not ready), store locked and recovered, tables read, services, listeners, ready.
Stop: not ready, no new connections, held pulls answered, running requests finished, connections closed, everything
flushed, tables saved, store closed.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import structlog
import trio

from reput_broker.clean_service import CleanFilesService
from reput_broker.commit_service import CommitRealTimeService
from reput_broker.compose.delay import DelayParts
from reput_broker.compose.groups import GroupParts, open_groups
from reput_broker.compose.retry import RetryParts
from reput_broker.config.model import BrokerConfig
from reput_broker.flush_service import FlushCommitLogService
from reput_broker.groups.reply_push import ReplyPusher
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.observe.counters import Counters
from reput_broker.observe.disk_figures import refresh_disk_figures
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.http import make_app
from reput_broker.observe.http_server import serve_http
from reput_broker.observe.log import close_log, configure_logging
from reput_broker.observe.loop_delay import measure_loop_delay
from reput_broker.observe.metrics import MetricsCollector, MetricsSources
from reput_broker.observe.metrics_groups import GroupSources
from reput_broker.observe.store_health import FAILURES, NEWS, StoreHealth
from reput_broker.open_files import raise_limit, shares_of, warn_if_few
from reput_broker.processors.admin import AdminProcessor
from reput_broker.processors.appender import Appender
from reput_broker.processors.fetch import FetchProcessor
from reput_broker.processors.filter_check import FilterCheck
from reput_broker.processors.offset import OffsetProcessor
from reput_broker.processors.pull import PullProcessor
from reput_broker.processors.put_once import PutOnce
from reput_broker.processors.query import QueryProcessor
from reput_broker.processors.queue import QueueProcessor
from reput_broker.processors.reply import ReplyProcessor
from reput_broker.processors.send import SendProcessor
from reput_broker.processors.topic import TopicProcessor
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.put_lock import PutLock
from reput_broker.request import Handler, Request
from reput_broker.retry.deduplication import Deduplication
from reput_broker.server.dispatch import Dispatcher
from reput_broker.server.listener import Server, address_of, bind
from reput_broker.services import AllocateService, OffsetSaveService, ReputMessageService, StoreUpkeep
from reput_broker.sink.parts import SinkParts, SinkTables
from reput_broker.start_room import StartRoom
from reput_broker.store.errors import DiskFull, FlushFailed
from reput_broker.store.file_io import is_no_space
from reput_broker.store.message_store import MessageStore
from reput_broker.store.options import StoreOptions
from reput_broker.store.results import RecoveryReport
from reput_broker.surroundings import Surroundings
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol import kernel
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError
from reput_protocol.host import Host

log = structlog.get_logger(__name__)

_BUSY_LOOK_S = 0.02
_TABLES = ("_topics", "_offsets", "_group_settings", "_sink_tables")


class Broker:
    """A broker in this process: an async context manager that is ready inside its block and drained after it.

    Args:
        config: what it does; the object is kept, and options marked live are read from it while it runs.
        embedded: inside a program or a test. HTTP and the name port are then off unless the configuration names them.
        surroundings: the time and the disk that it goes by; a test may give it others than the machine's.

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
        # By this a client tells this broker from another one of the same name at an address that was announced.
        self._identity = {"brokerName": config.broker_name, "startId": secrets.token_hex(8)}

    # What a user of the broker sees

    @property
    def address(self) -> str:
        """What clients dial: `ip:port`, with the real port where the configuration says 0."""
        return f"{self._address[0]}:{self._address[1]}"

    @property
    def http_address(self) -> str | None:
        """Where metrics and health are, `ip:port`; None if there is no HTTP listener."""
        return None if self._http_address is None else f"{self._http_address[0]}:{self._http_address[1]}"

    @property
    def store(self) -> MessageStore:
        """The message store."""
        return self._store

    def stop(self) -> None:
        """Ask the broker to stop; whoever waits in `stopped` goes on."""
        self._stop_wanted.set()

    async def stopped(self) -> None:
        """Wait until somebody has called `stop`."""
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
                report = await self._open_store_when_there_is_room()
                self._compose()
                for service in self._services():
                    nursery.start_soon(service)
                await self._complete_batches()
                await nursery.start(self._server.run, self._sockets)
                self._say_ready(report)
                try:
                    yield
                finally:
                    with trio.CancelScope(shield=True):
                        await self._drain()
                    nursery.cancel_scope.cancel()
        finally:
            for bound in self._sockets.values():
                bound.close()
            with trio.CancelScope(shield=True):
                await self._close()

    async def _complete_batches(self) -> None:
        """Complete what a sink had begun to publish, before anybody is served, unless the broker is to stop first."""
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self._stop_wanted.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            await self._sink.recover()
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

    async def _open_store_when_there_is_room(self) -> RecoveryReport:
        """Open the store; while the disk is too full for what a start has to write, wait and try again.

        The broker is alive and not ready meanwhile, with the reason. One that is embedded raises instead.
        """
        said = ""
        room = StartRoom((self.config.data_dir, *self.config.store.commit_log_dirs), self._stop_wanted)
        while True:
            began_at = trio.current_time()
            try:
                report = await self._open_store()
            except (DiskFull, FlushFailed, OSError) as error:
                is_full = isinstance(error, DiskFull) or is_no_space(error)
                if self._embedded or not is_full or self._stop_wanted.is_set():
                    raise
                await self._close()
                for name in (*_TABLES, "_delay", "_retry", "_store"):
                    self.__dict__.pop(name, None)
                self.health.set("disk_space", False, f"the start waits for room: {error}", gates=True)
                if str(error) != said:
                    said = str(error)
                    log.error(
                        "start_waits_for_room", detail=said, hint="free disk space; the broker tries again"
                    )
                needed_bytes = error.needed_bytes if isinstance(error, DiskFull) else 0
                await room.wait(needed_bytes, trio.current_time() - began_at)
                if self._stop_wanted.is_set():
                    raise
            else:
                if said:
                    self.health.set("disk_space", True)
                return report

    async def _open_store(self) -> RecoveryReport:
        """Lock and recover the directory and read the tables, in a worker thread: the health page answers meanwhile."""
        config, clock_ms = self.config, self._surroundings.clock_ms
        self._hold = PullRequestHoldService(config.long_polling)
        self.sources.held_pulls_bytes = lambda: self._hold.held_bytes
        self._delay = DelayParts(config, clock_ms)
        self._store = MessageStore(
            self._store_options(), clock_ms=clock_ms, listener=self._hold, dispatchers=[self._delay.arrivals]
        )
        report = await trio.to_thread.run_sync(self._store.open)
        data_dir = self._store.options.data_dir
        tables = data_dir / "config"
        self._topics = TopicConfigManager(
            tables / "topics.json",
            clock_ms=clock_ms,
            cluster=config.cluster,
            broker_name=config.broker_name,
            options=config.topics,
        )
        self._offsets = ConsumerOffsetManager(
            tables / "consumerOffset.json",
            clock_ms=clock_ms,
            journal_size_max=config.offsets.journal_size_max,
        )
        await trio.to_thread.run_sync(self._topics.load)
        await trio.to_thread.run_sync(self._offsets.load)
        self._group_settings = await trio.to_thread.run_sync(
            open_groups, tables, self._offsets, config.groups, clock_ms
        )
        self._sink_tables = SinkTables(data_dir, clock_ms)
        await trio.to_thread.run_sync(self._sink_tables.load)
        self._adopt_queues_without_topic()
        await trio.to_thread.run_sync(self._delay.open, self._store, self._topics.all())
        self._warm_from = report.checked_from
        self._retry = RetryParts(config, self.counters.retry, self._delay.parking, clock_ms)
        await trio.to_thread.run_sync(self._retry.open, self._store, self._offsets)
        self.sources.open_transactions = lambda: self._retry.transactions.open_by_topic
        self.sources.delays = self._delay.sources()
        self.sources.store, self.sources.topics, self.sources.offsets = (
            self._store,
            self._topics,
            self._offsets,
        )
        self.sources.recovery_duration_s = report.duration_s
        self.sources.recovery_truncated_bytes = report.truncated_bytes
        return report

    def _store_options(self) -> StoreOptions:
        store = self.config.store
        return StoreOptions(
            self.config.data_dir,
            commit_log_file_size=store.commit_log_file_size,
            commit_log_dirs=store.commit_log_dirs,
            read_only_commit_log_dirs=store.read_only_commit_log_dirs,
            warm_mapped_file=store.warm_mapped_file,
            transient_store_pool=store.transient_store_pool,
            transient_store_pool_size=store.transient_store_pool_size,
            fast_fail_if_no_buffer=store.fast_fail_if_no_buffer,
            consume_queue_entries=store.consume_queue_entries,
            consume_queue_ext=store.consume_queue_ext,
            consume_queue_ext_file_size=store.consume_queue_ext_file_size,
            flush_sync=store.flush == "sync",
            message_bytes_max=store.message_size_max,
            record_crc=store.record_crc,
            index_enabled=store.index,
            index_slots=store.index_slots,
            index_entries=store.index_entries,
            queue_files_open_max=self._open_files.queue_files,
            log_files_open_max=self._open_files.log_files,
            index_files_open_max=self._open_files.index_files,
            host=self._store_host(),
            on_event=self._on_store_event,
        )

    def _store_host(self) -> Host:
        """Return the IPv4 address that records name as their store: the advertised one if it is one."""
        for text in (self.config.advertise, self.address):
            try:
                host = Host.parse(text or "")
            except ValueError:
                continue
            if not host.is_ipv6:
                return host
        return Host("127.0.0.1", self._address[1])

    def _adopt_queues_without_topic(self) -> None:
        """Give topics that have queues but no entry in the table one again, so that nothing stored is out of reach.

        That happens when a directory is handed over without its tables.
        """
        queues: dict[str, int] = {}
        for topic, queue_id in self._store.queues():
            queues[topic] = max(queues.get(topic, 0), queue_id + 1)
        for topic, count in queues.items():
            if self._topics.get(topic) is None and not self._topics.is_system(topic):
                try:
                    self._topics.adopt_queues(topic, count)
                except ReputError as error:
                    log.warning("queue_without_topic", topic=topic, detail=str(error))
                else:
                    log.warning("topic_recreated", topic=topic, queues=count)

    def _compose(self) -> None:
        config, counters, store = self.config, self.counters, self._store
        sync = config.store.flush == "sync"
        self._allocate = AllocateService(store)
        self._reput = ReputMessageService(store, self._after_dispatch)
        pooled = config.store.transient_store_pool
        self._flush = FlushCommitLogService(
            store,
            config.store,
            counters,
            on_committed=self._release_committed if pooled else None,
            on_flushed=self._reput.catch_up,
            on_failure=self._turn_read_only,
        )
        self._commit = CommitRealTimeService(
            store,
            config.store,
            counters,
            on_committed=self._after_commit,
            on_failure=self._turn_read_only,
        )
        waits_for_commit = self._commit if pooled else None
        self._upkeep = StoreUpkeep(store, config.store, counters)
        self._clean = CleanFilesService(
            store,
            config.store,
            self._surroundings,
            counters,
            self.sources.disk,
            on_disk=self._note_disk,
            waiting_from=self._delay.waiting_from,
        )
        note = self._store_health.note_table
        self._topic_saver = TableSaver(self._topics, partial(note, "topics"))
        self._offset_saver = TableSaver(self._offsets, partial(note, "offsets"))
        self._offset_saves = OffsetSaveService(
            self._offsets, self._offset_saver, lambda: config.offsets.flush_interval
        )
        access = TopicAccess(self._topics, self._topic_saver, counters)
        self._groups = groups = GroupParts(
            config.groups,
            counters,
            store,
            self._topics,
            self._topic_saver,
            access,
            self._group_settings,
            TableSaver(self._group_settings, partial(note, "groups")),
            self._offsets,
            self._hold,
            on_commit=self._offset_saves.committed,
            broker_name=config.broker_name,
            clock_ms=self._surroundings.clock_ms,
        )
        self.sources.groups = GroupSources(
            groups.settings, groups.online, groups.progress, groups.lag.figures
        )
        lock = PutLock()
        appender = Appender(
            store,
            lock,
            self._flush,
            self._reput,
            counters,
            waits_for_commit,
            readers_see_unflushed=not sync,
        )
        filter_check = FilterCheck(config.filters)
        self._sink = sink = SinkParts(
            config.sink,
            self._sink_tables,
            store,
            access,
            appender,
            self._flush,
            self._topics,
            self._topic_saver,
            TableSaver(self._sink_tables.batches, partial(note, "sinkBatches")),
            counters,
            clock_ms=self._surroundings.clock_ms,
        )
        self._clean.before_delete = sink.before_delete
        names: dict[str, Any] = {"cluster": config.cluster, "broker_name": config.broker_name}
        default_ack = AckLevel.FLUSHED if sync else AckLevel.PAGE_CACHE
        wrote = self._commit.wrote if pooled else self._flush.wrote if sync else self._reput.wake
        self._retry.compose(
            store,
            lock,
            groups,
            self._topics,
            self._topic_saver,
            access,
            appender,
            self._offsets,
            ack=default_ack,
            wrote=wrote,
            dispatch=self._reput.catch_up,
            flush=self._flush.flush_now,
        )
        processors = (
            SendProcessor(
                store,
                access,
                counters,
                self._retry.redirects(groups, access),
                PutOnce(
                    Deduplication(
                        store,
                        dispatch=self._reput.catch_up,
                        clock_ms=self._surroundings.clock_ms,
                        window_s=lambda: config.dedup.window,
                    ),
                    appender,
                ),
                self._retry.back_once,
                groups.requesters,
                cluster=config.cluster,
                default_ack=default_ack,
            ),
            ReplyProcessor(
                store,
                access,
                appender,
                ReplyPusher(groups.requesters, config.limits),
                config.replies,
                counters,
                default_ack=default_ack,
                clock_ms=self._surroundings.clock_ms,
            ),
            self._retry,
            PullProcessor(
                store,
                access,
                groups.access,
                groups.commits,
                groups.resets,
                groups.progress,
                self._hold,
                config.limits,
                counters,
                filter_check,
            ),
            filter_check,
            OffsetProcessor(store, access, groups.access, self._offsets, groups.commits),
            groups,
            QueueProcessor(store, access),
            FetchProcessor(store, self._topics, access, broker_name=config.broker_name),
            sink,
            QueryProcessor(store),
            self._delay.compose(
                store,
                lock,
                self._topics,
                self._flush,
                wrote=wrote,
                warm_from=self._warm_from,
            ),
            TopicProcessor(
                store,
                self._topics,
                self._topic_saver,
                access,
                self._offsets,
                self._hold,
                counters,
                identity=self._identity,
                advertise=self._advertised_to,
                forget=groups.forget_topic,
                **names,
            ),
            AdminProcessor(
                store,
                self.health,
                counters,
                version=MetricsCollector(self.sources).version,
                identity=self._identity,
                advertise=self._advertised_to,
                delete_files=self._clean.delete_now,
                more_figures=self._delay.figures,
                **names,
            ),
        )
        handlers: dict[int, Handler] = {}
        for processor in processors:
            handlers |= processor.handlers()
        dispatcher = Dispatcher(
            handlers,
            appender.append,
            # Under SYNC_FLUSH readers see what is flushed, and the flush has it dispatched; with a pool, the commit
            # has.
            _nothing if sync or pooled else self._reput.put_by,
            lambda can_wait: self._reput.settle(can_wait=can_wait),
            config.limits,
        )
        self._server = Server(
            config,
            dispatcher,
            counters,
            connections_max=self._open_files.connections,
            on_gone=groups.client_gone,
        )

    def _release_committed(self) -> None:
        self._commit.committed()

    def _after_commit(self) -> None:
        """Something has been committed: it may be read, unless that waits for its sync, which is asked for."""
        if self.config.store.flush == "async":
            self._reput.catch_up()
        self._flush.committed()

    def _after_dispatch(self) -> None:
        self._hold.answer_ready()
        self._allocate.dispatched()

    def _advertised_to(self, request: Request) -> str:
        """Return the address that routes name: the configured one, or the one that the asking client dialled."""
        return self.config.advertise or request.client.dialled_address

    def _services(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        pooled = (self._commit.run,) if self.config.store.transient_store_pool else ()
        return (
            *pooled,
            self._reput.run,
            self._flush.run,
            self._flush.expire,
            self._allocate.run,
            self._allocate.unlock_full_files,
            self._upkeep.flush_queues,
            self._upkeep.complete_index,
            self._upkeep.write_checkpoints,
            self._upkeep.watch_directories,
            self._offset_saves.run,
            self._hold.run,
            self._clean.run,
            self._measure_loop,
            self._refresh_disk,
            *self._groups.services(),
            *self._sink.services(),
            *self._retry.services(),
            *self._delay.services(),
        )

    async def _measure_loop(self) -> None:
        await measure_loop_delay(self.counters.loop_delay_seconds)

    async def _refresh_disk(self) -> None:
        await refresh_disk_figures(self.sources.disk, self.config, self._store.oldest_store_timestamp)

    def _say_ready(self, report: RecoveryReport) -> None:
        is_read_only = self._store.read_only_reason is not None
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
            "listening_without_authentication", hint="anyone who can connect may read and write everything"
        )

    def _on_store_event(self, event: str, facts: Any) -> None:
        """Log what the store noticed, in whatever thread, and let health show it."""
        (log.info if event in NEWS else log.error if event in FAILURES else log.warning)(event, **facts)
        with suppress(trio.RunFinishedError):
            if event == "store_read_only":
                self._token.run_sync_soon(self._turn_read_only, str(facts["reason"]))
            else:
                self._token.run_sync_soon(self._store_health.note, event, facts)

    def _turn_read_only(self, reason: str) -> None:
        self.health.state = BrokerState.READONLY
        self.health.set("writable", False, reason)

    def _note_disk(self, refusal: str | None) -> None:
        self.health.set("disk_space", refusal is None, refusal or "")

    async def _drain(self) -> None:
        self.health.state = BrokerState.DRAINING
        self._server.stop_accepting()
        self._hold.release_all()
        with trio.move_on_after(self.config.shutdown_grace):
            while self._server.is_busy:  # noqa: ASYNC110 - once, at the end; an event would cost every answer
                await trio.sleep(_BUSY_LOOK_S)
        self._server.close_all("shutdown")
        await self._retry.finish()

    async def _close(self) -> None:
        """Flush and save everything that was opened; what fails is logged, and the rest is done all the same."""
        for name in _TABLES:
            table = getattr(self, name, None)
            if table is not None:
                try:
                    await trio.to_thread.run_sync(table.persist)
                except (OSError, ReputError) as error:
                    log.error(
                        "table_not_saved", table=name[1:], detail=str(error), hint="check the data directory"
                    )
        if hasattr(self, "_offsets"):
            self._offsets.close()
        if hasattr(self, "_delay"):
            try:
                await trio.to_thread.run_sync(self._delay.close)
            except (OSError, ReputError) as error:
                log.error(
                    "delay_progress_not_saved", detail=str(error), hint="the next start reads more of the log"
                )
        if hasattr(self, "_store") and self._store.is_open:
            started_at = time.monotonic()
            clean = False
            try:
                clean = await trio.to_thread.run_sync(self._store.close)
            except (OSError, ReputError) as error:
                log.error(
                    "store_not_closed_in_order", detail=str(error), hint="the next start recovers the store"
                )
            if self.health.state is not BrokerState.RECOVERING:
                log.info(
                    "broker_stopped",
                    everything_flushed=clean,
                    duration_s=round(time.monotonic() - started_at, 3),
                )

    def _status(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "http": self.http_address,
            "listeners": {name: address_of(s)[1] for name, s in self._sockets.items() if s.fileno() >= 0},
            "data_dir": str(self.config.data_dir),
            "flush": self.config.store.flush,
            "held_pulls": self._hold.count if hasattr(self, "_hold") else 0,
            "delayed": self._delay.status() if hasattr(self, "_delay") else {},
            "transactions": self._retry.status() if hasattr(self, "_retry") else {},
        }


def _nothing(_: object) -> None:
    """Nothing is to be done."""
