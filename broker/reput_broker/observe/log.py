"""Logging: one event a line on stderr, as text on a terminal and as JSON otherwise.

{"ts":"2026-01-02T03:04:05.678Z","level":"info","event":"broker_ready","duration_s":0.2}

Every module uses `log = structlog.get_logger(__name__)` and `log.warning("connection_closed", reason=...)`. The event
is a fixed phrase; its facts are keys, with the unit in the name. The same warning is written at most once in ten
seconds; the next one has the number of those left out (`suppressed`).

Logging neither raises nor waits: `log_writer` writes the lines, and counts those that cannot be written.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from typing import Any, Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger

from reput_broker.observe.log_writer import LogWriter
from reput_protocol.printable import printable, printable_json, printable_lines

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_WARNING_INTERVAL_S = 10.0
_WARNING_KINDS_MAX = 1000
_FLUSH_S = 5.0

_writer: LogWriter | None = None


class RateLimitWarnings:
    """Drop a warning that was written less than `interval_s` ago, and count what was dropped.

    Warnings are the same if their event is the same: the facts (client, topic) differ in a flood of warnings.
    """

    def __init__(
        self, interval_s: float = _WARNING_INTERVAL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._written: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """Return the event, or raise DropEvent."""
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
    """Write the log to `stream` (stderr). `set_level` changes the level later."""
    global _writer
    # stderr is None if it was closed before Python started.
    out: TextIO | None = sys.stderr if stream is None else stream
    is_terminal = out is not None and out.isatty()
    text = format == "text" or (format == "auto" and is_terminal)
    close_log()
    _writer = writer = LogWriter(out, _report_dropped)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RateLimitWarnings(),
            _add_level,
            _add_timestamp,
            *(_text_processors(colors=is_terminal) if text else _json_processors()),
        ],
        wrapper_class=_bound_logger(level),
        logger_factory=lambda *_: writer,
        cache_logger_on_first_use=False,
    )


def set_level(level: Literal["debug", "info", "warning", "error"]) -> None:
    """Change the least level that is written."""
    structlog.configure(wrapper_class=_bound_logger(level))


def write_line(line: str) -> None:
    """Write a line of plain text between those of the log; neither raises nor waits."""
    if _writer is not None:
        _writer.write(line)


def flush_log() -> None:
    """Wait until every line is written, at most five seconds. Registered to run when the program ends."""
    if _writer is not None:
        _writer.flush(_FLUSH_S)


def close_log() -> None:
    """Write what is queued, for at most five seconds, and end the thread that writes."""
    if _writer is not None:
        _writer.close(_FLUSH_S)


def dropped_events() -> int:
    """Return how many log lines could not be written since the log was configured."""
    return 0 if _writer is None else _writer.dropped


def _after_fork() -> None:
    if _writer is not None:
        _writer.after_fork()


atexit.register(flush_log)
os.register_at_fork(after_in_child=_after_fork)


def _report_dropped(events: int) -> None:
    structlog.get_logger(__name__).error(
        "log_events_dropped", events=events, hint="the reader of the log was too slow, or had failed"
    )


def _bound_logger(level: str) -> type[FilteringBoundLogger]:
    filtering: Any = structlog.make_filtering_bound_logger(_LEVELS[level])

    class Guarded(filtering):  # type: ignore[misc]
        """A logger that drops an event instead of raising an error because of a fact."""

        def _proxy_to_logger(self, method_name: str, event: str | None = None, **facts: Any) -> None:
            try:
                super()._proxy_to_logger(method_name, event, **facts)
            except Exception:
                if _writer is not None:
                    _writer.drop()

    return Guarded


def _add_level(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    event["level"] = "error" if method in ("exception", "critical") else method
    return event


def _add_timestamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["ts"] = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    return event


def _order_keys(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    first = {key: event.pop(key) for key in ("ts", "level", "event") if key in event}
    return {**first, **event}


def _printable_texts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, which may come from clients; other values are shown by their repr."""
    return {key: printable(value) if isinstance(value, str) else value for key, value in event.items()}


def _printable_traceback(out: TextIO, error: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(printable_lines(text.getvalue()))


def _json_processors() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _order_keys,
        structlog.processors.JSONRenderer(printable_json, separators=(",", ":"), default=str),
    ]


def _text_processors(*, colors: bool) -> list[Processor]:
    options: dict[str, Any] = {"colors": colors, "pad_event_to": 0, "sort_keys": False}
    # A plain traceback: the rich one prints local variables, which may hold message bodies.
    options["exception_formatter"] = _printable_traceback
    return [_printable_texts, structlog.dev.ConsoleRenderer(timestamp_key="ts", **options)]
