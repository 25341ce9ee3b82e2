"""The last files of log and index sparse, as a copy or a repair leaves them, and then hardly any room on the disk.

What is written into a mapping where the disk has set nothing aside costs the process its life once the disk is full. So
first it is looked at whether everything is set aside, on a disk with room; only then the disk is filled. What must hold
there is what must hold on any full disk: refused by its own code, pulls continue, resumed by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from crash.checker import Violation
from faults.disk_full import SmallDisk, small_disk
from faults.driver import Driver
from faults.outcome import Outcome, scratch
from faults.workload import abandon
from reput_broker.store.base.errors import StoreError
from reput_broker.store.base.results import PutStatus
from support.inside import log_of
from support.stores import is_reserved, make_sparse, small_options

LEFT_BYTES = 256 << 10
MISSING_BYTES_MIN = 1 << 20
"""More than a start can find by removing what it does not keep."""


def sparse_files(seed: int, rounds: int) -> Outcome:
    """Stop or kill, make the last files sparse, open with room; the same again, and open without."""
    outcome = Outcome()
    for number in range(rounds):
        rng = random.Random(seed + number)
        with scratch() as directory, small_disk(directory) as (disk, how):
            outcome.add(f"seed {seed + number}, {how}", _Round(disk, rng).run())
            if how not in outcome.notes:
                outcome.notes.append(how)
        if outcome.enough:
            break
    return outcome


class _Round:
    """One store on one disk."""

    def __init__(self, disk: SmallDisk, rng: random.Random) -> None:
        self._disk = disk
        self._rng = rng
        options = small_options(
            disk.path / "store",
            commit_log_file_size=rng.choice((2 << 20, 4 << 20)),
            consume_queue_entries=rng.choice((500, 20_000)),
            index_slots=20_000,
            index_entries=100_000,
        )
        self._driver = Driver(options, rng, body_bytes=rng.choice((300, 3000)))

    def run(self) -> list[Violation]:
        driver = self._driver
        driver.open()
        self._load()
        self._check_reserved("made anew")
        for is_full in (False, True):
            if driver.found:
                break
            self._stop()
            for directory in (driver.options.commit_log_dir, driver.options.index_dir):
                for path in directory.iterdir():
                    make_sparse(path)
            if is_full:
                self._disk.leave(LEFT_BYTES)
            driver.open()
            if is_full:
                if self._missing_bytes() > MISSING_BYTES_MIN:
                    self._check_refused()
                self._disk.free()
            self._resume()
            self._load()
            self._check_reserved("gone on with")
        if driver.found:
            abandon(driver.store)
        else:
            driver.check_all("after the files were sparse")
            driver.kill_and_check()
        return driver.found

    def _load(self) -> None:
        """Put, but less than fills the disk, and have all of it indexed."""
        driver = self._driver
        for _ in range(self._rng.randrange(20, 200)):
            result = driver.put(self._rng.randrange(1, 4))
            if result is None or result.status is not PutStatus.PUT_OK:
                driver.found.append(Violation("puts", f"{result}: {driver.raised[-1:]}"))
                return
            if self._rng.random() < 0.2:
                driver.work()
        driver.check_all("under load")

    def _last_files(self) -> Iterator[Path]:
        """The current file, and those created ahead."""
        options = self._driver.options
        last = log_of(self._driver.store).files.last_file
        assert last is not None
        yield from (path for path in options.commit_log_dir.iterdir() if path.name >= last.path.name)
        yield max(options.index_dir.iterdir())

    def _missing_bytes(self) -> int:
        """How much the disk would still have to set aside for the file in use."""
        last = log_of(self._driver.store).files.last_file
        assert last is not None
        return last.size - last.path.stat().st_blocks * 512

    def _check_reserved(self, what: str) -> None:
        for path in self._last_files():
            if not is_reserved(path):
                self._driver.found.append(Violation("set aside", f"{path.name}, {what}, has holes"))

    def _stop(self) -> None:
        store = self._driver.store
        if self._rng.random() < 0.5:
            if not store.close():
                self._driver.found.append(Violation("stops", str(store.read_only_reason)))
        else:
            abandon(store)

    def _check_refused(self) -> None:
        """Nothing can be appended to the file in use, and it is all that there is."""
        driver = self._driver
        for number in range(20):
            result = driver.put()
            if result is None or result.status is not PutStatus.DISK_FULL:
                driver.found.append(Violation("own code", f"{result}: {driver.raised[-1:]}"))
                return
            if number % 5 == 0:
                driver.work()
        if driver.store.is_writable or driver.store.disk_full_reason is None:
            driver.found.append(Violation("says so", "the store calls itself writable on a full disk"))
        driver.check_serves()

    def _resume(self) -> None:
        """Whoever makes files ahead sees to it, or else the next put."""
        driver = self._driver
        driver.clock.now_ms += 5000
        if self._rng.random() < 0.5:
            try:
                driver.store.make_log_file()
            except StoreError as error:
                driver.found.append(Violation("resumes", str(error)))
        result = driver.put()
        if result is None or result.status is not PutStatus.PUT_OK or not driver.store.is_writable:
            driver.found.append(Violation("resumes", f"{result}: {driver.store.disk_full_reason}"))
