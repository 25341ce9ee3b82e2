"""`reput dlq purge` deletes what it has counted, and nothing that was added during the prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reput_cli.dlq.listing import purge
from reput_cli.failures import CommandFailed
from reput_client.admin.undelivered import DeadLetters
from reput_protocol.commands.dead_letters import Replays


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
