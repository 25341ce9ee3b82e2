"""A store that puts, expires, is stopped, killed and opened, in any order: it holds all of the end of what was put.

The model knows every message and its position. Only messages in deleted files may be missing;
what may never happen is that a queue offset goes back, or means another message.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reput_broker.store.base.results import Extent, GetStatus, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import decode_record
from support.retention import RESERVED_MS, Cleaning, FakeMachine
from support.stores import PLENTY, bodies, dispatch_all, killed, put, small_options

SIZE = 4096
QUEUES = [("T", 0), ("T", 1), ("U", 0)]
Queue = tuple[str, int]


class RetentionMachine(RuleBasedStateMachine):
    """Files are young until `grow_old`; a reader may hold the oldest one."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="reput-retention-"))
        self.machine = FakeMachine(hour=4)
        self.runs = 0
        self.number = 0
        self.put_into: dict[Queue, list[tuple[bytes, int]]] = {queue: [] for queue in QUEUES}
        """Of each queue every message with its log offset."""
        self.low = dict.fromkeys(QUEUES, 0)
        self.start_offset = 0
        self.held: tuple[object, bytes] | None = None
        self.was_full = False
        """Whether the disk was once so full that a file that was held then is deleted for it."""

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.let_go()
            self.store.close()
        shutil.rmtree(self.root)

    @initialize(flush_sync=st.booleans(), entries=st.sampled_from([3, 7, 1000]))
    def begin(self, flush_sync: bool, entries: int) -> None:
        self.options = small_options(
            self.root / "0", flush_sync=flush_sync, consume_queue_entries=entries, commit_log_file_size=SIZE
        )
        self.start()

    def start(self) -> None:
        self.store = MessageStore(self.options, clock_ms=lambda: self.machine.now_ms)
        self.store.open()
        self.cleaning = Cleaning(self.store, self.machine, redelete_hanged_ms=0)
        self.machine.used = 0.5
        assert self.store.min_physical_offset >= self.start_offset - SIZE, "at most a file that was held comes back"
        self.start_offset = self.store.min_physical_offset
        assert self.store.dispatch_is_idle()
        for queue, messages in self.put_into.items():
            assert self.store.max_offset_in_queue(*queue) == len(messages), "no offset is given twice"
            # A file that was held while its queue was cleaned is back, with or without its messages.
            low = self.store.min_offset_in_queue(*queue)
            gone = sum(at < self.store.min_physical_offset for _, at in messages)
            assert gone <= low <= max(gone, self.low[queue])
            self.low[queue] = low
            assert bodies(self.store, *queue) == [body for body, _ in messages[low:]]

    # -- what is done ----------------------------------------------------------------------------------------

    @rule(queue=st.sampled_from(QUEUES), count=st.integers(1, 4), size=st.integers(0, 900))
    def put(self, queue: Queue, count: int, size: int) -> None:
        block = [b"%d/%d:" % (self.number, index) + bytes(size) for index in range(count)]
        self.number += 1
        result = put(self.store, *block, topic=queue[0], queue_id=queue[1])
        if result.status is not PutStatus.PUT_OK:
            refused = PutStatus.DISK_FULL if self.store.disk_full_reason else PutStatus.MESSAGE_ILLEGAL
            assert result.status is refused
            return
        assert result.queue_offset == len(self.put_into[queue])
        each = (result.end_offset - result.physical_offset) // count
        self.put_into[queue] += [(body, result.physical_offset + index * each) for index, body in enumerate(block)]

    @rule(queue=st.sampled_from(QUEUES), size=st.integers(1500, 3500), settled=st.booleans(), old=st.booleans())
    def fill(self, queue: Queue, size: int, settled: bool, old: bool) -> None:
        """Some files at once."""
        for _ in range(4):
            self.put(queue, 1, size)
        if settled:
            self.settle()
        if old:
            self.grow_old()

    @rule()
    def step(self) -> None:
        self.store.flush_commit_log()
        self.store.reput_step(2000)

    @rule()
    def settle(self) -> None:
        dispatch_all(self.store)
        self.store.flush_consume_queues()

    @rule()
    def checkpoint(self) -> None:
        self.store.write_checkpoint()

    @rule()
    def grow_old(self) -> None:
        """Everything on the disk so far is past its time."""
        self.machine.age(self.options.data_dir)
        self.machine.now_ms += RESERVED_MS

    @rule(used=st.sampled_from([0.5, 0.8, 0.88, 0.95]))
    def disk(self, used: float) -> None:
        self.machine.used = used
        self.was_full |= used > 0.85

    @rule(batch=st.sampled_from([1, 2, 10]))
    def delete_log_files(self, batch: int) -> None:
        self.cleaning.rules = self.cleaning.rules.__class__(delete_files_batch=batch, redelete_hanged_ms=0)
        dispatched_end = self.store.max_physical_offset - self.store.dispatch_behind_bytes
        for file in self.cleaning.clean_log():
            assert file.base_offset + SIZE <= dispatched_end
            assert file.reason == "time" or self.was_full
        self.start_offset = self.store.min_physical_offset

    @rule(queue=st.sampled_from(QUEUES), batch=st.integers(1, 3), steps=st.sampled_from([0, 1, 100]))
    def expire(self, queue: Queue, batch: int, steps: int) -> None:
        """A whole life: put, delivered, grown old, deleted, and as much cleaned after it as there was time for."""
        self.fill(queue, 2500, settled=True, old=True)
        self.delete_log_files(batch)
        self.clean_queues(steps)

    @rule(steps=st.integers(1, 10))
    def clean_queues(self, steps: int) -> None:
        if self.cleaning.queues.look():
            for _ in range(steps):
                if self.cleaning.queues.step() is None:
                    break

    @precondition(lambda self: self.held is None and self.store.flushed_offset > self.store.min_physical_offset)
    @rule()
    def hold(self) -> None:
        extents = [Extent(self.store.min_physical_offset, 60)]
        self.held = self.store.hold_extents(extents), self.store.read_extents(extents)

    @precondition(lambda self: self.held is not None)
    @rule()
    def let_go(self) -> None:
        if self.held is not None:
            held, expected = self.held
            assert held.read() == expected  # type: ignore[attr-defined]
            held.release()  # type: ignore[attr-defined]
            self.held = None

    # -- how it ends -----------------------------------------------------------------------------------------

    @rule()
    def stop_in_order(self) -> None:
        self.let_go()
        assert self.store.close()
        self.start()

    @rule()
    def kill(self) -> None:
        self.runs += 1
        options = killed(self.store, self.root / str(self.runs))
        self.let_go()
        self.store._release()
        self.options = options
        self.start()

    # -- what must hold --------------------------------------------------------------------------------------

    @invariant()
    def readers_see_the_end_of_what_was_put(self) -> None:
        if not hasattr(self, "store"):
            return
        store = self.store
        for queue, messages in self.put_into.items():
            low, high = store.min_offset_in_queue(*queue), store.max_offset_in_queue(*queue)
            assert low <= high <= len(messages)
            assert low >= self.low[queue]
            self.low[queue] = low
            offset = 0
            while offset < high:
                result = store.get_message(*queue, offset, 1000, 1 << 24, limits=PLENTY)
                if offset < low:
                    assert (result.status, result.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
                elif result.status is GetStatus.FOUND:
                    data = store.read_extents(result.extents, cold=bool(offset % 2))
                    found = decode_record(data)
                    assert found.body == messages[found.queue_offset][0]
                    assert all(at < store.min_physical_offset for _, at in messages[offset : found.queue_offset])
                else:
                    assert result.status is GetStatus.MESSAGE_WAS_REMOVING
                    assert all(at < store.min_physical_offset for _, at in messages[offset : result.next_begin_offset])
                assert result.next_begin_offset > offset
                offset = result.next_begin_offset


TestRetention = RetentionMachine.TestCase
TestRetention.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
