"""Sending dead letters back, without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reput_client.errors import ConnectFailed
from reput_client.security import TLS, Credentials
from reput_pipeline.jobs.dlq import _batches, _replay
from reput_pipeline.jobs.run import JobFailed, JobRun
from reput_pipeline.source.options import parse_source_options
from reput_protocol.commands.dead_letters import LetterPlace, ReplayedLetter, ReplayOutcome
from reput_protocol.exit_codes import ExitCode

RATE = 7.0
"""So low that each request has one letter."""


class Letters:
    """So many letters in a frame."""

    def __init__(self, count: int) -> None:
        self.count = count

    def select(self, *_: str) -> Letters:
        return self

    def orderBy(self, *_: str) -> Letters:  # noqa: N802 (Spark's name)
        return self

    def toLocalIterator(self) -> Iterator[dict[str, Any]]:  # noqa: N802
        for number in range(self.count):
            yield {"group": "g", "brokerName": "broker-a", "queueOffset": number, "physicalOffset": 100 * number}


class Refusing:
    """A client of a broker that replays so many letters, one in a request."""

    error: BaseException = ConnectFailed("127.0.0.1:1", "refused")
    room = 2

    def __init__(self, server: str, *, tls: TLS | None, credentials: Credentials | None) -> None:
        assert (server, tls) == ("127.0.0.1:1", None)
        assert credentials == Credentials("alice", "a-secret-of-alice"), "of the options"
        self.asked: list[LetterPlace] = []

    def __enter__(self) -> Refusing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def replay_dead_letters(
        self, group: str, letters: list[LetterPlace], *, broker_name: str, target: str | None
    ) -> list[ReplayedLetter]:
        if len(self.asked) == self.room:
            raise self.error
        assert (group, broker_name, target) == ("g", "broker-a", None)
        self.asked += letters
        return [ReplayedLetter(letter.queue_offset, ReplayOutcome.SENT, "t") for letter in letters]


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConnectFailed("127.0.0.1:1", "refused"), ExitCode.CANNOT_CONNECT, "cannot connect to"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
    ],
)
def test_a_run_that_ends_early_says_how_many_it_has_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, code: ExitCode, words: str
) -> None:
    monkeypatch.setattr("reput_pipeline.jobs.dlq.Admin", Refusing)
    monkeypatch.setattr("reput_pipeline.jobs.dlq.time.sleep", lambda _: None)
    monkeypatch.setattr(Refusing, "error", error)
    letters: Any = Letters(5)
    (tmp_path / "secret").write_text("a-secret-of-alice")
    user = {"user": "alice", "secretFile": str(tmp_path / "secret")}
    options = parse_source_options({"nameServer": "127.0.0.1:1", "subscribe": "t", **user})
    with pytest.raises(JobFailed, match=f"{words}.*; 2 were sent before") as caught:
        _replay(JobRun("dlq"), letters, "127.0.0.1:1", None, RATE, options)
    assert caught.value.code is code
    monkeypatch.setattr(Refusing, "room", 0)
    with pytest.raises(type(error)):
        _replay(JobRun("dlq"), letters, "127.0.0.1:1", None, RATE, options)


def test_a_request_has_letters_of_one_group_and_broker() -> None:
    rows: Any = [
        {"group": group, "brokerName": broker, "queueOffset": number, "physicalOffset": 9 * number}
        for group, broker, number in (("g", "a", 1), ("g", "a", 2), ("g", "b", 1), ("h", None, 1))
    ]
    found = [(key, [place.queue_offset for place in places]) for key, places in _batches(iter(rows), 1000.0)]
    assert found == [(("g", "a"), [1, 2]), (("g", "b"), [1]), (("h", None), [1])]
    assert [len(places) for _, places in _batches(iter(rows), 1.0)] == [1, 1, 1, 1]
