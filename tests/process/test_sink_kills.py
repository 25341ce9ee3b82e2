"""A broker that is killed at every step of a commit: the batch is published once and whole, or not at all yet."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from reput_protocol.wire.header import Header
from support.broker_process import BrokerProcess
from support.sink_broker import STEPS
from support.sink_client import SinkClient, Staged, published

pytestmark = [pytest.mark.process, pytest.mark.fault]

TOPIC = "orders"
QUERY = "3b1ac1f2-query"
BATCH_PER_PART = 1800
PATIENCE_S = 120.0
STAND_IN = Path(__file__).resolve().parents[1] / "support" / "sink_broker.py"


class Killed(Exception):
    """The broker died under a request."""


class Setting:
    """One store directory, and brokers on it that die where they are told to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "store"
        self._step = directory / "step"
        self.die_at("")
        self.broker = BrokerProcess(
            self.directory,
            command=[sys.executable, str(STAND_IN), f"@{self._step}"],
            environment={
                "REPUT_STORE__FLUSH": "sync",
                "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "1MiB",
                "REPUT_TOPICS__DEFAULT_QUEUES": "2",
            },
        )

    def die_at(self, step: str) -> None:
        self._step.write_text(step)

    def has_died(self) -> bool:
        """Wait for the end of the broker; whether it was killed. The next one lives."""
        status = self.broker.wait(PATIENCE_S)
        self.die_at("")
        return status == -9

    def start(self) -> str:
        """Start a broker; return its address."""
        self.broker.start()
        self.broker.wait_ready(PATIENCE_S)
        return self.broker.address

    def __enter__(self) -> Setting:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None:
                assert self.broker.terminate() == 0
        finally:
            self.broker.kill()


def bodies_of(batch_id: int, part: int, queue_id: int) -> list[bytes]:
    return [b"%d/%d/%d/%05d" % (batch_id, part, queue_id, number) + b"." * 300 for number in range(BATCH_PER_PART)]


def run_batch(address: str, batch_id: int) -> Header:
    """Do what a sink does for a batch of two tasks; raise Killed if the broker dies meanwhile."""
    try:
        with SinkClient(address, timeout_s=PATIENCE_S) as client:
            stagings = []
            for part in range(2):
                staged = Staged(QUERY, batch_id, part)
                for queue_id in range(2):
                    assert client.stage(staged, TOPIC, queue_id, bodies_of(batch_id, part, queue_id)).code == 0
                assert client.end(staged).code == 0
                stagings.append(staged)
            return client.commit(QUERY, batch_id, stagings)
    except (OSError, EOFError) as error:
        raise Killed from error


def expected(batches: int) -> dict[int, list[bytes]]:
    return {
        queue_id: [
            body for batch_id in range(batches) for part in range(2) for body in bodies_of(batch_id, part, queue_id)
        ]
        for queue_id in range(2)
    }


def check_all(address: str, batches: int) -> None:
    assert published(address, TOPIC) == expected(batches)


STAGING = ["creating", "staged", "staged:3", "ending", "ended", "committing", "deciding"]
PUBLISHING = ["decided", "piece:1", "piece:7", "piece:12", "marking"]
CLOSING = ["marked", "flushed", "noted", "dropped"]


def test_these_are_all_steps() -> None:
    assert {step.partition(":")[0] for step in (*STAGING, *PUBLISHING, *CLOSING)} == STEPS.keys()


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(["staged:3", "ended", "deciding"], id="staging"),
        pytest.param(["decided", "piece:7"], id="publishing"),
        pytest.param(["marked", "dropped"], id="closing"),
        pytest.param(STAGING, id="every step of staging", marks=pytest.mark.long),
        pytest.param(PUBLISHING, id="every step of publishing", marks=pytest.mark.long),
        pytest.param(CLOSING, id="every step of closing", marks=pytest.mark.long),
    ],
)
def test_a_batch_is_published_once_wherever_the_broker_is_killed(tmp_path: Path, steps: list[str]) -> None:
    is_decided = steps[0] not in STAGING
    with Setting(tmp_path) as setting:
        assert run_batch(setting.start(), 0).code == 0
        for batch_id, step in enumerate(steps, 1):
            setting.die_at(step)
            if step == "dropped":  # the answer left before
                with suppress(Killed):
                    assert run_batch(setting.broker.address, batch_id).ext["repeated"] is False
            else:
                with pytest.raises(Killed):
                    run_batch(setting.broker.address, batch_id)
            assert setting.has_died(), step
            address = setting.start()
            # Whole before the first request is served, or not begun.
            check_all(address, batch_id + is_decided)
            with SinkClient(address, timeout_s=PATIENCE_S) as client:
                known = client.known(QUERY).ext
            assert known["lastBatchId"] == batch_id - 1 + is_decided, step
            if is_decided:
                assert known["stagings"] == 0, step
            # The driver runs its batch again.
            header = run_batch(address, batch_id)
            assert (header.code, header.ext["repeated"]) == (0, is_decided), step
            check_all(address, batch_id + 1)
            with SinkClient(address, timeout_s=PATIENCE_S) as client:
                assert client.known().ext["stagings"] == 0, step
        assert run_batch(address, len(steps) + 1).ext["repeated"] is False
        check_all(address, len(steps) + 2)
    assert [path.name for path in (setting.directory / "staging").iterdir()] == []


def test_a_start_that_is_killed_while_it_completes_a_batch_is_followed_by_one_that_does(tmp_path: Path) -> None:
    with Setting(tmp_path) as setting:
        address = setting.start()
        setting.die_at("piece:3")
        with pytest.raises(Killed):
            run_batch(address, 0)
        assert setting.has_died()
        for step in ("piece:4", "piece:2", "marked"):
            setting.die_at(step)
            setting.broker.start()
            assert setting.has_died(), setting.broker.log_tail()
        address = setting.start()
        check_all(address, 1)
        assert run_batch(address, 0).ext["repeated"] is True
        check_all(address, 1)


def test_what_is_staged_survives_the_broker_and_is_committed_by_the_next(tmp_path: Path) -> None:
    ended, open_one = Staged(QUERY, 0, 0), Staged(QUERY, 0, 1)
    with Setting(tmp_path) as setting:
        with SinkClient(setting.start(), timeout_s=PATIENCE_S) as client:
            assert client.stage(ended, TOPIC, 0, [b"a", b"b"]).code == 0
            assert client.end(ended).code == 0
            assert client.stage(open_one, TOPIC, 1, [b"c"]).code == 0
        setting.broker.kill()
        address = setting.start()
        with SinkClient(address, timeout_s=PATIENCE_S) as client:
            assert client.known(QUERY).ext["stagings"] == 2
            assert client.stage(open_one, TOPIC, 1, [b"d"]).code == 0
            assert client.end(open_one).code == 0
            header = client.commit(QUERY, 0, [ended, open_one])
            assert (header.code, header.ext["messages"]) == (0, 4), header
        assert published(address, TOPIC) == {0: [b"a", b"b"], 1: [b"c", b"d"]}
