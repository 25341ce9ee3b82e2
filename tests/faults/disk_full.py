"""A disk of 64 MiB filled under load: a tmpfs where one may be mounted, else ENOSPC from the calls that allocate.

What must hold: puts are refused with their own status, pulls continue, puts resume without a restart once there is
space, and nothing that was stored is lost, then and after a kill.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crash.checker import Violation
from faults.driver import Driver
from faults.outcome import VIOLATIONS_MAX, Outcome, scratch
from faults.workload import abandon
from reput_broker.store.base.results import PutStatus
from support.mounts import try_to_mount, unmount
from support.stores import small_options

DISK_BYTES = 64 << 20
FILE_BYTES = 2 << 20
PUTS_MAX = 15_000


def full_disks(seed: int, rounds: int) -> Outcome:
    """Fill the disk, free it, fill it again."""
    outcome = Outcome()
    for number in range(rounds):
        rng = random.Random(seed + number)
        with scratch() as directory, small_disk(directory) as (disk, how):
            outcome.add(f"seed {seed + number}, {how}", _fill(disk, rng))
            if how not in outcome.notes:
                outcome.notes.append(how)
        if outcome.enough:
            break
    return outcome


def _fill(disk: SmallDisk, rng: random.Random) -> list[Violation]:
    options = small_options(
        disk.path / "store", commit_log_file_size=FILE_BYTES, consume_queue_entries=rng.choice((500, 20_000))
    )
    driver = Driver(options, rng, body_bytes=rng.choice((1000, 4000)))
    driver.open()
    found = driver.found
    for _ in range(2):
        disk.fill(rng.randrange(8 << 20))
        refused = 0
        for number in range(PUTS_MAX):
            result = driver.put(rng.randrange(1, 20))
            if number % 10 == 0:
                driver.work()
            if result is not None and result.status is PutStatus.DISK_FULL:
                refused += 1
                driver.check_serves() if refused == 3 else driver.work()
            if refused > 6 or len(found) > VIOLATIONS_MAX:
                break
        if refused <= 6:
            found.append(Violation("own code", f"{PUTS_MAX} puts and no DISK_FULL: {driver.raised[-3:]}"))
        if driver.store.is_writable or driver.store.disk_full_reason is None:
            found.append(Violation("says so", "the store calls itself writable on a full disk"))
        if len(found) > VIOLATIONS_MAX:
            break
        disk.free()
        driver.clock.now_ms += 5000
        for _ in range(6):
            driver.work()
        result = driver.put()
        driver.work()
        if result is None or result.status is not PutStatus.PUT_OK or not driver.store.is_writable:
            reason = driver.store.read_only_reason or driver.store.disk_full_reason
            found.append(Violation("resumes", f"{result} once there is space; {reason} {driver.raised[-3:]}"))
            break
        driver.check_all("after the disk was full")
    if found:
        abandon(driver.store)
        return found
    if not {*driver.statuses} <= {PutStatus.PUT_OK, PutStatus.DISK_FULL}:
        found.append(Violation("own code", f"{set(driver.statuses)}"))
    driver.kill_and_check()
    return found


class SmallDisk:
    """A directory with little space, some of which can be given back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self, size: int) -> None:
        """Take space away."""
        with open(self.path / "ballast", "wb") as file:
            file.write(bytes(min(size + (16 << 20), self._free() // 2)))

    def _free(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_bsize

    def leave(self, size: int) -> None:
        """Take all space away but so much."""
        with open(self.path / "ballast", "wb") as file:
            file.write(bytes(max(0, self._free() - size)))

    def free(self) -> None:
        """Give it back."""
        os.unlink(self.path / "ballast")


class CountedDisk(SmallDisk):
    """Calls that allocate fail with ENOSPC once they have had their share."""

    def __init__(self, path: Path, patches: pytest.MonkeyPatch) -> None:
        super().__init__(path)
        self._left = 24 << 20
        for name, position in (("posix_fallocate", 2), ("pwrite", 1)):
            patches.setattr(os, name, self._counting(getattr(os, name), position))

    def _counting(self, real: Any, size_at: int) -> Any:
        def call(fd: int, *arguments: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith(str(self.path)) and not path.endswith(("checkpoint", "abort", "lock")):
                argument = arguments[size_at - 1]
                # Of what is set aside only what the file has not got yet costs space.
                has = os.fstat(fd).st_blocks * 512
                size = max(0, argument - has) if isinstance(argument, int) else len(argument)
                if size > self._left:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._left -= size
            return real(fd, *arguments)

        return call

    def fill(self, size: int) -> None:
        self._left = min(self._left, 24 << 20) - size

    def leave(self, size: int) -> None:
        self._left = size

    def free(self) -> None:
        self._left += 24 << 20


@contextmanager
def small_disk(directory: Path) -> Iterator[tuple[SmallDisk, str]]:
    """A disk of 64 MiB, and what it is made of."""
    path = directory / "disk"
    path.mkdir()
    if try_to_mount(path, DISK_BYTES):
        try:
            yield SmallDisk(path), "a tmpfs of 64 MiB"
        finally:
            unmount(path)
        return
    patches = pytest.MonkeyPatch()
    try:
        yield CountedDisk(path, patches), "no right to mount: ENOSPC from posix_fallocate and pwrite"
    finally:
        patches.undo()
