"""The console's live numbers, and answers that all browsers share."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.config.model import BrokerConfig
from reput_broker.console.figures import HISTORY, SERIES, LiveFigures, quantile
from reput_broker.console.shared_answers import SharedAnswers
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.metrics import MetricsSources


def events(text: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in text.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.mark.trio
async def test_a_page_gets_the_past_minutes_and_then_each_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sources = MetricsSources(BrokerConfig(), Counters(), Health())
    figures = LiveFigures(sources)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(figures.run)
        await trio.sleep(HISTORY + 10.5)
        sources.counters.produce_seconds["flushed"].observe(0.004, 100)
        with figures.watched() as watcher:
            ((name, history),) = events(await anext(watcher))
            ((next_name, sample),) = events(await anext(watcher))
            assert (name, next_name) == ("history", "sample")
            assert (len(history["rows"]), history["series"]) == (HISTORY, [*SERIES])
            row = dict(zip(SERIES, sample["row"], strict=True))
            assert 0.0025 < row["put_p99_s"] <= 0.005
            assert sample["facts"]["state"] == "recovering"
            assert sample["facts"]["problems"] == {"recovered": "the store is recovering"}
            sources.health.state = BrokerState.RUNNING
            ((_, sample),) = events(await anext(watcher))
            assert dict(zip(SERIES, sample["row"], strict=True))["put_p99_s"] is None
            assert sample["facts"]["problems"] == {}
            assert figures.watchers == 1
        assert figures.watchers == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ([0, 0, 0, 0], 0.5, None),
        ([4, 0, 0, 0], 0.5, 0.5),
        ([0, 10, 0, 0], 0.5, 1.5),
        ([1, 0, 99, 0], 0.99, 2.0 + 2.0 * 98 / 99),
        ([0, 0, 0, 5], 0.99, 4.0),
    ],
)
def test_quantiles_within_buckets(buckets: list[int], share: float, value: float | None) -> None:
    found = quantile((1.0, 2.0, 4.0), buckets, share)
    assert found == (None if value is None else pytest.approx(value, abs=1e-6))


@pytest.mark.trio
async def test_an_answer_is_computed_once_for_all_who_wait(autojump_clock: trio.testing.MockClock) -> None:
    shared = SharedAnswers(trio.current_time)
    computed = 0

    async def compute() -> bytes:
        nonlocal computed
        computed += 1
        await trio.sleep(0.5)
        return b"%d" % computed

    async def get(answers: list[bytes]) -> None:
        answers.append(await shared.get("page", compute))

    answers: list[bytes] = []
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(get, answers)
    assert answers == [b"1"] * 10
    await trio.sleep(9.9)  # twenty times as long as it took
    await get(answers)
    assert answers[-1] == b"1"
    await trio.sleep(0.2)
    await get(answers)
    assert answers[-1] == b"2"


@pytest.mark.trio
async def test_an_error_is_not_kept_and_answers_are_limited(autojump_clock: trio.testing.MockClock) -> None:
    shared = SharedAnswers(trio.current_time)
    with pytest.raises(ValueError, match="no"):
        await shared.get("page", _failing)
    assert await shared.get("page", _quick) == b"x"
    for number in range(1000):
        await shared.get(str(number), _quick)
    assert len(shared._answers) <= 64


async def _failing() -> bytes:
    raise ValueError("no")


async def _quick() -> bytes:
    return b"x"
