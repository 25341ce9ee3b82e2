"""Logging: one event a line on stderr, for people on a terminal and as JSON everywhere else.

    {"ts":"2026-01-02T03:04:05.678Z","level":"info","event":"broker_ready","duration_s":0.2}

Every module says `log = structlog.get_logger(__name__)` and `log.warning("connection_closed", reason=...)`. The
event is a fixed phrase and its facts are keys with the unit in the name. The same warning is written at most
once in ten seconds; the next one says how many were left out (`suppressed`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_WARNING_INTERVAL_S = 10.0
_WARNING_KINDS_MAX = 1000


class RateLimitWarnings:
    """Drop a warning that was written less than `interval_s` ago, and count what was dropped.

    Warnings are the same if their event is: the facts (which client, which topic) are what would make a flood.
    """

    def __init__(
        self, interval_s: float = _WARNING_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._written: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Return the event, or raise DropEvent (structlog's protocol of a processor)."""
        if method != "warning":
            return event
        kind, now = str(event["event"]), self._clock()
        last = self._written.get(kind)
        if last is not None and now - last < self._interval_s:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            raise structlog.DropEvent
        if len(self._written) >= _WARNING_KINDS_MAX:
            self._written.clear()
        self._written[kind] = now
        suppressed = self._suppressed.pop(kind, 0)
        if suppressed:
            event["suppressed"] = suppressed
        return event


def configure_logging(
    *,
    format: Literal["auto", "text", "json"] = "auto",  # noqa: A002 - the option's name
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> None:
    """Send the log to `stream` (stderr). May be called again, with another level, while the broker runs."""
    out = sys.stderr if stream is None else stream
    text = format == "text" or (format == "auto" and out.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RateLimitWarnings(),
            _add_level,
            _add_timestamp,
            *(_text_processors(out) if text else _json_processors()),
        ],
        wrapper_class=_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )


def set_level(level: Literal["debug", "info", "warning", "error"]) -> None:
    """Change the least level that is written, from now on."""
    structlog.configure(wrapper_class=_bound_logger(level))


def _bound_logger(level: str) -> type[FilteringBoundLogger]:
    return structlog.make_filtering_bound_logger(_LEVELS[level])


def _add_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["level"] = "error" if method in ("exception", "critical") else method
    return event


def _add_timestamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["ts"] = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    return event


def _order_keys(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    first = {key: event.pop(key) for key in ("ts", "level", "event") if key in event}
    return {**first, **event}


def _json_processors() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _order_keys,
        structlog.processors.JSONRenderer(separators=(",", ":"), ensure_ascii=False, default=str),
    ]


def _text_processors(out: TextIO) -> list[Processor]:
    options: dict[str, Any] = {"colors": out.isatty(), "pad_event_to": 0, "sort_keys": False}
    # A plain traceback: the rich one prints local variables, and those hold message bodies.
    options["exception_formatter"] = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(timestamp_key="ts", **options)]
