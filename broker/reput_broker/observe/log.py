"""Logging: one event a line on stderr, as text on a terminal and as JSON otherwise.

{"ts":"2026-01-02T03:04:05.678Z","level":"info","event":"broker_ready","duration_s":0.2}

Every module uses `log.warning("connection_closed", reason=...)`. The event is a fixed phrase; its facts are keys, with
the unit in the name. `exc_info=error` adds a traceback. The same warning is written at most once in ten seconds; the
next one has the number of those left out (`suppressed`).

Logging neither raises nor waits: `log_writer` writes the lines, and counts those that cannot be written. Before
`configure_logging`, warnings and errors are printed to stderr.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from reput_broker.observe.log_writer import LogWriter
from reput_protocol.printable import printable, printable_json, printable_lines

Event = dict[str, Any]
"""What is logged: `event`, `level`, and its facts."""
Level = Literal["debug", "info", "warning", "error"]

_LEVELS: dict[Level, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_WARNING_INTERVAL_S = 10.0
_WARNING_KINDS_MAX = 1000
_FLUSH_S = 2.0
_COLORS: dict[Level, str] = {
    "debug": "\x1b[2m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
}
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_QUOTED = frozenset(" \t=\r\n\"'")

_writer: LogWriter | None = None


class Log:
    """Passes events to `output`. An event that raises there is counted as dropped."""

    def __init__(self) -> None:
        self.level: Level = "warning"
        """The least level that is logged."""
        self.output: Callable[[Event], None] = _print_to_stderr

    def debug(self, event: str, **facts: Any) -> None:
        """Log what only a developer needs."""
        self._log("debug", event, facts)

    def info(self, event: str, **facts: Any) -> None:
        """Log a normal event."""
        self._log("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Log trouble that the broker copes with."""
        self._log("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """Log a failure."""
        self._log("error", event, facts)

    def _log(self, level: Level, event: str, facts: Event) -> None:
        if _LEVELS[level] < _LEVELS[self.level]:
            return
        try:
            self.output({"level": level, "event": event, **facts})
        except Exception:  # a fact that cannot be formatted must not stop the work that is logged
            if _writer is not None:
                _writer.drop()


def _print_to_stderr(event: Event) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):  # closed
            sys.stderr.write(_as_text(event) + "\n")


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

    def permits(self, event: Event) -> bool:
        """Tell whether to write the event, and add the number of those left out before it."""
        if event["level"] != "warning":
            return True
        kind, now = event["event"], self._clock()
        last = self._written.get(kind)
        if last is not None and now - last < self._interval_s:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return False
        if len(self._written) >= _WARNING_KINDS_MAX:
            self._written.clear()
        self._written[kind] = now
        suppressed = self._suppressed.pop(kind, 0)
        if suppressed:
            event["suppressed"] = suppressed
        return True


log = Log()
"""The log of this process."""


def configure_logging(
    *,
    format: Literal["auto", "text", "json"] = "auto",  # noqa: A002 - the option's name
    level: Level = "info",
    stream: TextIO | None = None,
) -> None:
    """Write the log to `stream` (stderr). `set_level` changes the level later."""
    global _writer
    # stderr is None if it was closed before Python started.
    out: TextIO | None = sys.stderr if stream is None else stream
    is_terminal = out is not None and out.isatty()
    is_text = format == "text" or (format == "auto" and is_terminal)
    close_log()
    _writer = writer = LogWriter(out, _report_dropped)
    limit = RateLimitWarnings()

    def write(event: Event) -> None:
        if limit.permits(event):
            writer.write(_as_text(event, colors=is_terminal) if is_text else _as_json(event))

    log.output = write
    log.level = level


def is_configured() -> bool:
    """Tell whether the log goes to another place than `print` does."""
    return log.output is not _print_to_stderr


def set_level(level: Level) -> None:
    """Change the least level that is written."""
    log.level = level


def write_line(line: str) -> None:
    """Write a line of plain text between those of the log; neither raises nor waits."""
    if _writer is not None:
        _writer.write(line)


def flush_log() -> None:
    """Wait until every line is written, at most two seconds. Registered to run when the program ends."""
    if _writer is not None:
        _writer.flush(_FLUSH_S)


def close_log() -> None:
    """Undo `configure_logging`: write what is queued, for at most two seconds, and end the thread that writes."""
    log.output, log.level = _print_to_stderr, "warning"
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
    log.error("log_events_dropped", events=events, hint="the reader of the log was too slow, or had failed")


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _as_json(event: Event) -> str:
    error = _traceback_of(event.pop("exc_info", None))
    entry = {"ts": _timestamp(), **event, **({"exception": error} if error else {})}
    return printable_json(entry, separators=(",", ":"), default=str)


def _as_text(event: Event, *, colors: bool = False) -> str:
    """Return a line, and the traceback below it. Texts are escaped, since they may come from clients."""
    error = _traceback_of(event.pop("exc_info", None))
    level, name = event.pop("level"), printable(event.pop("event"))
    level_text = f"{level:<9}"
    if colors:
        level_text, name = f"{_COLORS[level]}{level_text}{_PLAIN}", f"{_BOLD}{name}{_PLAIN}"
    facts = "".join(f" {key}={_fact_text(value)}" for key, value in event.items())
    return f"{_timestamp()} [{level_text}] {name}{facts}" + (f"\n{printable_lines(error)}" if error else "")


def _fact_text(value: Any) -> str:
    if not isinstance(value, str):
        return repr(value)
    return repr(value) if _QUOTED.intersection(value) else printable(value)


def _traceback_of(error: Any) -> str:
    """Return the traceback of an exception, or of what `sys.exc_info` returned; never with local variables."""
    if isinstance(error, tuple):
        error = error[1]
    return "" if error is None else "".join(traceback.format_exception(error)).rstrip("\n")
