"""A run in which retention deletes the oldest files of the log and what follows them; readers hold some for a while."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from faults.outcome import Outcome
from faults.power_cut import record_and_cut
from faults.workload import Expiry, Workload
from reput_broker.store.base.results import GetStatus
from reput_broker.store.message_reader import HeldExtents
from support.inside import log_of
from support.retention import Cleaning, FakeMachine

FULL_DISK = 0.88
"""So full that files of any age are deleted, and puts are still accepted."""


class ExpiringWorkload(Workload):
    """The workload on a disk that is too full."""

    def __init__(self, root: Path, seed: int) -> None:
        rng = random.Random(-seed)
        super().__init__(
            root,
            seed,
            commit_log_file_size=4096,
            consume_queue_entries=rng.choice((1, 2, 7)),
            index_slots=8,
            index_entries=12,
            flush_sync=rng.random() < 0.5,
        )
        self._machine = FakeMachine(used=FULL_DISK)
        self._held: list[HeldExtents] = []

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        return [*super().actions(), (self.clean, 14), (self.hold, 4), (self.let_go, 4), (self.flush_queues, 10)]

    def start(self) -> None:
        super().start()
        self._cleaning = Cleaning(self.store, self._machine, delete_files_batch=self.rng.randrange(1, 4))

    def clean(self) -> None:
        before = self.now
        self._machine.waited_ms += 200_000
        self._cleaning.clean_log()
        self.ledger.expiries.append(Expiry(before, self.now, max(0, log_of(self.store).files.min_offset)))
        if self.rng.random() < 0.7:
            self._cleaning.clean_queues()

    def hold(self) -> None:
        """Read the oldest messages, slowly."""
        offset = self.store.min_offset_in_queue("T", 0)
        result = self.store.get_message("T", 0, offset, 1, 1 << 20)
        if result.status is GetStatus.FOUND:
            self._held.append(self.store.hold_extents(result.extents))

    def let_go(self) -> None:
        while self._held:
            self._held.pop().release()

    def kill(self) -> None:
        self.let_go()
        super().kill()

    def stop(self) -> None:
        self.let_go()
        super().stop()

    def run(self, steps: int) -> None:
        super().run(steps)
        self.let_go()


def cuts_while_files_expire(seed: int, images: int) -> Outcome:
    """Power cuts and kills between any two events of runs in which old files are deleted."""
    return record_and_cut(seed, images, workload_of=ExpiringWorkload)


def recoveries_of_expired_logs(seed: int, images: int) -> Outcome:
    """The recovery of what such a cut leaves, cut again."""
    return record_and_cut(seed, images, recoveries=True, workload_of=ExpiringWorkload)
