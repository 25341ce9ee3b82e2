"""`reput top`: a table of topics, groups or clients that is updated."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from reput_cli.options import DURATION, Settings, shared_options
from reput_cli.output import Printer, duration_text, rfc3339
from reput_protocol.errors import ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import is_system_group
from reput_protocol.printable import printable
from reput_protocol.quantities import size_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from reput_client.blocking import Admin

Row = Mapping[str, Any]
_MIN_INTERVAL_S: Final = 0.2
_CLOSING: Final = ("q", "Q", "\x04")
_VIEWS: Final = ("topics", "groups", "clients")
_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics": ("topic", "queues", "messages", "size_bytes", "in_per_s", "out_per_s", "delayed"),
    "groups": ("group", "state", "members", "topics", "lag", "lag_age_s", "lag_change_per_s"),
    "clients": ("client_id", "role", "address", "groups", "language", "version", "idle_s", "connected_s"),
}
_NUMBERS: Final = ("queues", "messages", "size_bytes", "in_per_s", "out_per_s", "delayed", "members", "topics", "lag",
                   "lag_age_s", "lag_change_per_s", "idle_s", "connected_s")  # fmt: skip
_SORT: Final[Mapping[str, str]] = {"topics": "in_per_s", "groups": "lag", "clients": "client_id"}
"""The column by which each view is sorted without --sort."""
_SHORT: Final = {"in": "in_per_s", "out": "out_per_s", "size": "size_bytes", "age": "lag_age_s", "idle": "idle_s",
                 "change": "lag_change_per_s", "connected": "connected_s"}  # fmt: skip


@click.command()
@click.argument("view", type=click.Choice(_VIEWS), default="topics")
@click.option("--sort", metavar="COLUMN", help="Sort by this column, such as in, lag, size or topic.")
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Time between two updates.")
@click.option("--once", is_flag=True, help="Print the table once, and exit.")
@click.option("-a", "--all", "show_all", is_flag=True, help="System, retry and dead-letter topics, system groups too.")
@shared_options
def command(settings: Settings, view: str, sort: str | None, interval: float, once: bool, show_all: bool) -> int:
    """Watch topics, groups or clients of all brokers, until q or Ctrl-C.

    Keys: t, g and c show topics, groups and clients, s sorts by the next column. Rates are messages per second: in
    since the update before, out of the last minute; at first, and with --once, both are of the last minute. A pipe
    gets the table once, and so does --json.
    """
    if interval < _MIN_INTERVAL_S:
        raise click.UsageError(f"--interval: the shortest is {_MIN_INTERVAL_S}s")
    chosen = None if sort is None else _column(view, sort)
    printer = Printer(settings)
    with settings.admin() as admin:
        watch = _Watch(admin, view, chosen, show_all)
        if once or settings.output is not None or not (sys.stdout.isatty() and sys.stdin.isatty()):
            watch.update()
            _print_once(printer, watch)
            return ExitCode.DONE
        with suppress(KeyboardInterrupt):
            _run(watch, interval, settings)
    return ExitCode.DONE


def _column(view: str, sort: str) -> str:
    column = _SHORT.get(sort.lower(), sort.lower().replace("-", "_"))
    if column not in _COLUMNS[view]:
        names = ", ".join(_COLUMNS[view])
        raise click.UsageError(f"--sort {sort}: {view} have the columns {names}")
    return column


@dataclass(slots=True)
class _Watch:
    """What is shown, from one update to the next."""

    admin: Admin
    view: str
    sort: str | None
    show_all: bool
    rows: list[Row] = field(default_factory=list)
    error: str | None = None
    at_ms: int = 0
    _before: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Totals of the rows by which rates are measured, with the time at which they were read."""

    @property
    def column(self) -> str:
        """The column by which the rows are sorted."""
        return self.sort or _SORT[self.view]

    def show(self, view: str) -> None:
        """Show another view."""
        if view != self.view:
            self.view, self.sort, self.rows = view, None, []
            self._before.clear()

    def sort_by_next(self) -> None:
        """Sort by the column after the present one."""
        columns = _COLUMNS[self.view]
        self.sort = columns[(columns.index(self.column) + 1) % len(columns)]
        self._order()

    def update(self) -> None:
        """Ask the brokers. Raises ReputError at the first time; later errors are shown, and the rows stay."""
        read: Callable[[], Iterator[Row]] = {"topics": self._topics, "groups": self._groups, "clients": self._clients}[
            self.view
        ]
        try:
            self.rows = list(read())
        except ReputError as error:
            if not self.at_ms:
                raise
            self.error = str(error).partition("\n")[0]
            return
        self.error, self.at_ms = None, time.time_ns() // 1_000_000
        self._order()

    def _order(self) -> None:
        column = self.column
        name = _COLUMNS[self.view][0]
        if column in _NUMBERS:
            self.rows.sort(key=lambda row: (-(row[column] or 0), row[name] or ""))
        else:
            self.rows.sort(key=lambda row: (str(row[column] or ""), str(row[name] or "")))

    def _rate(self, key: str, total: int) -> float | None:
        """Return by how much a total has changed a second since the update before; None without one."""
        now = time.monotonic()
        before = self._before.get(key)
        self._before[key] = now, total
        if before is None or now <= before[0]:
            return None
        return round((total - before[1]) / (now - before[0]), 1)

    def _topics(self) -> Iterator[Row]:
        merged: dict[str, dict[str, Any]] = {}
        for broker in sorted(self.admin.cluster_info().masters):
            for one in self.admin.topic_summaries(broker_name=broker, permitted=True):
                if one.kind != "normal" and not self.show_all:
                    continue
                row = merged.setdefault(one.topic, dict.fromkeys(_COLUMNS["topics"], 0) | {"topic": one.topic})
                rate = self._rate(f"{broker}/{one.topic}", one.end_offsets)
                row["queues"] += one.read_queue_nums
                row["messages"] += one.messages
                row["size_bytes"] += one.size_bytes
                row["in_per_s"] = round(row["in_per_s"] + (one.put_tps if rate is None else max(0.0, rate)), 1)
                row["out_per_s"] = round(row["out_per_s"] + one.get_tps, 1)
                row["delayed"] += one.delayed
        yield from merged.values()

    def _groups(self) -> Iterator[Row]:
        for one in self.admin.list_groups():
            if is_system_group(one.group) and not self.show_all:
                continue
            change = self._rate(one.group, one.lag)
            yield {
                "group": one.group,
                "state": str(one.health.state),
                "members": one.members,
                "topics": len(one.topics),
                "lag": one.lag,
                "lag_age_s": one.lag_age_millis / 1000,
                "lag_change_per_s": change,
            }

    def _clients(self) -> Iterator[Row]:
        for broker in sorted(self.admin.cluster_info().masters):
            for one in self.admin.list_clients(broker):
                yield {
                    "client_id": one.client_id,
                    "role": one.role,
                    "address": one.address,
                    "groups": " ".join(one.groups) or None,
                    "language": one.language,
                    "version": one.version,
                    "idle_s": one.idle_millis / 1000,
                    "connected_s": one.connected_millis / 1000,
                }


def _print_once(printer: Printer, watch: _Watch) -> None:
    columns = _COLUMNS[watch.view]
    rows = [[row[column] for column in columns] for row in watch.rows]
    if printer.is_table:
        printer.rows([_title(column) for column in columns], [_cells(columns, row) for row in rows])
    else:
        printer.rows(columns, rows)


def _title(column: str) -> str:
    return column.replace("_per_s", "/s").removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _cells(columns: Sequence[str], row: Sequence[Any]) -> list[str]:
    cells = []
    for column, value in zip(columns, row, strict=True):
        if value is None:
            cells.append("-")
        elif column == "size_bytes":
            cells.append(size_text(value))
        elif column.endswith("_s") and not column.endswith("_per_s"):
            cells.append(duration_text(value))
        elif isinstance(value, int | float):
            cells.append(f"{value:,}")
        else:
            cells.append(printable(str(value)))
    return cells


# -- on a terminal ------------------------------------------------------------------------------------------------


def _run(watch: _Watch, interval_s: float, settings: Settings) -> None:
    """Show the table until a key ends it. The terminal is as before afterwards, however it ends."""
    from rich.console import Console
    from rich.live import Live

    watch.update()
    console = Console(no_color=not settings.color, highlight=False, markup=False, emoji=False)
    live = Live(_picture(watch, console), console=console, screen=True, auto_refresh=False)
    try:
        with _keys() as key:
            live.start(refresh=True)
            while True:
                until = time.monotonic() + interval_s
                while (left := until - time.monotonic()) > 0:
                    pressed = key(left)
                    if pressed in _CLOSING:
                        return
                    if pressed is not None and _obey(watch, pressed):
                        break
                live.update(_picture(watch, console), refresh=True)
                watch.update()
                live.update(_picture(watch, console), refresh=True)
    finally:
        live.stop()  # `with` would leave the other screen on if it is interrupted while the first table is drawn


def _obey(watch: _Watch, key: str) -> bool:
    """Do what a key says; return whether it says anything."""
    view = {name[0]: name for name in _VIEWS}.get(key.lower())
    if view is not None:
        watch.show(view)
    elif key.lower() == "s":
        watch.sort_by_next()
    else:
        return key in ("r", " ", "\n", "\r")
    return True


@contextmanager
def _keys() -> Iterator[Callable[[float], str | None]]:
    """Read single keys from the terminal: yields a function that waits for one, so many seconds at most."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    keys = select.poll()
    keys.register(descriptor, select.POLLIN)

    def key(timeout_s: float) -> str | None:
        ready = keys.poll(timeout_s * 1000)
        # Not by sys.stdin, which reads ahead. No character: the terminal was closed.
        return (os.read(descriptor, 1).decode("ascii", "replace") or "q") if ready else None

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    of_term = signal.signal(signal.SIGTERM, end)
    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, of_term)


def _picture(watch: _Watch, console: Console) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    columns = _COLUMNS[watch.view]
    head = f"{len(watch.rows)} {watch.view} at {rfc3339(watch.at_ms)}, by {_title(watch.column)}"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    for column in columns:
        title = _title(column).upper() + ("*" if column == watch.column else "")
        table.add_column(title, justify="right" if column in _NUMBERS else "left", overflow="ellipsis", no_wrap=True)
    for row in watch.rows[: max(1, console.height - 5)]:
        table.add_row(*_cells(columns, [row[column] for column in columns]))
    keys = Text("t topics  g groups  c clients  s sort  r refresh  q quit", style="dim")
    error = [Text(f"no response: {printable(watch.error)}", style="bold")] if watch.error else []
    return Group(Text(head), *error, table, keys)
