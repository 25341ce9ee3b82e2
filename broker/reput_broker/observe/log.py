"""Logging: one event a line on stderr, as text on a terminal and as JSON otherwise.

{"ts":"2026-01-02T03:04:05.678Z","level":"info","event":"broker_ready","duration_s":0.2}

Every module uses `log = structlog.get_logger(__name__)` and `log.warning("connection_closed", reason=...)`. The event
is a fixed phrase; its facts are keys, with the unit in the name. The same warning is written at most once in ten
seconds; the next one has the number of those left out (`suppressed`).

Logging neither raises nor waits: a thread writes the lines. A pipe that is not read, a full disk and a closed terminal
cost log lines only. Lines that were not written are counted, and reported with one line when writing works again.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger

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

    def __init__(self, interval_s: float = _WARNING_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
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


def write_event(logger: str, level: str, event: str, facts: Mapping[str, object]) -> None:
    """Write an event that another process has reported; a level that is not known counts as a warning."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.WARNING)
    structlog.get_logger(logger).log(number, event, **facts)


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


_HELD_CHARACTERS_MAX: Final = 1 << 20


class LogWriter:
    """Writes lines to a stream.

    It writes to the descriptor: the stream itself keeps what it could not write, and its lock would block every thread
    that prints. The flags of the descriptor, which other processes may share, stay unchanged.

    Args:
        stream: where lines go; None, for a closed stderr, drops them.
        report: called in the thread with the number of dropped lines, once lines are written again.
    """

    def __init__(self, stream: TextIO | None, report: Callable[[int], None]) -> None:
        self.dropped = 0
        """Lines that were not written."""
        self._stream = stream
        self._report = report
        self._reported = self._said = 0
        self._is_cut = False
        self._is_closed = False
        self._forget()

    def write(self, line: str) -> None:
        """Queue a line; drop it if too many are queued."""
        line += "\n"
        with self._changed:
            if self._held + len(line) > _HELD_CHARACTERS_MAX or self._is_closed:
                self.dropped += 1
                return
            self._lines.append(line)
            self._held += len(line)
            self._changed.notify_all()
            if self._thread is None:
                self._start()

    msg = debug = info = warning = error = exception = critical = fatal = write  # names that structlog calls

    def drop(self) -> None:
        """Count a line that could not be formatted."""
        with self._changed:
            self.dropped += 1

    def flush(self, timeout_s: float) -> None:
        """Wait until every line is written, at most `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines or self._thread is None, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, for at most `timeout_s`, and end the thread."""
        self.flush(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def after_fork(self) -> None:
        """Start again in a child process, which has no threads."""
        self._forget()

    def _forget(self) -> None:
        # Its lock is re-entrant: a signal handler or the garbage collector may log at any point.
        self._changed = threading.Condition()
        self._lines: deque[str] = deque()
        self._held = 0
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="reput-log", daemon=True)
        with suppress(RuntimeError, MemoryError):  # no thread is available; the next line retries
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closed)
                if not self._lines:
                    return
                line = self._lines[0]  # stays until it is written, so that `flush` waits for it
            is_written = self._try_write(line)
            unsaid = 0
            with self._changed:
                self._lines.popleft()
                self._held -= len(line)
                self.dropped += not is_written
                if is_written and not self._lines:
                    if self._reported == self.dropped:
                        self._said = self._reported
                    else:
                        unsaid, self._reported = self.dropped - self._said, self.dropped
                self._changed.notify_all()
            if unsaid:
                self._report(unsaid)

    def _try_write(self, line: str) -> bool:
        try:
            self._write(line)
        except Exception:  # streams may raise anything
            return False
        return True

    def _write(self, line: str) -> None:
        stream = self._stream
        if stream is None:
            raise ValueError("stderr is closed")
        try:
            descriptor = stream.fileno()
        except (AttributeError, OSError):  # a stream in memory
            stream.write(line)
            stream.flush()
            return
        data = (("\n" if self._is_cut else "") + line).encode(stream.encoding or "utf-8", "backslashreplace")
        sent = 0
        try:
            while sent < len(data):
                try:
                    sent += os.write(descriptor, data[sent:])
                except BlockingIOError:  # another process has made the descriptor non-blocking
                    select.select([], [descriptor], [])
                self._is_cut = sent > 0
        finally:
            self._is_cut = self._is_cut and sent < len(data)
