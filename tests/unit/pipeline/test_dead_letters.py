"""Sending dead letters back, without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reput_client.admin_dead_letters import DeadLetter, Replayed
from reput_client.errors import ConnectFailed, ErrorCode, TopicNotFound
from reput_pipeline.jobs.dlq import _replay
from reput_pipeline.jobs.outcomes import JobFailed
from reput_pipeline.jobs.run import JobRun
from reput_protocol.exit_codes import ExitCode


class Letters:
    """So many letters in a frame."""

    def __init__(self, count: int) -> None:
        self.count = count

    def orderBy(self, *_: str) -> Letters:  # noqa: N802 (Spark's name)
        return self

    def toLocalIterator(self) -> Iterator[dict[str, Any]]:  # noqa: N802
        for number in range(self.count):
            yield {
                "topic": "%DLQ%g",
                "queueId": 0,
                "queueOffset": number,
                "brokerName": "broker-a",
                "physicalOffset": 100 * number,
                "body": b"%d" % number,
                "properties": {"RETRY_TOPIC": "t"},
                "flag": 0,
                "attempts": 16,
            }


class Refusing:
    """A client of a broker that has no dead letters of its own, and takes two."""

    error: BaseException = ConnectFailed("127.0.0.1:1", "refused")
    room = 2

    def __init__(self, *_: object, **__: object) -> None:
        self.stored: list[bytes] = []

    def __enter__(self) -> Refusing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fetch_messages(self, topic: str, *_: int, broker_name: str) -> None:
        raise TopicNotFound(ErrorCode.NO_TOPIC, f"no {topic} at {broker_name}")

    def replay_dead_letter(self, letter: DeadLetter, target: str | None) -> tuple[Replayed, str]:
        if len(self.stored) == self.room:
            raise self.error
        self.stored.append(letter.message.body)
        return Replayed.SENT, target or str(letter.origin.topic)


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConnectFailed("127.0.0.1:1", "refused"), ExitCode.CANNOT_CONNECT, "cannot connect to"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
    ],
)
def test_a_run_that_ends_early_says_how_many_it_has_sent(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: ExitCode, words: str
) -> None:
    monkeypatch.setattr("reput_pipeline.jobs.dlq.Admin", Refusing)
    monkeypatch.setattr(Refusing, "error", error)
    letters: Any = Letters(5)
    with pytest.raises(JobFailed, match=f"{words}.*; 2 were sent before") as caught:
        _replay(JobRun("dlq"), letters, "127.0.0.1:1", None, 1e9, None)
    assert caught.value.code is code
    monkeypatch.setattr(Refusing, "room", 0)
    with pytest.raises(type(error)):
        _replay(JobRun("dlq"), letters, "127.0.0.1:1", None, 1e9, None)
