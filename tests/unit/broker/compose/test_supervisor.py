"""Pauses between the starts of a child process, and its last end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
import trio.testing

from reput_broker.compose.proxy_process import supervise

pytestmark = pytest.mark.trio


async def starts_of(lasts: Sequence[float], *, pause_s: float | None = None, ends_with: int = 0) -> list[float]:
    """Run processes that last so many seconds, the last one until it is stopped; return when each was started."""
    starts: list[float] = []
    stopping = trio.Event()

    async def run() -> int:
        starts.append(trio.current_time())
        if len(starts) > len(lasts):
            stopping.set()
        else:
            await trio.sleep(lasts[len(starts) - 1])
        return 1

    await supervise(run, lambda code, _: code != ends_with, stopping, pause_s=pause_s)
    return starts


async def test_pauses_grow_and_shrink_after_a_steady_run(autojump_clock: trio.testing.MockClock) -> None:
    lasts = [0.0] * 7 + [60.0]
    starts = await starts_of(lasts)
    pauses = [after - before - last for before, after, last in zip(starts[:-1], starts[1:], lasts, strict=True)]
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30, 1])


async def test_a_pause_can_be_the_same_each_time(autojump_clock: trio.testing.MockClock) -> None:
    first, *later = await starts_of([0.0] * 3, pause_s=15.0)
    assert [start - first for start in later] == pytest.approx([15, 30, 45])


async def test_a_process_that_must_not_be_started_again_stays_stopped() -> None:
    assert len(await starts_of([0.0] * 3, ends_with=1)) == 1


async def test_a_stop_ends_a_pause(autojump_clock: trio.testing.MockClock) -> None:
    stopping, ends = trio.Event(), list[tuple[int, float]]()

    async def run() -> int:
        return 3

    def on_end(code: int, pause_s: float) -> bool:
        ends.append((code, pause_s))
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise, run, on_end, stopping)
        await trio.sleep(0.5)
        stopping.set()
    assert ends == [(3, 1.0)]
    assert trio.current_time() == pytest.approx(0.5, abs=0.1)
