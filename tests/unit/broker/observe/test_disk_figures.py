"""The disk usage of a store by part, and how long the event loop was blocked."""

import os
from pathlib import Path

import structlog
import trio
import trio.testing

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import LOOP_DELAY_SECONDS, Histogram
from reput_broker.observe.figures import DiskFigures, look_up_disk, measure_loop_delay, refresh_disk_figures


def test_the_disk_usage_of_a_store_is_reported_by_part(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    queue = tmp_path / "consumequeue" / "orders" / "0"
    queue.mkdir(parents=True)
    (tmp_path / "commitlog" / "00000000000000000000").write_bytes(b"x" * 100_000)
    sparse = queue / "00000000000000000000"
    sparse.write_bytes(b"x" * 20)
    os.truncate(sparse, 6_000_000)
    (tmp_path / "checkpoint").write_bytes(b"x" * 4096)
    figures = look_up_disk(tmp_path, lambda: 7, clock=lambda: 9.0)
    assert 100_000 <= figures.size_bytes["commitlog"] < 200_000
    assert 20 <= figures.size_bytes["consumequeue"] < 100_000
    assert 4096 <= figures.size_bytes["other"] < 20_000
    assert figures.size_bytes["index"] == figures.size_bytes["timer"] == 0
    assert figures.free_bytes > 0
    assert 0.0 < figures.used_ratio < 1.0
    assert figures.looked_up_at_s == 9.0
    assert figures.oldest_store_timestamp_ms == 7


def test_the_look_is_repeated_and_outlives_an_error(tmp_path: Path) -> None:
    data_dir = tmp_path / "store"
    figures = DiskFigures()
    config = BrokerConfig(data_dir=data_dir, metrics={"refresh_interval": "15s"})

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refresh_disk_figures, figures, config, lambda: 7)
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            assert figures.looked_up_at_s == 0.0
            data_dir.mkdir()
            with trio.fail_after(1500):  # the look is a thread's: it takes its own time, not the clock's
                while figures.looked_up_at_s == 0.0:
                    await trio.sleep(1)
            assert figures.oldest_store_timestamp_ms == 7
            nursery.cancel_scope.cancel()

    with structlog.testing.capture_logs() as logs:
        trio.run(main, clock=trio.testing.MockClock(rate=100.0))
    assert logs[0]["event"] == "disk_figures_unavailable"


def test_a_blocked_loop_is_seen() -> None:
    histogram = Histogram(LOOP_DELAY_SECONDS)
    clock = trio.testing.MockClock(autojump_threshold=0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure_loop_delay, histogram)
            await trio.sleep(0.4)
            clock.jump(1.0)  # something held the loop for a second
            await trio.sleep(0.2)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    assert histogram.count >= 1
    assert histogram.total > 0.8
