"""The frame of the jobs without Spark: arguments, outcomes, the last line, tables and pages."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from reput_broker.background import BackgroundBroker
from reput_cli.root import root
from reput_client import errors
from reput_client.errors import BrokerNotFound, NotAStore
from reput_pipeline.jobs import JOBS, report, run
from reput_pipeline.jobs.report import HOUR_MS, Figures, Page, Series, page_of, step_ms
from reput_pipeline.jobs.run import STATUS, ArgumentError, JobRun, failure_of, run_job, table_lines
from reput_pipeline.spark.errors import DamagedStore
from reput_pipeline.spark.option_reader import OptionError
from reput_pipeline.spark.session import name_causes
from reput_protocol.errors import ErrorCode, GroupNotFound
from reput_protocol.exit_codes import ExitCode
from reput_protocol.quantities import Size
from support.stores import T0


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
    assert run_job(name, ["--to" if name == "package" else "--conf", "nonsense", "--help"]) == 0


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


class NotFound(Exception):
    """As an error of ours is called, and of other libraries too."""


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
        (errors.DamagedStore("/x at byte", 3, "bad"), ExitCode.DAMAGE, "/x at byte 3: bad", None),
        (NotFound("of another library"), ExitCode.FAILED, "of another library", None),
        (PythonException(STREAM), ExitCode.NOT_FOUND, "topic 'a' is not here", None),
        (PythonException(REMOTE), ExitCode.DAMAGE, "/s/commitlog/0 at byte 17: BODYCRC is 1", None),
        (BrokerNotFound("", ""), ExitCode.CANNOT_CONNECT, "no master of any broker is known", None),
        (PythonException("Traceback\nValueError: no"), ExitCode.FAILED, "ValueError: no", None),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted", None),
    ],
)
def test_exit_codes_and_texts_of_errors(error: BaseException, code: ExitCode, text: str, argument: str | None) -> None:
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


def test_a_session_whose_java_has_ended_is_closed() -> None:
    """Ctrl-C and supervisors signal it as well; the job then ended without its last line."""

    def stop() -> None:
        raise ConnectionRefusedError

    ended = JobRun("archive")
    ended._session = SimpleNamespace(stop=stop)  # type: ignore[assignment]
    ended._is_own = True
    ended.close()
    assert ended._session is None


def test_a_table_for_people() -> None:
    lines = table_lines(("topic", "n"), [["a\x1b[2J", 5], ["longer name", 12]])
    assert lines == ["TOPIC         N", "a\\x1b[2J      5", "longer name  12"]


def test_sizes_are_what_people_write() -> None:
    rows = [["a", Size(1_288_490_189)], ["b", Size(12)]]
    assert table_lines(("topic", "bytes"), rows) == ["TOPIC    BYTES", "a      1.2 GiB", "b         12 B"]
    page = Page("t", "where")
    page.table(["topic", "bytes"], rows)
    assert '<td class="n">1.2 GiB</td>' in page.html()


@pytest.mark.parametrize(
    ("span_ms", "step", "name", "label"),
    [
        (41_300, 1000, "second", "22:14"),
        (3 * 3_600_000, 600_000, "10 minutes", "2023-Nov-15"),
        (40 * 86_400_000, 86_400_000, "day", "2023-Dec"),
        (20 * 365 * 86_400_000, 90 * 86_400_000, "90 days", "2040"),
        (0, 1000, "second", "2023-Nov-14 22:13"),
    ],
)
def test_messages_are_plotted_by_the_time_that_they_span(span_ms: int, step: int, name: str, label: str) -> None:
    first, last = T0, T0 + span_ms
    assert step_ms(first, last) == step
    bucket = min(step, HOUR_MS)
    times = [
        {"topic": topic, "from_ms": at // bucket * bucket, "messages": 5, "bytes": 7}
        for topic in ("t", "u")
        for at in dict.fromkeys((first, last))
    ]
    row = dict.fromkeys(("messages", "messages_per_s", "size_p50", "size_p99", "size_max"), 1)
    row |= {"first_ms": first, "last_ms": last, "bytes": 2048, "bytes_per_s": 1}
    topics = [{"topic": topic, **row} for topic in ("t", "u")]
    figures = Figures(topics, [], times, [], [{"topic": "t", "from_bytes": 1024, "messages": 3}])
    page = page_of(figures, "here").html()
    assert page.count(f'aria-label="messages by {name}"') == 2
    assert page.count(f'aria-label="all topics: messages by {name}"') == 1
    plot = page[page.index("<svg") : page.index("</svg>")]
    assert plot.count("fill: var(--mark0)") >= len(dict.fromkeys((first, last)))
    assert "fill: var(--mark1)" in plot, "the second topic above the first"
    assert f">{label}" in plot
    assert ">1.0 KiB</text>" in page
    assert "4.0 KiB of bodies" in page
    assert {row["hour_ms"] % HOUR_MS for row in figures.hours} == {0}
    assert sum(row["messages"] for row in figures.hours) == 5 * len(times)


def test_progress_names_the_step_of_all_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = threading.Event()

    def tasks_text(tracker: object) -> str:
        if tracker.calls:  # type: ignore[attr-defined]
            shown.set()
        tracker.calls += 1  # type: ignore[attr-defined]
        return "3 of 8 tasks"

    tracker = SimpleNamespace(calls=0)
    context = SimpleNamespace(statusTracker=lambda: tracker)
    monkeypatch.setattr(JobRun, "spark", SimpleNamespace(sparkContext=context))
    monkeypatch.setattr(run, "_tasks_text", tasks_text)
    monkeypatch.setattr(run, "_POLL_S", 0.01)
    monkeypatch.setattr(run, "_LINE_EVERY_S", 0.0)
    with JobRun("report").progress("report") as begin:
        begin("2 of 5, times")
        assert shown.wait(30)
    assert "report: 2 of 5, times: 3 of 8 tasks\n" in capsys.readouterr().err


def test_small_topics_are_one_of_the_chart_and_have_no_charts_where_there_are_very_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "_CHARTS_MAX", 10)
    row = dict.fromkeys(("messages", "messages_per_s", "size_p50", "size_p99", "size_max", "bytes"), 1)
    row |= {"first_ms": T0, "last_ms": T0, "bytes_per_s": 1}
    names = [f"topic-{number:03d}" for number in range(12)]
    times = [{"topic": name, "from_ms": T0, "messages": 5, "bytes": 7} for name in names]
    page = page_of(Figures([{"topic": name, **row} for name in names], [], times, [], []), "here").html()
    assert ">topic-006</text>" in page
    assert ">topic-007</text>" not in page
    assert ">5 other topics</text>" in page
    assert "2 smaller topics have no charts" in page
    assert page.count('aria-label="messages by second"') == 10


def test_messages_of_one_moment_have_no_rate() -> None:
    """A topic with one message had 1,000 per second."""
    row = {"topic": "t", "messages": 1, "bytes": 2, "size_p50": 2, "size_p99": 2, "size_max": 2}
    one = report._topic({**row, "first_ms": T0, "last_ms": T0})
    assert (one["messages_per_s"], one["bytes_per_s"]) == (None, None)
    two = report._topic({**row, "messages": 3, "first_ms": T0, "last_ms": T0 + 2000})
    assert (two["messages_per_s"], two["bytes_per_s"]) == (1.5, 1.0)
    page = page_of(Figures([one, two], [], [], [], []), "here").html()
    assert '<th class="n">per s</th>' in page


def test_a_page_escapes_and_loads_nothing() -> None:
    page = Page("<t>", "where")
    page.table(["k", "n"], [["<script>", 1234567]])
    page.bars([("<script>", 1.0), ("$x$", 2.0)])
    page.times([Series("<script>", {0.0: 1}), Series("$y$", {1.0: 2}), Series("_z", {1.0: 2})], 1)
    page.times([Series("none", {})], 1)
    text = page.html()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 3
    assert ">$x$</text>" in text
    assert ">$y$</text>" in text
    assert ">_z</text>" in text
    assert "default-src 'none'" in text
    assert set(re.findall(r'https?://[^"]+', text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


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
