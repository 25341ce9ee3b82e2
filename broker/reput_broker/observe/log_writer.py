"""Writing log lines in a thread, so that code that logs does not wait for the reader and does not fail.

A pipe that is not read, a full disk and a closed terminal cost log lines only. Lines that were not written are counted,
and reported with one line when writing works again.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

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
