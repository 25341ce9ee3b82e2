"""Retention for tests: a machine whose clocks, hour and disk are set by the test."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from reput_broker.store.message_store import MessageStore
from reput_broker.store.retention import CleanCommitLog, CleanConsumeQueue, DeletedFile, RetentionRules
from reput_broker.tenure.core import Surroundings
from support.stores import T0, dispatch_all, put

HOUR_MS = 3_600_000
RESERVED_MS = 72 * HOUR_MS


@dataclass
class FakeMachine:
    """Clocks that stand still, at noon, and a disk that is half full."""

    now_ms: int = T0
    waited_ms: int = 0
    set_forward_ms: int = 0
    """How far the wall clock was set forward."""
    hour: int = 12
    used: float = 0.5
    used_by_queues: float | None = None
    looks: list[Path] = field(default_factory=list)

    def monotonic_ms(self) -> int:
        """The clock for intervals."""
        return self.waited_ms + self.now_ms - T0 - self.set_forward_ms

    def disk_usage(self, path: Path) -> float:
        """The injected look at the disk."""
        self.looks.append(path)
        if path.name == "consumequeue" and self.used_by_queues is not None:
            return self.used_by_queues
        return self.used

    def surroundings(self) -> Surroundings:
        """What a broker is given."""
        return Surroundings(
            clock_ms=lambda: self.now_ms,
            monotonic_ms=self.monotonic_ms,
            local_hour=lambda: self.hour,
            disk_usage=self.disk_usage,
        )

    def age(self, store_dir: Path) -> None:
        """Give every file of the log the machine's present time."""
        for path in (store_dir / "commitlog").glob("*"):
            os.utime(path, (self.now_ms / 1000, self.now_ms / 1000))


class Cleaning:
    """Both cleaners of an open store, driven by hand."""

    def __init__(self, store: MessageStore, machine: FakeMachine, **rules: object) -> None:
        self.store = store
        self.machine = machine
        self.rules = replace(RetentionRules(), **rules)  # type: ignore[arg-type]
        self.log: CleanCommitLog
        self.queues: CleanConsumeQueue
        self.log, self.queues = store.cleaners(
            lambda: self.rules,
            monotonic_ms=machine.monotonic_ms,
            local_hour=lambda: machine.hour,
            disk_usage=machine.disk_usage,
        )

    def clean_log(self) -> list[DeletedFile]:
        """One round over the log, as the service does it."""
        deleted = []
        if self.log.look():
            while (file := self.log.delete_next()) is not None:
                deleted.append(file)
        self.store.refuse_for_disk(self.log.disk.refusal)
        if (file := self.log.retry_hanged()) is not None:
            deleted.append(file)
        return deleted

    def clean_queues(self) -> int:
        """One round over what follows the log; how many files went."""
        deleted = 0
        if self.queues.look():
            while (step := self.queues.step()) is not None:
                deleted += step.deleted
        return deleted

    def clean(self) -> list[int]:
        """Both; where the log files that went began."""
        deleted = [file.base_offset for file in self.clean_log()]
        self.clean_queues()
        return deleted


def fill(store: MessageStore, files: int, *, topic: str = "T", queue_id: int = 0, size: int = 900) -> int:
    """Put until the log has `files` more files, dispatch and sync everything; return how many messages that took."""
    count = 0
    end = len(store_files(store)) + files
    while len(store_files(store)) < end:
        put(store, b"%06d" % count + bytes(size), topic=topic, queue_id=queue_id)
        count += 1
    settle(store)
    return count


def settle(store: MessageStore) -> None:
    """Dispatch and sync everything, so that nothing holds files back."""
    dispatch_all(store)
    store.flush_consume_queues()


def store_files(store: MessageStore) -> list[str]:
    """Names of the log's files on the disk."""
    directory = store.options.commit_log_dir
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
