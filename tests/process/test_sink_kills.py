"""A broker that is killed at every step of a commit: the batch is published once and whole, or not at all yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from broker_process import BrokerProcess, free_port
from reput_protocol.wire.header import Header
from sink_broker import STEPS
from sink_client import SinkClient, Staged, published

pytestmark = [pytest.mark.process, pytest.mark.fault]

TOPIC = "orders"
QUERY = "3b1ac1f2-query"
BATCH_PER_PART = 1800
PATIENCE_S = 120.0
STAND_IN = Path(__file__).resolve().parents[1] / "sink_broker.py"


class Killed(Exception):
    """The broker died under a request."""


class Setting:
    """One store directory, and brokers on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "store"
        self.ports = free_port(), free_port()

    @contextmanager
    def serving(self) -> Iterator[BrokerProcess]:
        broker = self.started()
        try:
            yield broker
            assert broker.terminate() == 0
        finally:
            broker.kill()

    def started(self, step: str | None = None) -> BrokerProcess:
        broker = self.broker(step)
        broker.start()
        try:
            broker.wait_ready(PATIENCE_S)
        except BaseException:
            broker.kill()
            raise
        return broker

    def broker(self, step: str | None = None) -> BrokerProcess:
        command = [sys.executable, str(STAND_IN), step] if step else [sys.executable, "-m", "reput_cli"]
        return BrokerProcess(
            self.directory,
            port=self.ports[0],
            http_port=self.ports[1],
            command=command,
            environment={
                "REPUT_STORE__FLUSH": "sync",
                "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "1MiB",
                "REPUT_TOPICS__DEFAULT_QUEUES": "2",
            },
        )


def bodies_of(batch_id: int, part: int, queue_id: int) -> list[bytes]:
    return [
        b"%d/%d/%d/%05d" % (batch_id, part, queue_id, number) + b"." * 300 for number in range(BATCH_PER_PART)
    ]


def run_batch(address: str, batch_id: int) -> Header:
    """Do what a sink does for a batch of two tasks; raise Killed if the broker dies meanwhile."""
    try:
        with SinkClient(address, timeout_s=PATIENCE_S) as client:
            stagings = []
            for part in range(2):
                staged = Staged(QUERY, batch_id, part)
                for queue_id in range(2):
                    assert (
                        client.stage(staged, TOPIC, queue_id, bodies_of(batch_id, part, queue_id)).code == 0
                    )
                assert client.end(staged).code == 0
                stagings.append(staged)
            return client.commit(QUERY, batch_id, stagings)
    except (OSError, EOFError) as error:
        raise Killed from error


def expected(batches: int) -> dict[int, list[bytes]]:
    return {
        queue_id: [
            body
            for batch_id in range(batches)
            for part in range(2)
            for body in bodies_of(batch_id, part, queue_id)
        ]
        for queue_id in range(2)
    }


def check_all(address: str, batches: int) -> None:
    assert published(address, TOPIC) == expected(batches)


KILLS = [*(step for step in STEPS if step != "piece"), "staged:3", "piece:1", "piece:7", "piece:12"]


@pytest.mark.parametrize("step", KILLS)
def test_a_batch_is_published_once_wherever_the_broker_is_killed(tmp_path: Path, step: str) -> None:
    setting = Setting(tmp_path)
    with setting.serving() as broker:
        assert run_batch(broker.address, 0).code == 0
    victim = setting.started(step)
    if step == "dropped":  # the answer left before
        with suppress(Killed):
            assert run_batch(victim.address, 1).ext["repeated"] is False
    else:
        with pytest.raises(Killed):
            run_batch(victim.address, 1)
    assert victim.wait(PATIENCE_S) == -9
    decided = step.partition(":")[0] in list(STEPS)[list(STEPS).index("decided") :]
    with setting.serving() as broker:
        # Whole before the first request is served, or not begun.
        check_all(broker.address, 2 if decided else 1)
        with SinkClient(broker.address, timeout_s=PATIENCE_S) as client:
            known = client.known(QUERY).ext
            assert known["lastBatchId"] == (1 if decided else 0)
            if decided:
                assert known["stagings"] == 0
        # The driver runs its batch again.
        header = run_batch(broker.address, 1)
        assert header.code == 0
        assert header.ext["repeated"] is decided
        check_all(broker.address, 2)
        with SinkClient(broker.address, timeout_s=PATIENCE_S) as client:
            assert client.known().ext["stagings"] == 0
        assert run_batch(broker.address, 2).ext["repeated"] is False
        check_all(broker.address, 3)
    assert [path.name for path in (setting.directory / "staging").iterdir()] == []


def test_a_start_that_is_killed_while_it_completes_a_batch_is_followed_by_one_that_does(
    tmp_path: Path,
) -> None:
    setting = Setting(tmp_path)
    victim = setting.started("piece:3")
    with pytest.raises(Killed):
        run_batch(victim.address, 0)
    assert victim.wait(PATIENCE_S) == -9
    for step in ("piece:4", "piece:2", "marked"):
        again = setting.broker(step)
        again.start()
        assert again.wait(PATIENCE_S) == -9, again.log_tail()
    with setting.serving() as broker:
        check_all(broker.address, 1)
        assert run_batch(broker.address, 0).ext["repeated"] is True
        check_all(broker.address, 1)


def test_what_is_staged_survives_the_broker_and_is_committed_by_the_next(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    ended, open_one = Staged(QUERY, 0, 0), Staged(QUERY, 0, 1)
    with setting.serving() as broker:
        with SinkClient(broker.address, timeout_s=PATIENCE_S) as client:
            assert client.stage(ended, TOPIC, 0, [b"a", b"b"]).code == 0
            assert client.end(ended).code == 0
            assert client.stage(open_one, TOPIC, 1, [b"c"]).code == 0
        broker.kill()
        broker.start()
        broker.wait_ready(PATIENCE_S)
        with SinkClient(broker.address, timeout_s=PATIENCE_S) as client:
            assert client.known(QUERY).ext["stagings"] == 2
            assert client.stage(open_one, TOPIC, 1, [b"d"]).code == 0
            assert client.end(open_one).code == 0
            header = client.commit(QUERY, 0, [ended, open_one])
            assert (header.code, header.ext["messages"]) == (0, 4), header
        assert published(broker.address, TOPIC) == {0: [b"a", b"b"], 1: [b"c", b"d"]}
