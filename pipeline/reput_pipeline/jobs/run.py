"""A job, from its arguments to its exit code: its session, output and work on executors, errors and outcome.

The last line of stdout is always one JSON object; errors also go to stderr.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from reput_client.errors import TlsRefused
from reput_pipeline.jobs import JOBS
from reput_pipeline.spark.errors import cause_in
from reput_pipeline.spark.java import INSTALL_SPARK
from reput_pipeline.spark.option_reader import OptionError, with_tls_options
from reput_pipeline.spark.session import make_session, running_session
from reput_pipeline.spark.worker_daemon import TaskOf
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable_json, printable_lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")
IN_PROCESS: Final = "none"
"""The `--master` of a job without Spark."""
_POLL_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0
_CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}
ARGUMENT_OF: Final = {
    "nameServer": "--server",
    "path": "--path",
    "subscribe": "--topic",
    "subscribePattern": "--topics",
}
"""Options of the source that are arguments of jobs; others take --option."""
_OPTION_NAMES = re.compile(rf"\b(?:{'|'.join(sorted(ARGUMENT_OF, key=len, reverse=True))})\b")
_TEXT_MAX: Final = 2000


STATUS: Final = {code: code.name.lower() for code in ExitCode} | {ExitCode.DAMAGE: "findings"}
"""The `status` of each exit code in the last line."""
_MASTER: Final = re.compile(
    r"none|local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]|yarn|(spark|k8s)://.+"
)


@dataclass(frozen=True)
class Outcome:
    """The exit code of a job, and members of its last line."""

    figures: Mapping[str, Any] = field(default_factory=dict)
    code: ExitCode = ExitCode.DONE


class ArgumentError(ValueError):
    """An argument is wrong. Nothing was read or written."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument = argument


class JobFailed(Exception):
    """A job cannot continue; the text is for the user."""

    def __init__(self, what: str, *, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True)
class Failure:
    """A failure as it is printed: exit code, text, and the wrong argument, if any."""

    code: ExitCode
    text: str
    argument: str | None = None


_CODES: Final[Mapping[str, ExitCode]] = {
    "OptionError": ExitCode.USAGE,
    "SchemaError": ExitCode.USAGE,
    "NotAStore": ExitCode.NOT_FOUND,
    "NoSuchTopic": ExitCode.NOT_FOUND,
    "DamagedStore": ExitCode.DAMAGE,
    "TlsRefused": ExitCode.CANNOT_CONNECT,
    "BrokerNotFound": ExitCode.CANNOT_CONNECT,
    "BucketRefused": ExitCode.NOT_AUTHORISED,
    "BucketUnavailable": ExitCode.CANNOT_CONNECT,
    "ConnectFailed": ExitCode.CANNOT_CONNECT,
    "ConnectionLost": ExitCode.CANNOT_CONNECT,
    "NotMaster": ExitCode.CANNOT_CONNECT,
    "PermissionDenied": ExitCode.NOT_AUTHORISED,
    "RequestTimeout": ExitCode.TIMEOUT,
}
"""Exit codes by class name, since Spark sends errors back as text; others have FAILED."""
_CODES_HERE: Final[Mapping[str, ExitCode]] = {
    **_CODES,
    **dict.fromkeys(("NotAnArchive", "NotFound", "TopicNotFound", "GroupNotFound"), ExitCode.NOT_FOUND),
    "JavaMissing": ExitCode.FAILED,
}
"""The same for errors of this process."""


def failure_of(error: BaseException) -> Failure:
    """Return the exit code and text of an error, and the wrong argument, if any."""
    if isinstance(error, OptionError):
        argument = ARGUMENT_OF.get(error.option, f"--option {error.option}")
        return Failure(ExitCode.USAGE, f"{argument}: {_OPTION_NAMES.sub(_as_argument, error.reason)}", argument)
    if isinstance(error, ArgumentError):
        return Failure(ExitCode.USAGE, str(error), error.argument)
    if isinstance(error, click.ClickException):
        return Failure(ExitCode.USAGE, error.format_message(), _argument_of(error))
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return Failure(ExitCode.INTERRUPTED, "interrupted")
    if isinstance(error, JobFailed):
        return Failure(error.code, str(error))
    if isinstance(error, TlsRefused):
        error = with_tls_options(error)
    for kind in type(error).__mro__:
        if kind.__name__ in _CODES_HERE and kind.__module__.startswith("reput_"):
            return Failure(_CODES_HERE[kind.__name__], str(error))
    return _remote_failure(error)


def _as_argument(found: re.Match[str]) -> str:
    return ARGUMENT_OF[found[0]]


def _argument_of(error: click.ClickException) -> str | None:
    name = getattr(error, "option_name", None)  # NoSuchOption, BadOptionUsage
    if isinstance(name, str):
        return name
    hint = getattr(error, "param_hint", None)
    if isinstance(hint, str):
        return hint
    param = getattr(error, "param", None)
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    extra = re.search(r"unexpected extra arguments? \((\S+)", error.format_message())
    if extra is not None:
        return extra[1].removesuffix(")")
    return param.human_readable_name if isinstance(param, click.Parameter) else None


def _remote_failure(error: BaseException) -> Failure:
    """Find the text of one of our errors in Spark's, which has a Java and a Python traceback."""
    cause = cause_in(error)
    if cause is not None:
        return Failure(_CODES.get(cause.name, ExitCode.FAILED), cause.text[:_TEXT_MAX])
    text = str(error)
    if type(error).__name__ in ("PythonException", "Py4JJavaError", "StreamingQueryException"):
        lines = [line.strip() for line in text.splitlines()]
        ends = [line for line in lines if re.match(r"^[\w.]*(?:Error|Exception|\w+Failed)\b: ", line)]
        python = [line for line in ends if not line.startswith(("org.apache.", "java."))]
        return Failure(ExitCode.FAILED, (python or ends or lines or [type(error).__name__])[-1][:_TEXT_MAX])
    return Failure(ExitCode.FAILED, (text or type(error).__name__)[:_TEXT_MAX])


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


def job(function: Callable[..., Outcome]) -> click.Command:
    """Make the command of a job that needs Spark, with the options of all jobs; it gets the `JobRun` first."""
    return _with_master(
        function,
        "Where Spark runs.  [default: that of spark-submit, or local[*]]",
        "local[N], spark://HOST:PORT, yarn or k8s://URL",
    )


def in_process_job(function: Callable[..., Outcome]) -> click.Command:
    """Make the command of a job that also runs without Spark, with `--master none`; otherwise as `job`."""
    return _with_master(
        function,
        "Where Spark runs; none: in this process, without Spark and Java.  "
        "[default: that of spark-submit, or local[*]]",
        "local[N], spark://HOST:PORT, yarn, k8s://URL or none",
        in_process=True,
    )


def _with_master(
    function: Callable[..., Outcome], help_text: str, forms: str, *, in_process: bool = False
) -> click.Command:
    @functools.wraps(function)
    def called(run: JobRun, master: str | None, conf: tuple[str, ...], **arguments: Any) -> Outcome:
        if master == IN_PROCESS and not in_process:
            raise ArgumentError(
                "--master",
                f"the job {run.name} needs Spark; without --master Spark runs on this machine "
                "(pip install ./client '.[spark]' in Reput's source)",
            )
        if master is not None and _MASTER.fullmatch(master) is None:
            raise ArgumentError("--master", f"{master!r} is not valid; it is {forms}")
        run.master = master
        run.conf = dict(_pair(text, "--conf") for text in conf)
        return function(run, **arguments)

    called = click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable.")(called)
    called = click.option("--master", metavar="URL", help=help_text)(called)
    return sparkless_job(called)


def sparkless_job(function: Callable[..., Outcome]) -> click.Command:
    """Make the command of a job that starts no session."""

    @click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
    @click.option("-v", "--verbose", count=True, help="-vv prints Spark's warnings, and tracebacks of errors.")
    @functools.wraps(function)
    def called(quiet: bool, verbose: int, **arguments: Any) -> Outcome:
        run = click.get_current_context().find_object(JobRun)
        assert run is not None, "a job is started by run_job"
        run.quiet, run.verbosity = quiet, verbose
        return function(run, **arguments)

    return click.command(context_settings={"help_option_names": ["-h", "--help"]})(called)


def pairs_of(texts: Sequence[str], argument: str) -> dict[str, str]:
    """Parse `KEY=VALUE` texts.

    Raises:
        click.BadParameter: one does not have that form.
    """
    return dict(_pair(text, argument) for text in texts)


def _pair(text: str, argument: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is not of the form KEY=VALUE", param_hint=argument)
    return key.strip(), value


def run_job(name: str, arguments: Sequence[str], *, stop_session: bool = True) -> int:
    """Run a job and return its exit code.

    `stop_session`: whether to stop a session that the job has started.
    """
    assert name in JOBS, f"there is no job {name}"
    run = JobRun(name, stop_session=stop_session)
    started_at = time.monotonic()
    result: dict[str, Any] = {"job": name}
    try:
        command: click.Command = import_module(f"reput_pipeline.jobs.{name}").command
        outcome = command.main(args=list(arguments), prog_name=f"reput pipeline {name}", standalone_mode=False, obj=run)
        if not isinstance(outcome, Outcome):
            return int(outcome or 0)  # --help
        code = outcome.code
        result |= {"status": STATUS[code], "exit_code": int(code), **outcome.figures}
    except ImportError as error:
        code = _failed(run, result, Failure(ExitCode.FAILED, f"{error}; {INSTALL_SPARK}"), error)
    except (Exception, KeyboardInterrupt) as error:
        code = _failed(run, result, failure_of(error), error)
    finally:
        run.close()
    result["elapsed_s"] = round(time.monotonic() - started_at, 3)
    sys.stdout.write(printable_json(result, default=str) + "\n")
    sys.stdout.flush()
    return int(code)


def _failed(run: JobRun, result: dict[str, Any], failure: Failure, error: BaseException) -> ExitCode:
    result |= {"status": STATUS[failure.code], "exit_code": int(failure.code), "error": failure.text}
    if failure.argument is not None:
        result["argument"] = failure.argument
    sys.stderr.write(f"error: {printable_lines(failure.text)}\n")
    if failure.code is ExitCode.USAGE:
        sys.stderr.write(f"  try:    reput pipeline {run.name} --help\n")
    if run.verbosity >= 2:
        sys.stderr.write(printable_lines("".join(traceback.format_exception(error))))
    return failure.code


def main(name: str) -> NoReturn:
    """Run a job as a program."""
    sys.exit(run_job(name, sys.argv[1:]))
