"""The gRPC proxy of `proxy_port`: a process that lives as long as the broker, and is started again when it ends.

The process has the broker's TLS and users, and connects to the broker like any client. Both talk as
`reput_protocol.proxy_process` says, so that a killed broker leaves no proxy behind, and the proxy's log and figures are
the broker's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Final

import msgspec
import structlog
import trio

from reput_broker.access.control import user_file_of
from reput_broker.config.environment import PREFIX
from reput_broker.config.errors import ConfigError, ConfigProblem
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import ProxyCounters
from reput_broker.observe.health import Health
from reput_broker.observe.log import write_event
from reput_broker.observe.span_exporter import FinishedSpan, SpanExporter, TraceContext
from reput_broker.server.listener import ListenFailed, address_of, bind
from reput_protocol.codes import AckLevel
from reput_protocol.proxy_process import (
    DRAIN,
    LINE_BYTES_MAX,
    ProxyFigures,
    ProxyLog,
    ProxyReady,
    ProxyReport,
    ProxySpan,
    ProxySpans,
    ProxyTask,
)

log = structlog.get_logger(__name__)

PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
_STEADY_S: Final = 60.0
"""A process that has run that long is started again without a long pause."""


async def supervise(
    run: Callable[[], Awaitable[int]],
    on_end: Callable[[int, float], bool],
    stopping: trio.Event,
    *,
    pause_s: float | None = None,
) -> None:
    """Run a process, and again when it ends, until `stopping` is set and the process has ended.

    Args:
        run: runs the process until it ends, and returns its exit code. When `stopping` is set, the caller ends the
            process.
        on_end: called with the exit code and the seconds until the next start; returns whether there is one. Not
            called for an end after `stopping`.
        pause_s: seconds before the next start; None: 1 s, and twice as long after each end up to 30 s.
    """
    next_s = PAUSE_S
    while not stopping.is_set():
        started_at = trio.current_time()
        code = await run()
        if stopping.is_set():
            return
        if trio.current_time() - started_at >= _STEADY_S:
            next_s = PAUSE_S
        wait_s = next_s if pause_s is None else pause_s
        if not on_end(code, wait_s):
            return
        with trio.move_on_after(wait_s):
            await stopping.wait()
        next_s = min(2 * next_s, _PAUSE_MAX_S)


COMMAND: Final = (sys.executable, "-P", "-m", "reput_proxy")
"""Modules of the working directory are not imported."""
CHECK: Final = "proxy"
"""The name of its check in the health page."""
_DRAIN_S: Final = 10.0
_END_S: Final = 3.0
"""How much longer than its drain a stop may take."""
_SILENT_S: Final = 60.0
"""A proxy that has not reported for so long hangs: it reports its figures every second."""
_PORT_S: Final = 2.0
"""How long the proxy of a broker that was killed just before may take to end."""


def check_proxy(config: BrokerConfig) -> None:
    """Raise ConfigError if the configuration wants a proxy and its packages are missing."""
    if config.proxy_port == "off" or all(map(_is_installed, ("grpc", "google.protobuf"))):
        return
    text = "needs gRPC, which is not installed (the extra `grpc` of reput brings it): pip install 'reput[grpc]'"
    raise ConfigError([ConfigProblem("proxy_port", config.origins.get("proxy_port", "code"), text)])


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package above it
        return False


async def port_of_proxy(config: BrokerConfig) -> int:
    """Return the port that a proxy can open now. Raises ListenFailed."""
    until = trio.current_time() + _PORT_S
    while True:
        try:
            with bind(config.host, int(config.proxy_port)) as bound:
                return address_of(bound)[1]
        except ListenFailed:
            if trio.current_time() >= until:
                raise
            await trio.sleep(0.1)


def proxy_task(config: BrokerConfig, address: str, port: int) -> ProxyTask:
    """Return how a broker's proxy serves.

    Args:
        address: where the broker serves on this machine, `host:port`.
        port: that of the proxy.
    """
    tls, ha = config.tls, config.ha
    # Name servers and other brokers have other certificates, and this broker connects to them without TLS.
    is_pinned = tls.mode == "required" and not tls.connect
    if config.name_servers and not is_pinned:
        server = ",".join(config.name_servers)
    else:  # the other members of a group are in its routes
        server = config.advertise or address if tls.connect else address
    has_copies = ha.in_sync_replicas > 1 or ha.role == "SYNC_MASTER"
    access = config.access
    return ProxyTask(
        server=server,
        host=config.host,
        port=port,
        advertise=config.proxy_advertise,
        tls_cert=tls.cert if tls.mode != "off" else "",
        tls_key=tls.key if tls.mode != "off" else "",
        tls_client_ca=tls.ca if tls.mode != "off" and tls.client_cert == "required" else "",
        users=str(user_file_of(config).path) if access.enabled else None,
        configured_users={access.admin_user: access.admin_secret} if access.admin_secret else {},
        ack=AckLevel.REPLICATED if has_copies else AckLevel.FLUSHED,
        drain_s=min(_DRAIN_S, config.shutdown_grace),
        server_tls=tls.connect or is_pinned,
        server_ca=tls.ca if tls.connect else "",
        server_cert=tls.cert,
        server_key=tls.key,
        server_name=tls.server_name,
        server_pin=tls.cert if is_pinned else "",
        sample_ratio=config.tracing.sample_ratio if config.tracing.endpoint else None,
    )


class ProxyProcess:
    """Runs the proxy of a broker, one process after the other.

    Args:
        task: how it serves.
        counters, health: get its figures and its state.
        spans: gets its spans; None: it makes none.
        command: what is started; a test may give another one.
    """

    def __init__(
        self,
        task: ProxyTask,
        counters: ProxyCounters,
        health: Health,
        spans: SpanExporter | None = None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._task = task
        self._counters = counters
        self._health = health
        self._spans = spans
        self._command = command
        self._process: trio.Process | None = None
        self._stopping = trio.Event()
        self._address = ""
        self._ended = trio.Event()
        self._running = trio.CancelScope()
        self._set_check(ok=False, detail="starting")

    @property
    def port(self) -> int:
        """Where gRPC clients connect."""
        return self._task.port

    async def run(self) -> None:
        """Start the process, and again when it ends, until `stop` or cancelled; then it has ended."""
        try:
            with self._running:
                await supervise(self._run_one, self._note_end, self._stopping)
        finally:
            self._ended.set()

    def _note_end(self, code: int, pause_s: float) -> bool:
        log.error("proxy_ended", exit_code=code, next_start_s=pause_s, hint="its last events say why")
        self._set_check(ok=False, detail=f"it ended with {code}; the log says why")
        return True

    async def stop(self) -> None:
        """Have the proxy drain, and wait until its process has ended; one that takes too long is killed."""
        self._stopping.set()
        self._set_check(ok=False, detail="stopping")
        with trio.move_on_after(self._task.drain_s + _END_S) as limit:
            process = self._process
            if process is None:
                self._running.cancel()
            else:
                assert process.stdin is not None
                # Busy: its task is still being written, and DRAIN follows it.
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
                    await process.stdin.send_all(DRAIN)
            await self._ended.wait()
        if limit.cancelled_caught:
            log.warning("proxy_killed", hint="it did not end in time after it had been asked to drain")
            self._running.cancel()
            await self._ended.wait()

    async def _run_one(self) -> int:
        """Run one process and return its exit code."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        try:
            process = await trio.lowlevel.open_process(
                [*self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                process_group=0,  # Ctrl-C at a terminal is for the broker, which has the proxy drain first
            )
        except OSError as error:
            log.error("proxy_not_started", error=str(error))
            return -1
        self._process = process
        self._counters.starts += 1
        log.info("proxy_started", pid=process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(trio.BrokenResourceError):
                await process.stdin.send_all(msgspec.json.encode(self._task) + b"\n")
                if self._stopping.is_set():
                    await process.stdin.send_all(DRAIN)
                await self._read(process.stdout)
            if process.poll() is None:
                with trio.move_on_after(_END_S):
                    return await process.wait()  # it has closed its output
                process.kill()
            return await process.wait()
        finally:
            self._process = None
            self._counters.is_ready = False
            self._counters.figures = ProxyFigures()
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdin.aclose()
                await process.stdout.aclose()

    async def _read(self, stdout: trio.abc.ReceiveStream) -> None:
        """Handle what the process reports, until it ends or hangs."""
        rest = b""
        while True:
            with trio.move_on_after(_SILENT_S) as limit:
                piece = await stdout.receive_some()
            if limit.cancelled_caught:
                log.error("proxy_silent", silent_s=_SILENT_S, hint="it hangs, and is killed")
                return
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._handle(line)
            if len(rest) > LINE_BYTES_MAX:
                log.error("proxy_line_too_long", bytes=len(rest))
                return

    def _handle(self, line: bytes) -> None:
        try:
            report: ProxyReport = msgspec.json.decode(line, type=ProxyReport)
        except msgspec.DecodeError:
            log.warning("proxy_output", text=line[:500].decode(errors="replace"))
            return
        match report:
            case ProxyReady():
                self._address = report.address
                log.info("proxy_ready", address=report.address)
            case ProxyLog():
                write_event("reput_proxy", report.level, report.event, report.facts)
            case ProxySpans():
                if self._spans is not None:
                    for span in report.spans:
                        self._spans.add(finished_span(span))
                    self._spans.counts["dropped"] += report.dropped
            case ProxyFigures():
                self._counters.figures = report
                self._counters.is_ready = report.reaches_broker
                if not self._stopping.is_set():
                    detail = self._address if report.reaches_broker else f"no broker: {report.broker_error}"
                    self._set_check(ok=report.reaches_broker, detail=detail)

    def _set_check(self, *, ok: bool, detail: str) -> None:
        self._health.set(CHECK, ok, detail)

    def status(self) -> Mapping[str, object]:
        """Return its state for the broker's status."""
        process = self._process
        return {
            "port": self.port,
            "tls": bool(self._task.tls_cert),
            "users": self._task.users is not None,
            "server": self._task.server,
            "ready": self._counters.is_ready,
            "pid": None if process is None else process.pid,
            "starts": self._counters.starts,
        }


def finished_span(span: ProxySpan) -> FinishedSpan:
    """Return a span of a proxy as it is exported."""
    trace_id = int(span.trace_id, 16)
    return FinishedSpan(
        span.name,
        TraceContext(trace_id, int(span.span_id, 16)),
        TraceContext(trace_id, int(span.parent_id, 16)) if span.parent_id else None,
        (),
        span.started_at_ns,
        span.ended_at_ns,
        span.attributes,
        span.error,
    )
