"""A run of a job: session, output, and work on executors."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reput_pipeline.jobs.outcomes import ArgumentError
from reput_pipeline.spark.session import make_session, running_session
from reput_pipeline.spark.worker_daemon import TaskOf
from reput_protocol.printable import printable_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")
IN_PROCESS: Final = "none"
"""The `--master` of a job without Spark."""
_POLL_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0
_CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}


class JobRun:
    """The first argument of a job's function.

    Args:
        name: of the job.
        stop_session: whether `close` stops a session that this run has started.
    """

    def __init__(self, name: str, *, stop_session: bool = True) -> None:
        self.name = name
        self.quiet = False
        self.verbosity = 0
        self.master: str | None = None
        self.conf: Mapping[str, str] = {}
        self._session: SparkSession | None = None
        self._stop_session = stop_session
        self._is_own = False

    @property
    def spark(self) -> SparkSession:
        """The session, started on first use, so that a wrong argument is reported at once.

        Raises:
            ArgumentError: the job is to run without Spark.
        """
        if self.is_in_process:
            raise ArgumentError(
                "--master",
                f"the job {self.name} needs Spark here; --master none is for archive, audit, find, lag and rebuild",
            )
        if self._session is None:
            self._is_own = running_session() is None
            self._session = make_session(
                f"reput {self.name}", master=self.master, conf=self.conf, quiet=self.verbosity < 2
            )
        return self._session

    @property
    def is_in_process(self) -> bool:
        """Whether tasks run in this process, one after the other, without Spark and Java."""
        return self.master == IN_PROCESS

    @property
    def parallelism(self) -> int:
        """The number of tasks that run at once."""
        return 1 if self.is_in_process else max(1, self.spark.sparkContext.defaultParallelism)

    def source(self, options: Mapping[str, str], columns: Sequence[str] = ()) -> DataFrame:
        """Return messages for options of the source."""
        from reput_pipeline.data_source import register

        register(self.spark)
        chosen = {**options, "select": ",".join(columns)} if columns else options
        return self.spark.read.format("reput").options(**chosen).load()

    def each(
        self, what: str, items: Sequence[T], work: Callable[[T], Iterable[R]], *, parts: int | None = None
    ) -> list[R]:
        """Call `work` with every item on the executors; return all results in the order of the items.

        Args:
            what: text for the progress line.
            items: picklable values.
            work: returns or yields results; picklable by cloudpickle.
            parts: number of tasks; default: one per item.
        """
        if not items:
            return []
        if self.is_in_process:
            results: list[R] = []
            done = 0
            with self._shown(what, lambda: f"{done} of {len(items)} tasks"):
                for item in items:
                    results += work(item)
                    done += 1
            return results
        with self.progress(what):
            tasks = self.spark.sparkContext.parallelize(items, min(len(items), parts or len(items)))
            return tasks.flatMap(TaskOf(work)).collect()

    def note(self, text: str) -> None:
        """Write a line to stderr, unless --quiet is set."""
        if not self.quiet:
            sys.stderr.write(printable_lines(text) + "\n")
            sys.stderr.flush()

    def write(self, text: str) -> None:
        """Write a line to stdout."""
        sys.stdout.write(printable_lines(text) + "\n")
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Write a table to stdout; columns of numbers are right-aligned."""
        for line in table_lines(columns, rows):
            self.write(line)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """Show the progress of Spark's tasks while the block runs; without a terminal, a line each 10 s.

        The block may call what it gets with the name of each of its steps, such as `2 of 5, tags`.
        """
        tracker = self.spark.sparkContext.statusTracker()
        step = ""

        def begin(name: str) -> None:
            nonlocal step
            step = f"{name}: "

        def shown() -> str:
            text = _tasks_text(tracker)
            return text and step + text

        with self._shown(what, shown):
            yield begin

    @contextmanager
    def _shown(self, what: str, progress: Callable[[], str]) -> Iterator[None]:
        if self.quiet:
            yield
            return
        stop = threading.Event()
        on_terminal = sys.stderr.isatty()

        def watch() -> None:
            waited, shown = 0.0, ""
            while not stop.wait(_POLL_S):
                waited += _POLL_S
                text = ""
                with contextlib.suppress(Exception):  # the session may be ending
                    text = progress()
                if text and text != shown and (on_terminal or waited >= _LINE_EVERY_S):
                    shown, waited = text, 0.0
                    sys.stderr.write(f"\r{what}: {text}\x1b[K" if on_terminal else f"{what}: {text}\n")
                    sys.stderr.flush()
            if shown and on_terminal:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

        watcher = threading.Thread(target=watch, name="reput-progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()

    def close(self) -> None:
        """Stop the session if this run has started it."""
        if self._session is not None and self._is_own and self._stop_session:
            with contextlib.suppress(Exception):  # Java has ended, if a signal was sent to the process group
                self._session.stop()
        self._session = None


def _tasks_text(tracker: Any) -> str:
    done = total = 0
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info is not None:
            done += info.numCompletedTasks
            total += info.numTasks
    return f"{done} of {total} tasks" if total else ""


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table of text; columns of numbers are right-aligned."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in texts)]) for at, name in enumerate(columns)]
    right = [
        bool(rows) and all(isinstance(row[at], (int, float)) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    lines = []
    for row in [[name.upper() for name in columns], *texts]:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value).translate(_CONTROL)
