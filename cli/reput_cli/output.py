"""Print rows and objects as tables, tab-separated text or JSON.

By default a terminal gets tables and a pipe tab-separated text with a header line. JSON keys are stable and have units.
Data goes to stdout, notes to stderr; unprintable characters are escaped in both.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from reput_cli.options import Settings
from reput_protocol.printable import printable, printable_json, printable_lines
from reput_protocol.quantities import size_text

if TYPE_CHECKING:
    from reput_protocol.commands.group_description import GroupHealth

_SHOW_S = 0.2
"""Seconds between two updates of a count."""
_BAR_S = 0.25
"""Seconds between two updates of a bar."""
_BAR_CELLS = 20
_LONG_ROWS = 200
"""Rows from which on a table that needs no folding is printed as it is."""
_NEVER_FOLDED = 20
"""Columns up to this width are not folded; numbers and ages fit."""


class Printer:
    """Writes the results of a command."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.form = settings.output or ("table" if sys.stdout.isatty() else "plain")

    @property
    def is_json(self) -> bool:
        """Whether the output is JSON."""
        return self.form in ("json", "jsonl")

    @property
    def is_table(self) -> bool:
        """Whether the output is a table, in which durations are `3m12s` instead of numbers."""
        return self.form == "table"

    def duration(self, millis: int) -> str | float:
        """Return a duration as the output has it: as text in a table, else in seconds."""
        return duration_text(millis / 1000) if self.is_table else millis / 1000

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print rows; `columns` are the header and the JSON keys."""
        if self.form == "json":
            write_line(printable_json([dict(zip(columns, row, strict=True)) for row in rows]))
        elif self.form == "jsonl":
            for row in rows:
                self.json_line(dict(zip(columns, row, strict=True)))
        elif self.form == "plain":
            write_line("\t".join(columns))
            for row in rows:
                write_line("\t".join(_plain(value) for value in row))
        else:
            self._table(columns, rows)

    def rows_by_broker(self, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[Any]]]) -> None:
        """Print rows of brokers: with a last column for the broker's name if there are several."""
        rows = list(rows)
        if len({broker for broker, _ in rows}) > 1:
            self.rows([*columns, "broker"], [(*row, broker) for broker, row in rows])
        else:
            self.rows(columns, [row for _, row in rows])

    def fields(self, values: Mapping[str, Any]) -> None:
        """Print one object as JSON, or one line per member."""
        if self.is_json:
            self.json_line(values)
        elif self.form == "plain":
            for key, value in values.items():
                write_line(f"{printable(key)}\t{_plain(value)}")
        else:
            width = max((len(key) for key in values), default=0)
            for key, value in values.items():
                write_line(f"{printable(key):<{width}}  {_human(key, value)}")

    def json_line(self, value: Mapping[str, Any]) -> None:
        """Print one compact JSON object as a line."""
        write_line(printable_json(value))

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int], None]]:
        """Show a count on stderr if that is a terminal; yields a function of how many more there are.

        Args:
            what: what is counted, as in "messages sent".
        """
        if self._settings.quiet or not sys.stderr.isatty():
            yield lambda _more: None
            return
        count, started_at, shown_at = 0, time.monotonic(), 0.0

        def add(more: int) -> None:
            nonlocal count, shown_at
            count += more
            now = time.monotonic()
            if now - shown_at >= _SHOW_S:
                shown_at = now
                rate = count / max(now - started_at, 1e-3)
                sys.stderr.write(f"\r\x1b[K{count:,} {what}, {rate:,.0f}/s")
                sys.stderr.flush()

        try:
            yield add
        finally:
            if shown_at:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    @contextmanager
    def running(self, what: str, share: Callable[[], float] | None = None) -> Iterator[None]:
        """Show `what` and the seconds since the start on stderr, if that is a terminal.

        Args:
            share: returns which part of the work is done, 0 to 1; it is shown as a bar and in percent. Called in
                another thread.
        """
        if self._settings.quiet or not sys.stderr.isatty():
            yield
            return
        ended = threading.Event()

        def show() -> None:
            started_at = time.monotonic()
            while not ended.wait(_BAR_S if share is not None else 1.0):
                took = duration_text(int(time.monotonic() - started_at))
                done = "" if share is None else f" {_bar(share())}"
                sys.stderr.write(f"\r\x1b[K{what}{done}, {took}")
                sys.stderr.flush()

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """Write one line to stderr, unless --quiet is set."""
        if not self._settings.quiet:
            say(text)

    def _table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        from rich import box
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table

        cells = [[_plain(value) for value in row] for row in rows]
        # Brackets in a name are not markup.
        console = Console(no_color=not self._settings.color, highlight=False, markup=False, emoji=False)
        if len(cells) > _LONG_ROWS:
            # Rich takes a millisecond for a row of seven cells.
            widths = [
                max(map(cell_len, column)) for column in zip([name.upper() for name in columns], *cells, strict=True)
            ]
            if sum(widths) + 2 * len(widths) <= console.width:
                write_line(_aligned([name.upper() for name in columns], widths))
                write_line("\u2500" * (sum(widths) + 2 * len(widths) - 2))
                sys.stdout.write("".join([_aligned(row, widths) + "\n" for row in cells]))
                sys.stdout.flush()
                return
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for number, column in enumerate(columns):
            widest = max((len(row[number]) for row in cells), default=0)
            # A narrow terminal folds long names, not numbers or headers.
            table.add_column(column.upper(), overflow="fold", no_wrap=widest <= _NEVER_FOLDED)
        for row in cells:
            table.add_row(*row)
        console.print(table)


def _bar(share: float) -> str:
    share = min(1.0, max(0.0, share))
    full = int(share * _BAR_CELLS)
    return f"[{'#' * full}{'.' * (_BAR_CELLS - full)}] {share:4.0%}"


def write_line(text: str) -> None:
    """Write one line to stdout, escaped, and flush it."""
    write_message(printable_lines(text))


def write_message(text: str) -> None:
    """Write a rendered message to stdout and flush it; not escaped, since the user's format may hold colours."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Write one line to stderr, escaped."""
    print(printable(text), file=sys.stderr, flush=True)


def rfc3339(timestamp_ms: int) -> str:
    """Return a time in ms since 1970 as RFC 3339 in UTC: the form of all times that are printed as text."""
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_text(seconds: float) -> str:
    """Return a duration as text: `0s`, `12.3s`, `3m12s`, `5h03m`, `2d04h`."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds else "0s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days}d{hours_left:02}h"
    return f"{hours}h{minutes_left:02}m" if hours else f"{minutes}m{rest:02}s"


def age_s(timestamp_ms: int) -> float:
    """Return how many seconds ago a time in ms since 1970 was, at least 0."""
    return max(0.0, time.time() - timestamp_ms / 1000)


def ago_text(timestamp_ms: int) -> str:
    """Return how long ago a time in ms since 1970 was, as in `3m12s ago`: the form of past times in tables."""
    return f"{duration_text(age_s(timestamp_ms))} ago"


def health_text(health: GroupHealth) -> str:
    """Return a state with the time since when it lasts and its reason, for people."""
    since = "" if health.since_millis < 0 else f" for {duration_text(age_s(health.since_millis))}"
    return f"{health.state}{since}" + (f": {health.reason}" if health.reason else "")


def _human(key: str, value: Any) -> str:
    """Return a value for people: the suffix of its key is its unit."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return _plain(value)
    if key.endswith("_per_s"):
        unit = "MB/s" if key.startswith("mb_") else "msg/s"
        return f"{_number(value)} {unit}"
    for suffix, unit in (("_us", "us"), ("_gib", "GiB")):
        if key.endswith(suffix):
            return f"{_number(value)} {unit}"
    if key.endswith("_s"):
        return duration_text(value)
    if key.endswith("_bytes"):
        return size_text(int(value))
    return _number(value) if key == "messages" else _plain(value)


def _number(value: float) -> str:
    return f"{value:,}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    return "  ".join([cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]).rstrip()


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))
