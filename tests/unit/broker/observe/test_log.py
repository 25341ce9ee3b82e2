"""The broker's own log: forms, levels, floods, and names that would control a terminal."""

import io
import json
from typing import Literal

import pytest
import structlog

from reput_broker.observe.log import RateLimitWarnings, configure_logging, flush_log, set_level


def text_of(stream: io.StringIO) -> str:
    flush_log()
    return stream.getvalue()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in text_of(stream).splitlines()]


def test_one_json_object_a_line_with_fixed_keys_first() -> None:
    stream = io.StringIO()
    configure_logging(format="auto", stream=stream)  # not a terminal
    structlog.get_logger("x").info("commit_log_recovered", physical_offset=10, duration_s=0.002)
    (entry,) = lines(stream)
    assert list(entry) == ["ts", "level", "event", "physical_offset", "duration_s"]
    assert (entry["level"], entry["event"]) == ("info", "commit_log_recovered")
    timestamp = entry["ts"]
    assert isinstance(timestamp, str)
    assert len(timestamp) == len("2026-01-02T03:04:05.678Z")
    assert timestamp.endswith("Z")


def test_text_holds_the_same_facts() -> None:
    stream = io.StringIO()
    configure_logging(format="text", stream=stream)
    structlog.get_logger("x").info("broker_ready", port=10911)
    assert "broker_ready" in text_of(stream)
    assert "port=10911" in text_of(stream)


def test_the_level_can_change_while_the_broker_runs() -> None:
    stream = io.StringIO()
    configure_logging(format="json", stream=stream, level="warning")
    log = structlog.get_logger("x")
    log.info("a")
    set_level("debug")
    log.debug("b")
    set_level("error")
    log.warning("c")
    assert [entry["event"] for entry in lines(stream)] == ["b"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_does_not_show_local_variables(form: Literal["json", "text"]) -> None:
    stream = io.StringIO()
    configure_logging(format=form, stream=stream)
    body = "secret" + " payload"
    try:
        raise ValueError(len(body))
    except ValueError:
        structlog.get_logger("x").exception("handler_failed")
    assert "ValueError: 14" in text_of(stream)
    assert "secret payload" not in text_of(stream)


def test_a_flood_of_one_warning_is_held_back_and_counted() -> None:
    now = 100.0
    limit = RateLimitWarnings(10.0, clock=lambda: now)

    def passes(event: str, method: str = "warning") -> dict[str, object] | None:
        try:
            return dict(limit(None, method, {"event": event}))
        except structlog.DropEvent:
            return None

    assert passes("slow") == {"event": "slow"}
    assert [passes("slow") for _ in range(4)] == [None] * 4
    assert passes("other") == {"event": "other"}
    assert passes("slow", "error") == {"event": "slow"}
    now += 10.0
    assert passes("slow") == {"event": "slow", "suppressed": 4}
    now += 10.0
    assert passes("slow") == {"event": "slow"}


@pytest.mark.parametrize("form", ["json", "text"])
def test_names_that_control_a_terminal_are_escaped(form: Literal["json", "text"]) -> None:
    stream = io.StringIO()
    configure_logging(format=form, stream=stream)
    log = structlog.get_logger("x")
    log.info("member_joined", client_id="a\x1b[2J\u202e\n", names=["\x9b31m"])
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        log.exception("failed")
    flush_log()
    for escape in "\x1b\u202e\x9b":
        assert escape not in stream.getvalue()
    assert "[2J\\u202e\\n" in stream.getvalue()
