"""The lines that a proxy process writes for its broker, see `reput_protocol.proxy_process`.

A write waits while the pipe is full, and all calls with it. So what comes often is written when there is room, in lines
that fit into it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from typing import Any, Final

import msgspec

from reput_protocol.exit_codes import ExitCode
from reput_protocol.proxy_process import ProxyLog, ProxyReport, ProxySpan, ProxySpans

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
    cut = {
        name: fact[:_FACT_CHARACTERS_MAX] if isinstance(fact, str) else fact for name, fact in facts.items()
    }
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
