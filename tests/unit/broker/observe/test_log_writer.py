"""Logging neither raises nor waits, with any stream; lost lines are counted and reported once."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TextIO

import pytest
import structlog

from reput_broker.observe.log import close_log, configure_logging, dropped_events, flush_log


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_log()


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as reader, open(writing, "w", encoding="utf-8") as writer:
        yield reader, writer


def test_a_pipe_that_is_not_read_delays_no_caller(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    configure_logging(format="json", stream=writer)
    flags = fcntl.fcntl(writer.fileno(), fcntl.F_GETFL)
    log = structlog.get_logger("x")
    events = 3000  # of 1 KB each: more than pipe and queue hold
    for number in range(events):
        log.info("event", number=number, padding="x" * 1000)
    dropped = dropped_events()
    assert 0 < dropped < events
    assert fcntl.fcntl(writer.fileno(), fcntl.F_GETFL) == flags, "other processes share them"
    # The pipe is read again: what was kept comes, whole and in order, and then the number of lost events.
    numbers = []
    for line in reader:
        entry = json.loads(line)
        if entry["event"] == "log_events_dropped":
            break
        numbers.append(entry["number"])
    assert len(numbers) == events - dropped
    assert numbers == sorted(set(numbers))  # with a gap if the thread was still filling the pipe
    assert (entry["events"], entry["level"]) == (dropped, "error")
    log.info("later")
    assert json.loads(reader.readline())["event"] == "later", "it is said once"
    assert dropped_events() == dropped


def test_the_end_of_the_program_waits_a_bounded_time(
    pipe: tuple[TextIO, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = pipe
    monkeypatch.setattr("reput_broker.observe.log._FLUSH_S", 0.05)
    configure_logging(format="json", stream=writer)
    for _ in range(100):
        structlog.get_logger("x").info("event", padding="x" * 1000)
    flush_log()
    assert dropped_events() == 0
    for _ in range(100):
        reader.readline()


def test_a_full_disk_costs_lines_and_one_line_says_so(tmp_path: Path) -> None:
    with open("/dev/full", "w") as stream, (tmp_path / "log").open("w") as good:
        configure_logging(format="json", stream=stream)
        log = structlog.get_logger("x")
        for _ in range(5):
            log.error("lost")
        flush_log()
        assert dropped_events() == 5
        os.dup2(good.fileno(), stream.fileno())
        log.info("first")
        wait_for_lines(tmp_path / "log", 2)
        log.info("second")
        flush_log()
    first, said, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert [first["event"], said["event"], second["event"]] == ["first", "log_events_dropped", "second"]
    assert said["events"] == 5


def wait_for_lines(path: Path, count: int) -> None:
    while len(path.read_text().splitlines()) < count:
        flush_log()


def test_a_reader_that_has_gone_costs_lines(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    configure_logging(format="json", stream=writer)
    reader.close()
    structlog.get_logger("x").info("event")
    flush_log()
    assert dropped_events() == 1


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_fact_that_cannot_be_put_into_words(form: Literal["json", "text"]) -> None:
    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no words")

        __repr__ = __str__

    stream = io.StringIO()
    configure_logging(format=form, stream=stream)
    structlog.get_logger("x").info("event", fact=Bad())
    structlog.get_logger("x").info("half a character", fact="\ud800")
    flush_log()
    assert dropped_events() == 1
    assert "half a character" in stream.getvalue()


def test_a_half_character_reaches_a_file(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        configure_logging(format="json", stream=stream)
        structlog.get_logger("x").info("event", fact="\ud800")
        flush_log()
    assert "\\ud800" in (tmp_path / "log").read_text()


def test_without_a_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    configure_logging()
    structlog.get_logger("x").info("event")
    flush_log()
    assert dropped_events() == 1


def test_a_stream_that_was_closed(tmp_path: Path) -> None:
    """The number of its descriptor may be another file's by now: nothing is written there."""
    with (tmp_path / "log").open("w") as stream:
        configure_logging(stream=stream)
    with (tmp_path / "other").open("w"):
        structlog.get_logger("x").info("event")
        flush_log()
    assert dropped_events() == 1
    assert (tmp_path / "other").read_text() == ""


def test_threads_log_whole_lines(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        configure_logging(format="json", stream=stream)

        def some(name: int) -> None:
            for number in range(100):
                structlog.get_logger("x").info("event", thread=name, number=number)

        threads = [threading.Thread(target=some, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        flush_log()
    entries = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert len(entries) == 400
    for name in range(4):
        assert [entry["number"] for entry in entries if entry["thread"] == name] == list(range(100))


ENDS = """
import os, structlog
from reput_broker.observe.log import configure_logging
configure_logging(format="json")
log = structlog.get_logger("x")
log.info("before")
child = os.fork()
if child == 0:
    log.info("in the child")
    raise SystemExit(0)
os.waitpid(child, 0)
log.info("last")
raise RuntimeError("uncaught")
"""


def test_the_last_words_of_a_program_and_of_its_child_are_written() -> None:
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", ENDS], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    events = [json.loads(line)["event"] for line in ended.stderr.splitlines() if line.startswith("{")]
    assert sorted(events) == ["before", "in the child", "last"]
    assert "RuntimeError: uncaught" in ended.stderr
