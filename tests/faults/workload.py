"""A run of the real store and its tables, recorded, with a ledger of what it promised and when.

One thread does what the broker's services do: puts, dispatch steps, syncs of log and queues, checkpoints, files made
ahead, offset commits and their saves, a topic deleted now and then, kills and orderly stops in between. "When" is the
number of recorded events, so that for a cut anywhere it is known what had been promised by then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults.recorder import Recorder
from reput_broker.config.sections import TopicsConfig
from reput_broker.store.base.errors import StoreError
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block, PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.kernel.records import record_starts
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.inside import log_of
from support.stores import BORN_HOST, T0, FakeClock, small_options

Queue = tuple[str, int]
QUEUES: tuple[Queue, ...] = (("T", 0), ("T", 1), ("U", 0), ("rare", 0), ("D", 0), ("D", 1))
_WEIGHTS = (10, 10, 10, 1, 2, 2)
DELETED_TOPIC = "D"
GROUP = "g"
POOL_SHARE = 0.2
"""So many of the workloads put through a pool of buffers."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message that was put."""

    queue: Queue
    body: bytes
    start: int
    end: int
    """The position of its record in the log."""
    key: str
    append: int
    """Messages with the same number were put with one call: a killed process leaves all of them or none."""
    put_at: int
    """After so many events the put had returned."""


@dataclass(slots=True)
class Deletion:
    """A topic's messages before a log offset were deleted."""

    before: int
    began_at: int
    done_at: int


@dataclass(slots=True)
class Expiry:
    """The oldest files of the log were deleted."""

    began_at: int
    done_at: int
    begin: int
    """Where the log began then, on the disk."""


@dataclass(slots=True)
class Ledger:
    """What was promised when."""

    entries: list[Entry] = field(default_factory=list)
    """Every message in log order."""
    flushed: list[tuple[int, int]] = field(default_factory=list)
    """(event, log offset): everything before the offset was acknowledged as flushed."""
    shown: list[tuple[int, Queue, int]] = field(default_factory=list)
    """(event, queue, log offset): a consumer could have been given the message that ends there."""
    deletions: list[Deletion] = field(default_factory=list)
    expiries: list[Expiry] = field(default_factory=list)
    commits: list[tuple[int, int, int]] = field(default_factory=list)
    """(event before, event after, offset): commits of one queue, ascending."""
    saved_commits: list[tuple[int, int]] = field(default_factory=list)
    """(event, offset): the offset was in the saved JSON file."""
    saved_topics: list[tuple[int, str]] = field(default_factory=list)
    """(event, topic): the topic was in the saved JSON file."""

    def flushed_by(self, event: int) -> int:
        """The log offset acknowledged as flushed by then."""
        return max((offset for at, offset in self.flushed if at <= event), default=0)


class Workload:
    """Runs steps and keeps the ledger."""

    def __init__(self, root: Path, seed: int, **changes: object) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.rng = rng = random.Random(seed)
        options = {
            "commit_log_file_size": rng.choice((4096, 4096, 20_480)),
            "consume_queue_entries": rng.choice((7, 40)),
            "flush_sync": rng.random() < 0.75,
            "transient_store_pool": rng.random() < POOL_SHARE,
            "transient_store_pool_size": rng.choice((1, 3)),
            **changes,
        }
        self.options: StoreOptions = small_options(root, **options)
        self.clock = FakeClock()
        self.ledger = Ledger()
        self.recorder = Recorder(root)
        self._number = 0
        self._appends = 0
        self._offset = 0
        self._topics_made = 0

    @property
    def now(self) -> int:
        """How many events there have been."""
        return len(self.recorder.events)

    def run(self, steps: int) -> None:
        """Do so many random steps, recorded, and leave the store open as a kill would find it."""
        actions = self.actions()
        with self.recorder:
            self.start()
            for action in self.rng.choices([a for a, _ in actions], [w for _, w in actions], k=steps):
                action()
        abandon(self.store)
        self.offsets.close()

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        """What a step can be, with weights."""
        return [
            (self.put, 40), (self.put_run, 8), (self.step, 25), (self.flush, 25), (self.flush_queues, 6),
            (self.checkpoint, 6), (self.prepare, 8), (self.commit, 8), (self.save_tables, 3), (self.delete, 1),
            (self.kill, 2), (self.stop, 2), (self.wait, 2),
        ]  # fmt: skip

    # -- steps ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.store = MessageStore(self.options, clock_ms=self.clock)
        self.store.open()
        self.offsets, self.topics = open_tables(self.options.data_dir, self.clock)
        self.note_flushed()

    def note_flushed(self) -> None:
        self.ledger.flushed.append((self.now, self.store.flushed_offset))

    def wait(self) -> None:
        self.clock.now_ms += self.rng.choice((1, 1000, 60_000))

    def new_bodies(self, count: int, size: int) -> list[bytes]:
        self._number += 1
        return [
            b"%d/%d:" % (self._number, index) + self.rng.randbytes(self.rng.randrange(size + 1))
            for index in range(count)
        ]

    def put(self) -> None:
        (queue,) = self.rng.choices(QUEUES, _WEIGHTS)
        size = self.rng.choice((10, 100, 700, 2500))
        bodies = self.new_bodies(1 if size > 1000 else self.rng.randrange(1, 6), size)
        properties = {"p": "v" * self.rng.randrange(1, 300)} if self.rng.random() < 0.3 else None
        messages = [Message(queue[0], body, tag="a", keys=[key_of(body)], properties=properties) for body in bodies]
        block = bytearray(encode_put_block(messages, *queue, T0))
        ends = ends_of(block)
        result = self.store.put_one(Block(block, queue[0], queue[1], len(bodies), BORN_HOST))
        if result.status is PutStatus.PUT_OK:
            self.commit_log()
            self._appends += 1
            self.took(queue, bodies, result.physical_offset, ends)

    def put_run(self) -> None:
        blocks, kept = [], []
        for queue in self.rng.choices(QUEUES, _WEIGHTS, k=self.rng.randrange(1, 5)):
            bodies = self.new_bodies(self.rng.randrange(1, 4), 60)
            messages = [Message(queue[0], body, keys=[key_of(body)]) for body in bodies]
            data = encode_put_block(messages, *queue, T0)
            blocks.append(Block(data, *queue, len(bodies), BORN_HOST))
            kept.append((queue, bodies, ends_of(data)))
        results = self.store.put(blocks)
        self.commit_log()
        file = -1
        for (queue, bodies, ends), result in zip(kept, results, strict=True):
            if isinstance(result, PutResult) and result.status is PutStatus.PUT_OK:
                before, file = file, result.physical_offset // self.options.commit_log_file_size
                self._appends += file != before  # those of one file are stored all or none
                self.took(queue, bodies, result.physical_offset, ends)

    def commit_log(self) -> None:
        """What is acknowledged has been committed, if it went into a buffer; otherwise there is nothing to do."""
        if self.options.transient_store_pool:
            self.store.commit_buffers()

    def took(self, queue: Queue, bodies: list[bytes], place: int, ends: list[int]) -> None:
        starts = [0, *ends[:-1]]
        self.ledger.entries += [
            Entry(queue, body, place + start, place + end, key_of(body), self._appends, self.now)
            for body, start, end in zip(bodies, starts, ends, strict=True)
        ]

    def step(self) -> None:
        self.store.reput_step(self.rng.choice((500, 5000)))
        if not self.options.flush_sync:
            return
        for queue in QUEUES:
            end = self.store.max_offset_in_queue(*queue)
            if end and queue[0] != DELETED_TOPIC:
                mine = [entry for entry in self.ledger.entries if entry.queue == queue]
                if end <= len(mine):
                    self.ledger.shown.append((self.now, queue, mine[end - 1].end))

    def flush(self) -> None:
        self.store.flush_commit_log()
        self.note_flushed()

    def flush_queues(self) -> None:
        self.store.flush_consume_queues()

    def checkpoint(self) -> None:
        self.store.write_checkpoint()

    def prepare(self) -> None:
        if self.store.should_prepare_next_file():
            self.store.prepare_next_file()

    def commit(self) -> None:
        self._offset += self.rng.randrange(1, 5)
        before = self.now
        self.offsets.commit(GROUP, "T", 0, self._offset)
        self.ledger.commits.append((before, self.now, self._offset))

    def save_tables(self) -> None:
        save_now(self.offsets)
        self.ledger.saved_commits.append((self.now, self._offset))
        self._topics_made += 1
        topic = f"made-{self._topics_made}"
        self.topics.create_on_send(topic)
        save_now(self.topics)
        self.ledger.saved_topics.append((self.now, topic))

    def delete(self) -> None:
        deletion = Deletion(self.store.max_physical_offset, self.now, 1 << 62)
        self.ledger.deletions.append(deletion)
        self.store.delete_topic(DELETED_TOPIC)
        deletion.done_at = self.now

    def kill(self) -> None:
        abandon(self.store)
        self.offsets.close()
        self.start()

    def stop(self) -> None:
        with suppress(StoreError):
            save_now(self.offsets)
        self.offsets.close()
        self.ledger.saved_commits.append((self.now, self._offset))
        assert self.store.close()
        self.note_flushed()
        self.start()


def key_of(body: bytes) -> str:
    """The key that a message with this body is put with."""
    return body[: body.index(b":")].decode()


def open_tables(data_dir: Path, clock: FakeClock) -> tuple[ConsumerOffsetManager, TopicConfigManager]:
    """Load the broker's two tables of a directory."""
    config = data_dir / "config"
    offsets = ConsumerOffsetManager(config / "consumerOffset.json", clock_ms=clock)
    offsets.load()
    topics = TopicConfigManager(config / "topics.json", clock_ms=clock, options=TopicsConfig())
    topics.load()
    return offsets, topics


def abandon(store: MessageStore) -> None:
    """Let go of a store's files as a killed process does: nothing is finished, and nothing cleaned up."""
    files = log_of(store).files
    for file in (*files.files, *files._prepared):
        file.close()
    if store._index is not None:
        prepared = store._index._prepared
        for index_file in (*store._index.files, *((prepared,) if prepared is not None else ())):
            index_file.close()
    store._queues.close()
    store._checkpoint.close()
    store._lock.release()


def ends_of(block: bytes | bytearray) -> list[int]:
    """Return where each record of a block ends."""
    return [*record_starts(block, 0, len(block))[1:], len(block)]
