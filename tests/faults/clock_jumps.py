"""A wall clock that jumps back an hour and forward a day under load, with power cuts and kills on top."""

from __future__ import annotations

from faults.outcome import Outcome
from faults.power_cut import record_and_cut
from faults.workload import QUEUES, Workload
from reput_protocol.codes import BoundaryType

JUMPS_MS = (-3_600_000, 86_400_000, -3_600_000, 1, 1000)


class _JumpingWorkload(Workload):
    """Every put and every pause may be at another time; time look-ups come in between."""

    def put(self) -> None:
        if self.rng.random() < 0.3:
            self.wait()
        super().put()

    def wait(self) -> None:
        self.clock.now_ms += self.rng.choice(JUMPS_MS)
        for queue in QUEUES:
            for boundary in BoundaryType:
                offset = self.store.offset_by_timestamp(*queue, self.clock.now_ms, boundary)
                assert 0 <= offset <= self.store.max_offset_in_queue(*queue)


def clock_jumps(seed: int, images: int) -> Outcome:
    """Record runs on that clock and cut them."""
    return record_and_cut(seed, images, workload_of=_JumpingWorkload)
