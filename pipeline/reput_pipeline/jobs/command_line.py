"""Run a job, from its arguments to its exit code.

The last line of stdout is always one JSON object; errors also go to stderr.
"""

from __future__ import annotations

import functools
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from reput_pipeline.jobs import JOBS
from reput_pipeline.jobs.outcomes import STATUS, ArgumentError, Failure, Outcome, failure_of
from reput_pipeline.jobs.run import IN_PROCESS, JobRun
from reput_pipeline.spark.java import INSTALL_SPARK
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable_json, printable_lines

_MASTER: Final = re.compile(
    r"none|local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]|yarn|(spark|k8s)://.+"
)


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

    called = click.option(
        "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
    )(called)
    called = click.option("--master", metavar="URL", help=help_text)(called)
    return sparkless_job(called)


def sparkless_job(function: Callable[..., Outcome]) -> click.Command:
    """Make the command of a job that starts no session."""

    @click.option("-q", "--quiet", is_flag=True, help="No progress and no notes.")
    @click.option(
        "-v", "--verbose", count=True, help="-vv prints Spark's warnings, and tracebacks of errors."
    )
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
        outcome = command.main(
            args=list(arguments), prog_name=f"reput pipeline {name}", standalone_mode=False, obj=run
        )
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
