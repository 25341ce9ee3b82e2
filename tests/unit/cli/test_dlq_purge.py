"""`reput dlq purge` deletes what it has counted, and nothing that was added during the prompt."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reput_cli.dlq.purge import purge
from reput_cli.failures import CommandFailed

MODULE = import_module("reput_cli.dlq.purge")  # the package has the command under that name


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

    def topic_configs(self, _topic: str) -> list[str]:
        return ["broker-a"]

    def min_offset(self, _topic: str, _queue_id: int, *, broker_name: str) -> int:
        return 0

    def max_offset(self, _topic: str, _queue_id: int, *, broker_name: str) -> int:
        end = self._end
        self._end += self._comes
        return end

    def committed(self, _topic: str, _queue_id: int, *, broker_name: str) -> int | None:
        return 4

    def delete_topic(self, topic: str) -> None:
        self.deleted.append(topic)


def run(monkeypatch: pytest.MonkeyPatch, broker: Any, *arguments: str) -> Result:
    monkeypatch.setattr("reput_client.blocking.Admin", broker)
    monkeypatch.setattr(MODULE, "PullConsumer", broker)
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
