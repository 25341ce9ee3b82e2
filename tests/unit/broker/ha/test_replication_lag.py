"""How far slaves are behind, in bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio

from reput_broker.config.sections import HAConfig
from reput_broker.ha.service import LogTimes, MasterLog, ReplicationProgress
from support.tasks import run_by_the_clock


@dataclass(eq=False)
class FakeSlave:
    acked_offset: int = 0
    member: int | None = 1
    peer: str = "p:1"
    next_offset: int = 0


def test_a_slave_that_is_a_little_behind_under_constant_load_is_not_older_than_that() -> None:
    async def check() -> None:
        end, slave = 0, FakeSlave()
        progress = ReplicationProgress(lambda: end, lambda: [slave], HAConfig())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(progress.run)
            for _ in range(600):
                end += 1000
                await trio.sleep(0.1)
                slave.acked_offset = end - 500
            (found,) = progress.slaves()
            assert (found.lag_bytes, found.is_in_sync) == (500, True)
            assert found.lag_s < 0.6
            assert found.bytes_per_s == pytest.approx(10_000, rel=0.3)
            for _ in range(100):
                end += 1000
                await trio.sleep(0.1)
            (found,) = progress.slaves()
            assert found.lag_s == pytest.approx(10, abs=0.6)
            slave.acked_offset = end
            assert progress.slaves()[0].lag_s == 0.0
            nursery.cancel_scope.cancel()

    run_by_the_clock(check)


def test_many_notes_stay_few_and_keep_the_last_ones_precise() -> None:
    times = LogTimes()
    for second in range(100_000):
        times.note(second + 1, float(second))
    assert times.behind_s(100_000, 100_000.0) == 0.0
    assert times.behind_s(99_990, 100_000.0) == 10.0
    assert times.behind_s(0, 100_000.0) >= 90_000
    assert len(times._ends) <= 4096


def test_who_is_in_sync_is_the_gap_or_what_the_election_recorded() -> None:
    async def check() -> None:
        near, far = FakeSlave(900_000, 1), FakeSlave(0, 2)
        config = HAConfig(max_gap_not_in_sync=500_000)
        progress = ReplicationProgress(lambda: 1_000_000, lambda: [far, near], config)
        assert [(slave.member, slave.is_in_sync) for slave in progress.slaves()] == [(1, True), (2, False)]
        assert progress.copies_in_sync == 2
        elected = ReplicationProgress(lambda: 1_000_000, lambda: [far, near], config, lambda: {0, 2, 5})
        assert [(slave.member, slave.is_in_sync) for slave in elected.slaves()] == [(1, False), (2, True)]
        assert elected.copies_in_sync == 3

    run_by_the_clock(check)


def test_a_slave_knows_how_far_it_is_behind() -> None:
    async def check() -> None:
        own = [0]
        master = MasterLog(lambda: own[0])
        assert (master.lag_bytes, master.lag_s) == (0, 0.0)
        master.note_end(100)
        await trio.sleep(3)
        master.note_end(150)
        own[0] = 90
        assert (master.lag_bytes, master.lag_s) == (60, 3.0)
        own[0] = 100
        assert (master.lag_bytes, master.lag_s) == (50, 0.0)
        own[0] = 160
        assert (master.lag_bytes, master.lag_s) == (0, 0.0)

    run_by_the_clock(check)
