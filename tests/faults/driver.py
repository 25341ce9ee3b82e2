"""A store under load while something is taken from it: space, descriptors, a working sync. Nothing is recorded here.

The driver does what the broker's services do, one step at a time, takes refusals as they come, and in the end compares
what the store holds, and what it holds after a kill, with what it acknowledged.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field

from crash.checker import Violation
from faults.workload import abandon
from reput_broker.store.base.errors import StoreError
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from support.stores import FakeClock, bodies, dispatch_all, put

Queue = tuple[str, int]
QUEUES: tuple[Queue, ...] = (("T", 0), ("T", 1), ("U", 0))
KEYS_CHECKED = 200


@dataclass(slots=True)
class Driver:
    """A store, what it acknowledged, and what it refused with."""

    options: StoreOptions
    rng: random.Random
    body_bytes: int = 300
    clock: FakeClock = field(default_factory=FakeClock)
    stored: dict[Queue, list[bytes]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})
    flushed: dict[Queue, int] = field(default_factory=lambda: dict.fromkeys(QUEUES, 0))
    keys: dict[str, tuple[Queue, int]] = field(default_factory=dict)
    """The key of each put that was taken, the queue it went to and how many messages have it."""
    statuses: list[PutStatus] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    found: list[Violation] = field(default_factory=list)
    store: MessageStore = field(init=False)
    _number: int = 0

    def open(self) -> None:
        """Open the store."""
        self.store = MessageStore(self.options, clock_ms=self.clock)
        self.store.open()

    def put(self, count: int = 1) -> PutResult | None:
        """Put messages; None if the put raised."""
        queue = self.rng.choice(QUEUES)
        self._number += 1
        block = [b"%d/%d:" % (self._number, n) + bytes(self.body_bytes) for n in range(count)]
        key = f"k{self._number}"
        try:
            result = put(self.store, *block, topic=queue[0], queue_id=queue[1], keys=[key])
        except (StoreError, OSError) as error:
            self.raised.append(f"{type(error).__name__}: {error}")
            return None
        self.statuses.append(result.status)
        if result.status is PutStatus.PUT_OK:
            if result.queue_offset != len(self.stored[queue]):
                self.found.append(Violation("offsets", f"{queue}: {result.queue_offset} for {len(self.stored[queue])}"))
            self.stored[queue] += block
            self.keys[key] = queue, count
        return result

    def work(self) -> None:
        """Sync, dispatch, sync the queues, write the checkpoint, make a file: each may fail by itself."""
        self.clock.now_ms += 500
        self.flush()
        store = self.store
        for step in (store.reput_step, store.flush_consume_queues, store.flush_index, store.write_checkpoint):
            if self.rng.random() < 0.7:
                self.attempt(step)
        if self.store.should_prepare_next_file():
            self.attempt(self.store.prepare_next_file)

    def flush(self) -> None:
        """Sync the log and note what that acknowledges."""
        ends = {queue: len(messages) for queue, messages in self.stored.items()}
        before = self.store.max_physical_offset
        try:
            flushed = self.store.flush_commit_log()
        except (StoreError, OSError) as error:
            self.raised.append(f"{type(error).__name__}: {error}")
            return
        if flushed >= before:
            self.flushed = ends

    def attempt(self, step) -> None:  # type: ignore[no-untyped-def]
        """Do one step of a service; what it raises is kept."""
        try:
            step()
        except (StoreError, OSError) as error:
            self.raised.append(f"{type(error).__name__}: {error}")

    def check_serves(self) -> None:
        """What can be pulled is a beginning of what was stored, and pulls raise nothing."""
        for queue, stored in self.stored.items():
            try:
                served = bodies(self.store, *queue)
            except Exception as error:
                self.found.append(Violation("pulls are served", f"{type(error).__name__}: {error}"))
                continue
            if served != stored[: len(served)]:
                self.found.append(Violation("byte-equal", f"{queue} serves something else than was stored"))

    def check_all(self, what: str) -> None:
        """Everything that was stored is served."""
        with suppress(StoreError):
            dispatch_all(self.store)
        for queue, stored in self.stored.items():
            served = bodies(self.store, *queue)
            if served != stored:
                self.found.append(Violation("nothing lost", f"{what}: {queue} has {len(served)} of {len(stored)}"))
        self._check_keys(what)

    def _check_keys(self, what: str) -> None:
        """Some of the keys find what was stored with them."""
        while self.store.index_step():
            pass
        self.store.complete_index()
        for key in self.rng.sample(sorted(self.keys), min(len(self.keys), KEYS_CHECKED)):
            (topic, _), count = self.keys[key]
            found = self.store.query_message(topic, key, count + 1)
            if len(found.records) != count or not found.is_complete:
                self.found.append(Violation("key query", f"{what}: {key} finds {len(found.records)} of {count}"))

    def kill_and_check(self) -> None:
        """Kill, open again, and look for everything; the page cache survives a kill."""
        abandon(self.store)
        try:
            self.open()
        except Exception as error:
            self.found.append(Violation("starts", f"{type(error).__name__}: {error}"))
            return
        self.check_all("after a kill")
        abandon(self.store)
