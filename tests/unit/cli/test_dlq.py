"""`reput dlq`: filters, the rate of a replay by a fake clock, and a purge, which deletes only what it has counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from reput_cli import dlq
from reput_cli.dlq import Pace, chosen_by, purge, without_origin
from reput_cli.failures import CommandFailed
from reput_cli.options import RATE
from reput_client import ReceivedMessage
from reput_client.admin.undelivered import DeadLetter, DeadLetters
from reput_protocol.commands.dead_letters import Replays
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record, encode_record
from support.waiting import FakeSeconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeSeconds:
    clock = FakeSeconds()
    monkeypatch.setattr(dlq, "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep))
    return clock


def gone(clock: FakeSeconds, pace: Pace, number: int, work_s: float = 0.0) -> list[float]:
    times = []
    for _ in range(number):
        pace.wait(lambda: False)
        times.append(round(clock.now - 1000.0, 6))
        clock.now += work_s
    return times


def test_messages_go_evenly(clock: FakeSeconds) -> None:
    assert gone(clock, Pace(4.0), 5, work_s=0.1) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_slow_broker_is_not_made_up_for_with_a_burst(clock: FakeSeconds) -> None:
    pace = Pace(4.0)
    assert gone(clock, pace, 1, work_s=10.0) == [0.0]
    assert gone(clock, pace, 4) == [10.0, 10.0, 10.25, 10.5]


def test_without_a_rate_nothing_waits(clock: FakeSeconds) -> None:
    assert gone(clock, Pace(None), 3) == [0.0, 0.0, 0.0]


def test_an_interruption_ends_the_wait_soon(clock: FakeSeconds) -> None:
    pace = Pace(0.001)
    pace.wait(lambda: False)
    pace.wait(lambda: clock.now > 1005.0)
    assert clock.now < 1005.2


@pytest.mark.parametrize(("text", "rate"), [("100/s", 100.0), ("30/m", 0.5), ("1.5/s", 1.5), ("7200/h", 2.0)])
def test_rates(text: str, rate: float) -> None:
    assert RATE.convert(text, None, None) == rate


@pytest.mark.parametrize("text", ["100", "0/s", "-1/s", "1/d", "/s", "x"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="100/s"):
        RATE.convert(text, None, None)


def letter(**properties: str) -> DeadLetter:
    record = encode_record(Record("%DLQ%billing", b"x", properties=encode_properties(properties)))
    return DeadLetter(ReceivedMessage.of_record(bytes(record)))


@pytest.mark.parametrize(
    ("expression", "chosen"), [(None, [False, True, True, True]), ("n = '1' OR n = '2'", [False, True, True, False])]
)
def test_they_are_those_that_no_broker_has_put_there(expression: str | None, chosen: list[bool]) -> None:
    letters = [
        letter(n="1", RETRY_TOPIC="orders", DLQ_REASON="consumer"),
        letter(n="1", RETRY_TOPIC="orders"),
        letter(n="2", DLQ_REASON="max_reconsume_times"),
        letter(n="3"),
    ]
    assert [*map(chosen_by(without_origin(expression)), letters)] == chosen


class Broker:
    """A client of a broker with ten dead letters, and `comes` more at each request for their end."""

    def __init__(self, comes: int) -> None:
        self._comes, self._end = comes, 10
        self.deleted: list[str] = []

    def __call__(self, *_arguments: object, **_options: object) -> Broker:
        return self

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def dead_letters(self, group: str) -> DeadLetters:
        end = self._end
        self._end += self._comes
        return DeadLetters(f"%DLQ%{group}", {"broker-a": (0, end)})

    def replays(self, _group: str, _begin: int, _end: int, *, broker_name: str) -> Replays:
        assert broker_name == "broker-a"
        return Replays(10, 4)

    def delete_topic(self, topic: str) -> None:
        self.deleted.append(topic)


def run(monkeypatch: pytest.MonkeyPatch, broker: Any, *arguments: str) -> Result:
    monkeypatch.setattr("reput_client.blocking.Admin", broker)
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("reput_cli.preview.sys", terminal)
    return CliRunner().invoke(purge, ["billing", *arguments], input="billing\n")


@pytest.mark.parametrize("arguments", [(), ("--yes",)])
def test_letters_added_after_the_count_are_not_deleted(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    broker = Broker(comes=3)
    failed = run(monkeypatch, broker, *arguments).exception
    assert isinstance(failed, CommandFailed)
    assert failed.reason == "3 more have been added since they were counted"
    assert "-o -3" in (failed.remedy or "")
    assert broker.deleted == []


@pytest.mark.parametrize("arguments", [(), ("--yes",)])
def test_all_that_was_counted_is_deleted(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    broker = Broker(comes=0)
    assert run(monkeypatch, broker, *arguments).exception is None
    assert broker.deleted == ["%DLQ%billing"]


def test_a_pipe_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(comes=0)
    monkeypatch.setattr("reput_client.blocking.Admin", broker)
    failed = CliRunner().invoke(purge, ["billing"], input="billing\n").exception
    assert isinstance(failed, CommandFailed)
    assert (failed.reason, failed.remedy) == ("there is no terminal to ask for confirmation", "--yes")
    assert broker.deleted == []
