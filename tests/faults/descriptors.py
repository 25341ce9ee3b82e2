"""A process that can open no more files for a while: nothing is lost, and it continues by itself afterwards.

Files of the log, of the queues and of the index have to be made meanwhile, index files and the checkpoint to be synced.
"""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from crash.checker import Violation
from faults.driver import Driver
from faults.outcome import Outcome, scratch
from reput_broker.store.base.results import PutStatus
from reput_broker.store.index import service as index_backlog
from support.stores import small_options


def out_of_descriptors(seed: int, rounds: int) -> Outcome:
    """Load, all descriptors taken, load, given back, load; then a kill."""
    outcome = Outcome()
    for number in range(rounds):
        rng = random.Random(seed + number)
        with scratch() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_backlog, "KEYS_AT_ONCE", 0)  # dispatch inserts keys at once, and needs files for them
            options = small_options(
                directory / "store",
                queue_files_open_max=rng.choice((1, 2, 512)),
                consume_queue_entries=rng.choice((7, 40)),
                index_entries=rng.choice((4, 12)),
            )
            driver = Driver(options, rng)
            driver.open()
            for _ in range(3):
                _load(driver, rng.randrange(5, 30))
                with _no_descriptors(rng.randrange(3)):
                    _load(driver, rng.randrange(5, 30))
                _check_goes_on(driver)
            driver.kill_and_check()
            outcome.add(f"seed {seed + number}", driver.found)
        if outcome.enough:
            break
    return outcome


def _load(driver: Driver, steps: int) -> None:
    for _ in range(steps):
        result = driver.put(driver.rng.randrange(1, 5))
        if result is None or result.status not in (PutStatus.PUT_OK, PutStatus.CREATE_MAPPED_FILE_FAILED):
            driver.found.append(Violation("own code", f"{result}: {driver.raised[-1:]}"))
        if driver.rng.random() < 0.5:
            driver.work()


def _check_goes_on(driver: Driver) -> None:
    driver.clock.now_ms += 5000
    for _ in range(8):
        driver.work()
    result = driver.put()
    if result is None or result.status is not PutStatus.PUT_OK:
        reason = driver.store.read_only_reason
        driver.found.append(Violation("goes on", f"{result}: {reason}; {driver.raised[-2:]}"))
        return
    driver.work()
    driver.check_all("after descriptors ran out")


@contextmanager
def _no_descriptors(left: int) -> Iterator[None]:
    """Take every descriptor but so many: the limit is the process's own, and real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(min(left, len(taken))):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
