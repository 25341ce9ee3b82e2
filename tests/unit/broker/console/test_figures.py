"""The console's live numbers, and answers that all browsers share."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.config.model import BrokerConfig
from reput_broker.console.figures import LiveFigures, SharedAnswers, quantile
from reput_broker.console.pages import added_up
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import BrokerState, Health
from reput_broker.observe.history.file import PUT_COUNTS
from reput_broker.observe.history.recorder import History
from reput_broker.observe.metrics import MetricsSources
from reput_protocol.commands import statistics as bodies


def events(text: bytes) -> list[tuple[str, Any]]:
    found = []
    for block in text.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if "event" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.mark.trio
async def test_a_page_gets_the_state_and_then_each_second(autojump_clock: trio.testing.MockClock) -> None:
    began_at = trio.current_time()
    sources = MetricsSources(
        BrokerConfig(),
        Counters(),
        Health(),
        clock_ms=lambda: 1_800_000_000_000 + round(1000 * (trio.current_time() - began_at)),
    )
    history = History(sources)
    figures = LiveFigures(sources, history)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(history.run)
        await trio.sleep(10.5)
        sources.counters.produce_seconds["flushed"].observe(0.004, 100)
        with figures.watched() as watcher:
            ((name, first),) = events(await anext(watcher))
            ((next_name, sample),) = events(await anext(watcher))
            assert (name, next_name) == ("facts", "sample")
            assert first["facts"]["state"] == "recovering"
            assert sample["at_s"] == 1_800_000_011
            assert 0.0025 < sample["values"]["put_p99_s"] <= 0.005
            assert sample["values"]["lag"] is None
            assert sample["facts"]["problems"] == {"recovered": "the store is recovering"}
            sources.health.state = BrokerState.RUNNING
            ((_, sample),) = events(await anext(watcher))
            assert sample["values"]["put_p99_s"] is None
            assert sample["facts"]["problems"] == {}
            assert figures.watchers == 1
        assert figures.watchers == 0
        nursery.cancel_scope.cancel()


def test_figures_of_brokers_are_added_up_by_their_steps() -> None:
    counts: dict[str, list[float | None]] = {name: [0.0, 0.0] for name in PUT_COUNTS}
    fast: dict[str, list[float | None]] = {**counts, "puts_le_0.001": [99.0, 0.0]}
    slow: dict[str, list[float | None]] = {**counts, "puts_le_0.1": [0.0, 2.0, 0.0]}
    total = added_up(
        [
            bodies.BrokerHistory(1200, 60, 2, {"messages_in_per_s": [5.0, None], "loop_delay_s": [0.1, 0.2], **fast}),
            # Of a clock that is behind by a step.
            bodies.BrokerHistory(
                1140, 60, 3, {"messages_in_per_s": [1.0, 2.0, 3.0], "loop_delay_s": [9.0, 0.01, 0.3], **slow}
            ),
        ]
    )
    assert (total["begin_s"], total["step_s"], total["rows"]) == (1140, 60, 3)
    assert total["columns"]["messages_in_per_s"] == [1.0, 7.0, 3.0]
    assert total["columns"]["loop_delay_s"] == [9.0, 0.1, 0.3]
    assert 0.0005 < total["columns"]["put_p50_s"][1] <= 0.001
    assert 0.05 < total["columns"]["put_p99_s"][1] <= 0.1
    assert total["columns"]["put_p50_s"][0] is None
    longer = added_up(
        [
            bodies.BrokerHistory(1200, 60, 1, {"messages_in_per_s": [4.0]}),
            bodies.BrokerHistory(1200, 10, 6, {"messages_in_per_s": [1.0, 2.0, 3.0, 4.0, 5.0, None]}),
        ]
    )
    assert (longer["step_s"], longer["columns"]["messages_in_per_s"]) == (60, [7.0])
    assert added_up([])["rows"] == 0


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
    assert found == pytest.approx(math.nan if value is None else value, abs=1e-6, nan_ok=True)


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
async def test_after_a_change_nothing_from_before_it_is_shown(autojump_clock: trio.testing.MockClock) -> None:
    shared = SharedAnswers(trio.current_time)
    state = b"before"

    async def compute() -> bytes:
        seen = state
        await trio.sleep(1)
        return seen

    async def change() -> None:
        nonlocal state
        await trio.sleep(0.5)
        state = b"after"
        shared.expire()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        assert await shared.get("page", compute) == b"before"  # asked before it
    assert await shared.get("page", compute) == b"after"
    state = b"later"
    assert await shared.get("page", compute) == b"after", "it is kept for a while again"
    shared.expire()
    assert await shared.get("page", compute) == b"later"


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
