"""The frame of the jobs without Spark: arguments, outcomes, the last line, tables and pages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner

from reput_broker.background import BackgroundBroker
from reput_cli.root import root
from reput_client.errors import BrokerNotFound, NotAStore
from reput_pipeline.jobs import JOBS
from reput_pipeline.jobs.command_line import run_job
from reput_pipeline.jobs.outcomes import STATUS, ArgumentError, failure_of
from reput_pipeline.jobs.report import Page, merged
from reput_pipeline.jobs.run import table_lines
from reput_pipeline.spark.errors import DamagedStore
from reput_pipeline.spark.option_reader import OptionError
from reput_pipeline.spark.session import name_causes
from reput_protocol.errors import ErrorCode, GroupNotFound
from reput_protocol.exit_codes import ExitCode


def test_exit_codes_are_those_of_every_command() -> None:
    assert set(STATUS) == set(ExitCode)
    assert len(ExitCode.__members__) == len(ExitCode)  # none is another's alias


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_help_and_names_a_wrong_argument(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_job(name, ["--help"]) == 0
    assert f"Usage: reput pipeline {name}" in capsys.readouterr().out
    assert run_job(name, ["--sideways", "1"]) == ExitCode.USAGE
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert (result["job"], result["status"], result["argument"]) == (name, "usage", "--sideways")
    assert "No such option" in captured.err
    assert run_job(name, ["--conf", "nonsense", "--help"]) == 0


def test_the_command_line_has_all_jobs_and_guesses() -> None:
    runner = CliRunner()
    listed = runner.invoke(root, ["pipeline", "--help"]).output
    assert all(name in listed for name in JOBS)
    assert "Did you mean 'archive'?" in runner.invoke(root, ["pipeline", "archiv"]).output
    assert "--partition-by" in runner.invoke(root, ["pipeline", "archive", "--help"]).output


REMOTE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "tasks.py", line 30, in read_task
reput_pipeline.spark.errors.DamagedStore: /s/commitlog/0 at byte 17: BODYCRC is 1
"""


STREAM = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] \
Failed when Python streaming data source perform commit: reput_pipeline.spark.errors.NoSuchTopic: topic 'a' is not here
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: [id = 1]
Current State: ACTIVE
Logical Plan: Project [body#1]
"""


class PythonException(Exception):
    """As PySpark calls it."""


@pytest.mark.parametrize(
    ("error", "code", "text", "argument"),
    [
        (OptionError("subscribe", "is empty"), ExitCode.USAGE, "--topic: is empty", "--topic"),
        (OptionError("minPartitions", "is 0"), ExitCode.USAGE, "is 0", "--option minPartitions"),
        (ArgumentError("--to", "is bad"), ExitCode.USAGE, "--to: is bad", "--to"),
        (click.NoSuchOption("--x"), ExitCode.USAGE, "No such option", "--x"),
        (GroupNotFound(ErrorCode.NO_GROUP, "no group"), ExitCode.NOT_FOUND, "no group", None),
        (NotAStore("/x", "there is none"), ExitCode.NOT_FOUND, "/x is not a store", None),
        (DamagedStore("/x at byte", 3, "bad"), ExitCode.DAMAGE, "/x at byte 3: bad", None),
        (PythonException(STREAM), ExitCode.NOT_FOUND, "topic 'a' is not here", None),
        (PythonException(REMOTE), ExitCode.DAMAGE, "/s/commitlog/0 at byte 17: BODYCRC is 1", None),
        (BrokerNotFound("", ""), ExitCode.CANNOT_CONNECT, "there is no master", None),
        (PythonException("Traceback\nValueError: no"), ExitCode.FAILED, "ValueError: no", None),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted", None),
    ],
)
def test_exit_codes_and_texts_of_errors(
    error: BaseException, code: ExitCode, text: str, argument: str | None
) -> None:
    failure = failure_of(error)
    assert failure.code is code
    assert text in failure.text
    assert failure.argument == argument


def test_the_lag_of_an_unknown_group_is_not_found(
    new_reput_broker: Callable[..., BackgroundBroker], capsys: pytest.CaptureFixture[str]
) -> None:
    broker = new_reput_broker()
    assert run_job("lag", ["--server", broker.address, "--group", "nobody"]) == ExitCode.NOT_FOUND
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["status"], result["exit_code"]) == ("not_found", 5)
    assert "nobody" in result["error"]


def test_a_table_for_people() -> None:
    lines = table_lines(("topic", "n"), [["a\x1b[2J", 5], ["longer name", 12]])
    assert lines == ["TOPIC         N", "a\\x1b[2J      5", "longer name  12"]


def test_a_page_escapes_and_loads_nothing() -> None:
    page = Page("<t>", "where")
    page.table(["k", "n"], [["<script>", 1234567]])
    page.bars("b", [(str(number), float(number)) for number in range(5000)])
    text = page.html()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<rect") <= 400
    assert sum(value for _, value in merged([("a", 1.0)] * 5000)) == 5000
    assert "default-src 'none'" in text


def test_the_last_line_of_a_program_that_an_error_ends_is_its_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    for _ in range(2):
        name_causes()
    for text, last in (
        (STREAM, "caused by NoSuchTopic: topic 'a' is not here"),
        ("at once: reput_client.errors.ConnectFailed: no", "at once: reput_client.errors.ConnectFailed: no"),
        ("another error", "another error"),
    ):
        sys.excepthook(PythonException, PythonException(text), None)
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].endswith(last)
        assert len(lines) <= text.count("\n") + 2
