"""Inputs at the HTTP port: the real server and the real pages, over connections that are lists of bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import trio

from fuzz.http_inputs import http_input
from fuzz.mutations import in_parts
from fuzz.outcome import Memory, Outcome, defects_in_the_log
from reput_broker.config.model import BrokerConfig
from reput_broker.console.app import Console
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import MetricsSources
from reput_broker.observe.pages import make_app
from reput_broker.server.http_server import HttpServer

_BATCH = 2_000
_AT_ONCE = 8
_BATCH_TIMEOUT_S = 600.0
_LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_EXPECTED = frozenset((100, 200, 307, 400, 401, 403, 404, 405, 411, 413, 421, 431, 501, 503, 505))


class _Client(trio.abc.HalfCloseableStream):
    """The server's end of a connection: what the client sends, part by part, and what it got.

    Args:
        reads_max: after so many bytes of answers the client is gone; None: it reads all.
    """

    def __init__(self, parts: list[bytes], reads_max: int | None) -> None:
        self._parts = parts[::-1]
        self._reads_max = reads_max
        self.answer = bytearray()
        self.is_closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self._parts:
            return b""
        part, size = self._parts.pop(), max_bytes or 1 << 16
        if len(part) > size:
            self._parts.append(part[size:])
        return part[:size]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.answer += data
        if self._reads_max is not None and len(self.answer) > self._reads_max:
            raise trio.BrokenResourceError

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.is_closed = True
        await trio.lowlevel.checkpoint()


def fuzz_http(seed: int, cases: int) -> Outcome:
    """Serve `cases` connections. Each is closed in the end, nothing raises, /livez answers, memory stays."""
    outcome = Outcome()
    with defects_in_the_log(outcome):
        trio.run(_fuzz, Random(seed), cases, outcome)
    return outcome


async def _fuzz(rng: Random, cases: int, outcome: Outcome) -> None:
    sources = MetricsSources(BrokerConfig(), Counters(), Health())
    app = make_app(sources, routes=Console(sources, History(sources), lambda: None).routes())
    server = HttpServer(app, (), ("127.0.0.1", 80))
    before: Memory | None = None
    while outcome.cases < cases and not outcome.enough:
        batch = min(_BATCH, cases - outcome.cases)
        inputs = iter([http_input(rng) for _ in range(batch)])
        try:
            with trio.fail_after(_BATCH_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    for _ in range(_AT_ONCE):
                        nursery.start_soon(_serve, server, inputs, Random(rng.random()), outcome)
        except trio.TooSlowError:
            outcome.violations.append(f"a connection has not ended within {_BATCH_TIMEOUT_S:g} s")
            return
        outcome.cases += batch
        probe = _Client([_LIVEZ], None)
        await server.serve(probe, ("127.0.0.1", 1))
        if not probe.answer.endswith(b"\r\n\r\nok\n"):
            outcome.violations.append(f"/livez answers {bytes(probe.answer)!r} after {outcome.cases:,} inputs")
        before = before or Memory.now()
    assert before is not None
    outcome.note_memory(before)


async def _serve(server: HttpServer, inputs: Iterator[bytes], rng: Random, outcome: Outcome) -> None:
    for data in inputs:
        client = _Client(in_parts(rng, data), rng.choice((0, 60, 200)) if rng.random() < 0.1 else None)
        try:
            await server.serve(client, ("127.0.0.1", 1))
        except Exception as error:
            outcome.violations.append(f"{data!r} raises {error!r}")
        statuses = [int(status) for status in _STATUS.findall(client.answer)]
        outcome.answers.update([str(status) for status in statuses] or ["none"])
        if client.answer and not _STATUS.match(client.answer):
            outcome.violations.append(f"{data!r} is answered with {bytes(client.answer)!r}")
        for status in set(statuses) - _EXPECTED:
            outcome.violations.append(f"{data!r} is answered with {status}")
        if not client.is_closed:
            outcome.violations.append(f"{data!r} leaves its connection open")
        if outcome.enough:
            return
