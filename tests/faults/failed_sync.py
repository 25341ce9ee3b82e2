"""Any sync fails once: the store turns read-only until a restart, and its promises hold.

The run is recorded, so that afterwards the power can be cut: what the failed sync had to write may be lost then, also
if a later sync would have "worked".
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from crash.checker import Violation
from faults.image_check import check_image
from faults.outcome import Outcome, runs
from faults.workload import Workload, abandon
from reput_broker.store.base.errors import StoreError, StoreReadOnly
from reput_broker.store.base.results import PutStatus
from support.stores import put

STEPS_MAX = 600
STEPS_AFTER = 15
CUTS = 3


def failed_syncs(seed: int, images: int) -> Outcome:
    """Fail one sync of each run, then continue, check, and simulate power loss."""
    outcome = Outcome()
    for run_seed, directory in runs(seed, images, outcome):
        run = _FailingRun(directory / "live", run_seed)
        run.run_until_failure()
        where = f"seed {run_seed}, sync {run.fail_at} ({run.failed_path or 'none'})"
        outcome.add(where, run.found)
        rng = random.Random(run_seed)
        for cut in range(CUTS if run.failed_path else 0):
            disk = run.recorder.start()
            for event in run.recorder.events:
                disk.apply(event)
            image = directory / f"image-{cut}"
            disk.after_power_cut(rng, image)
            found = check_image(image, run.options, run.ledger, run.now, killed=False, now_ms=run.clock.now_ms)
            outcome.add(f"{where}, power cut {cut}", found)
    return outcome


class _FailingRun(Workload):
    """The recorded workload with one sync that fails."""

    def __init__(self, root, seed: int) -> None:  # type: ignore[no-untyped-def]
        super().__init__(root, seed, consume_queue_entries=7)
        self.fail_at = self.rng.randrange(1, 150)
        self.failed_path = ""
        self.found: list[Violation] = []
        self._syncs = 0
        self._is_started = False

    def run_until_failure(self) -> None:
        """Run until the sync fails, a few steps more, and end as a kill does."""
        patches = pytest.MonkeyPatch()
        for name in ("fsync", "fdatasync"):
            patches.setattr(os, name, self._failing(getattr(os, name)))
        actions: list[Callable[[], None]] = [
            self.put, self.put, self.put_run, self.step, self.step, self.flush, self.flush_queues,
            self.checkpoint, self.prepare,
        ]  # fmt: skip
        try:
            with self.recorder:
                self.start()
                # A start whose sync fails is refused, and has promised nothing.
                self._syncs, self._is_started = 0, True
                steps = STEPS_MAX
                while steps > 0:
                    steps -= 1
                    error = "no error was raised"
                    failed_before = bool(self.failed_path)
                    try:
                        self.rng.choice(actions)()
                    except (StoreError, OSError) as raised:
                        error = str(raised)
                    if self.failed_path and not failed_before:
                        if not self._was_being_made():
                            self._check_final(error)
                            break
                        # A file that could not be made: nothing in it was promised, and the next attempt may do it.
                        steps = STEPS_AFTER
            abandon(self.store)
            self.offsets.close()
        finally:
            patches.undo()

    def _failing(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
            self._syncs += 1
            if self._syncs == self.fail_at and self._is_started:
                path = os.readlink(f"/proc/self/fd/{fd if isinstance(fd, int) else fd.fileno()}")
                self.failed_path = os.path.relpath(path, self.recorder.root)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(fd)

        return sync

    def _check_final(self, error: str) -> None:
        store = self.store
        if store.read_only_reason is None:
            self.found.append(Violation("read-only", f"after {error}"))
        if store.is_writable:
            self.found.append(Violation("unhealthy", "the store calls itself writable"))
        flushed = store.flushed_offset
        for _ in range(STEPS_AFTER):
            if put(store, b"after").status is not PutStatus.READ_ONLY:
                self.found.append(Violation("read-only", "a put was taken after the failure"))
                break
            for step in (self.flush, store.reput_step, self.flush_queues, self.checkpoint):
                try:
                    step()
                except StoreReadOnly:
                    continue
                except (StoreError, OSError) as later:
                    self.found.append(Violation("read-only", f"{type(later).__name__}: {later}"))
        if "commitlog/" in self.failed_path and store.flushed_offset > flushed:
            self.found.append(Violation("final", f"flushed {flushed}, and {store.flushed_offset} after the failure"))

    def _was_being_made(self) -> bool:
        path = self.options.data_dir / self.failed_path
        made = "commitlog/" in self.failed_path and not path.exists()
        return made or self.failed_path in ("commitlog", ".")
