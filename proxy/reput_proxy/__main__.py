"""A proxy that its broker has started: `python -m reput_proxy`, with a `ProxyTask` on stdin.

`reput_protocol.proxy_process` has the lines that both write, `reput_broker.compose.proxy_process` is the broker's side.
`reput proxy` is not this: it calls `server.run_proxy`.

A write to the broker waits while the pipe is full, and all calls with it. So what comes often is written when there is
room, in lines that fit into it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from reput_client import TLS
from reput_protocol.errors import ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.proxy_process import (
    DRAIN,
    FIGURES_S,
    ProxyFigures,
    ProxyLog,
    ProxyReady,
    ProxyReport,
    ProxySpan,
    ProxySpans,
    ProxyTask,
)
from reput_proxy import log
from reput_proxy.proxy import Proxy
from reput_proxy.rejections import code_name
from reput_proxy.server import ProxyOptions, serving
from reput_proxy.spans import Spans
from reput_proxy.upstream import BrokerOptions
from reput_proxy.users import UsersUnreadable

_REACH_S: Final = 3.0
_LAST_SPANS_S: Final = 1.0
"""How long the end waits for the broker to read the last spans."""
_SPANS_MAX: Final = 16_384
"""Spans that wait for the broker; further ones drop the oldest."""
_LINE_BYTES: Final = 4_096
"""What a pipe with room takes at once (PIPE_BUF of Linux). A span is shorter."""
_FACT_CHARACTERS_MAX: Final = 16_384


def tell(report: ProxyReport) -> None:
    """Write a line to the broker. A broker that is gone ends the process."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()
    except OSError:
        os._exit(ExitCode.FAILED)


def tell_log(level: str, event: str, facts: dict[str, Any]) -> None:
    """Write an event of the log; texts of clients and brokers may be in its facts, and are cut."""
    cut = {name: fact[:_FACT_CHARACTERS_MAX] if isinstance(fact, str) else fact for name, fact in facts.items()}
    tell(ProxyLog(level, event, cut))


async def until_room() -> None:
    """Wait until a short line can be written without waiting, or the broker is gone."""
    loop, is_there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(sys.stdout, is_there.set)
    try:
        await is_there.wait()
    finally:
        loop.remove_writer(sys.stdout)


class EndedSpans:
    """Spans that the broker is to export."""

    def __init__(self) -> None:
        self._spans: deque[ProxySpan] = deque()
        self._dropped = 0

    def add(self, span: ProxySpan) -> None:
        """Keep a span until `tell`; never waits."""
        if len(self._spans) >= _SPANS_MAX:
            self._spans.popleft()
            self._dropped += 1
        self._spans.append(span)

    async def tell(self) -> None:
        """Write all, as fast as the broker reads; those that are left when it is cancelled stay."""
        while self._spans:
            await until_room()
            tell(self._next())

    def _next(self) -> ProxySpans:
        """Take as many spans as are in a line."""
        line = ProxySpans([], self._dropped)
        self._dropped = 0
        left = _LINE_BYTES - len(msgspec.json.encode(line)) - len(b"\n")
        while self._spans:
            left -= len(msgspec.json.encode(self._spans[0])) + len(b",")
            if left < 0 and line.spans:
                break
            line.spans.append(self._spans.popleft())
        return line


@dataclass(frozen=True)
class _OwnBroker(TLS):
    """Trusts the certificate of `pin` alone, under any name: the broker that has started this process shows it."""

    pin: str = ""

    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        end = "-----END CERTIFICATE-----"
        try:
            first, _, _ = Path(self.pin).read_text("ascii", "replace").partition(end)
            context.load_verify_locations(cadata=f"{first}{end}\n")
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"{self.pin}: {error}") from error
        return context


def _tls(task: ProxyTask) -> TLS | None:
    """Return how connections to the broker are encrypted."""
    if not task.server_tls:
        return None
    cert, key = task.server_cert or None, task.server_key or None
    if task.server_pin:
        return _OwnBroker(cert=cert, key=key, pin=task.server_pin)
    return TLS(ca=task.server_ca or None, cert=cert, key=key, server_name=task.server_name or None)


def _options(task: ProxyTask, spans: Spans | None) -> ProxyOptions:
    def path(name: str) -> Path | None:
        return Path(name) if name else None

    return ProxyOptions(
        brokers=BrokerOptions(task.server, _tls(task), task.ack),
        host=task.host,
        port=task.port,
        advertise=task.advertise,
        tls_cert=path(task.tls_cert),
        tls_key=path(task.tls_key),
        tls_client_ca=path(task.tls_client_ca),
        users=None if task.users is None else Path(task.users),
        configured_users=task.configured_users,
        spans=spans,
    )


class _Reach:
    """Whether a broker answers, asked every few seconds."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.is_there = False
        self.error = "none was asked yet"

    async def watch(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                self.is_there, self.error = await self._proxy.is_ready(), ""
            except ReputError as error:
                self.is_there, self.error = False, str(error)
            await asyncio.sleep(_REACH_S)


def _figures(proxy: Proxy, reach: _Reach) -> ProxyFigures:
    counters = proxy.counters
    return ProxyFigures(
        [(method, code_name(code), count) for (method, code), count in counters.requests.items()],
        counters.sent,
        counters.received,
        counters.acknowledged,
        len(proxy.clients),
        proxy.receives,
        len(proxy.renewals),
        reach.is_there,
        reach.error,
    )


async def _serve(task: ProxyTask) -> None:
    loop, draining = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, draining.set)  # of a service manager that ends the broker too
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    listening = asyncio.ensure_future(_obey(orders, draining))
    ended = EndedSpans()
    spans = None if task.sample_ratio is None else Spans(ended.add, task.sample_ratio)
    async with serving(_options(task, spans), drain_s=task.drain_s) as running:
        reach = _Reach(running.proxy)
        running.proxy.spawn(reach.watch())
        tell(ProxyReady(running.address))
        while not draining.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(FIGURES_S):
                    await until_room()
                    tell(_figures(running.proxy, reach))
                    await ended.tell()
                    await draining.wait()
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_SPANS_S):
            await ended.tell()
    listening.cancel()


async def _obey(orders: asyncio.StreamReader, draining: asyncio.Event) -> None:
    """Note what the broker says, and end the process when the broker is gone."""
    while line := await orders.readline():
        if line == DRAIN:
            draining.set()
    os._exit(ExitCode.FAILED)  # its port is free at once, for the proxy of the next broker


def main() -> int:
    """Serve as the line on stdin says, and return the exit code."""
    log.write_log(tell_log)
    # Byte by byte: what follows the line is for the event loop.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as orders:
        task = msgspec.json.decode(orders.readline(), type=ProxyTask)
    try:
        asyncio.run(_serve(task))
    except (OSError, ValueError, UsersUnreadable) as error:
        tell_log("error", "proxy_failed", {"error": str(error)})
        return ExitCode.FAILED
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
