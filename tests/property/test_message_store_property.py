"""The store against lists: after any operations and any end it holds what it promised."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from reput_broker.store.base.results import Block, GetStatus, PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.kernel.records import record_starts
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.stores import (
    BORN_HOST,
    T0,
    FakeClock,
    SyncRecorder,
    bodies,
    check_ext_entries,
    dispatch_all,
    killed,
    power_cut,
    put,
    small_options,
)

QUEUES = st.tuples(st.sampled_from(["T", "U"]), st.integers(0, 1))
Queue = tuple[str, int]


class StoreMachine(RuleBasedStateMachine):
    """Puts, steps, flushes, deletions, orderly stops, kills and power cuts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="reput-store-"))
        self.recorder = SyncRecorder()
        self.clock = FakeClock()
        self.runs = 0
        self.number = 0
        self.log: list[tuple[Queue, bytes, int]] = []
        """Every message in log order: queue, body, log offset after it."""
        self.deleted_before: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
        self.recorder.stop()
        shutil.rmtree(self.root)

    @initialize(
        flush_sync=st.booleans(), page_sized=st.booleans(), ext=st.booleans(), buffers=st.sampled_from([0, 1, 3])
    )
    def begin(self, flush_sync: bool, page_sized: bool, ext: bool, buffers: int) -> None:
        size = 4096 if page_sized else 20_480
        self.options = small_options(
            self.root / "0",
            commit_log_file_size=size,
            consume_queue_entries=7,
            flush_sync=flush_sync,
            consume_queue_ext=ext,
            consume_queue_ext_file_size=130,
            transient_store_pool=buffers > 0,
            transient_store_pool_size=max(1, buffers),
        )
        self.start()

    def start(self) -> str:
        self.store = MessageStore(self.options, clock_ms=self.clock)
        return self.store.open().kind

    def next_image(self) -> Path:
        self.runs += 1
        return self.root / str(self.runs)

    @property
    def end(self) -> int:
        """Where the log ends, committed or not."""
        return self.store.committed_offset + self.store.commit_behind_bytes

    def of_queue(self, queue: Queue) -> list[bytes]:
        deleted_before = self.deleted_before.get(queue[0], 0)
        return [body for at, body, end in self.log if at == queue and end > deleted_before]

    # -- what is done ----------------------------------------------------------------------------------------

    @rule(queue=QUEUES, count=st.integers(1, 5), size=st.integers(0, 700), tag=st.sampled_from([None, "a"]))
    def put(self, queue: Queue, count: int, size: int, tag: str | None) -> None:
        block = [b"%d/%d:" % (self.number, index) + bytes(size) for index in range(count)]
        self.number += 1
        self.clock.now_ms += 1000
        result = put(self.store, *block, topic=queue[0], queue_id=queue[1], tag=tag)
        if result.status is PutStatus.MESSAGE_ILLEGAL:
            return  # larger than a file
        assert result.status is PutStatus.PUT_OK
        assert result.queue_offset == len(self.of_queue(queue))
        # All records of a block have the same size; after a power cut a block may end early.
        size = (result.end_offset - result.physical_offset) // count
        self.log += [(queue, body, result.physical_offset + size * index) for index, body in enumerate(block, start=1)]

    @rule(blocks=st.lists(st.tuples(QUEUES, st.integers(1, 30), st.integers(0, 60)), min_size=1, max_size=6))
    def put_blocks(self, blocks: list[tuple[Queue, int, int]]) -> None:
        put, messages = [], []
        for (topic, queue_id), count, size in blocks:
            bodies = [b"%d/%d:" % (self.number, index) + bytes(size) for index in range(count)]
            self.number += 1
            block = encode_put_block([Message(topic, body) for body in bodies], topic, queue_id, T0)
            put.append(Block(block, topic, queue_id, count, BORN_HOST))
            messages.append(((topic, queue_id), bodies, bytes(block)))
        self.clock.now_ms += 1000
        end = self.end
        for (queue, bodies, sent), result in zip(messages, self.store.put(put), strict=True):
            assert isinstance(result, PutResult)
            if result.status is PutStatus.MESSAGE_ILLEGAL:
                assert len(sent) + 8 > self.store.options.commit_log_file_size, "no file has room for it"
                continue
            assert result.status is PutStatus.PUT_OK
            assert result.end_offset == result.physical_offset + len(sent)
            assert result.queue_offset == len(self.of_queue(queue))
            ends = [*record_starts(sent, 0, len(sent))[1:], len(sent)]
            self.log += [(queue, body, result.physical_offset + end) for body, end in zip(bodies, ends, strict=True)]
            end = result.end_offset
        assert self.end == end

    @rule()
    def step(self) -> None:
        self.store.reput_step(2000)

    @rule()
    def commit(self) -> None:
        assert self.store.commit_buffers() == self.end

    @rule()
    def flush_log(self) -> None:
        assert self.store.flush_commit_log() == self.store.max_physical_offset == self.end

    @rule()
    def flush_queues(self) -> None:
        self.store.flush_consume_queues()

    @rule()
    def checkpoint(self) -> None:
        self.store.write_checkpoint()

    @rule()
    def prepare(self) -> None:
        if self.store.should_prepare_next_file():
            self.store.prepare_next_file()

    @rule(topic=st.sampled_from(["T", "U"]))
    def delete(self, topic: str) -> None:
        self.store.delete_topic(topic)
        self.deleted_before[topic] = self.end

    # -- how it ends -----------------------------------------------------------------------------------------

    @rule()
    def stop_in_order(self) -> None:
        assert self.store.close()
        assert self.start() != "abnormal"
        self.check_everything(len(self.log))

    @rule()
    def kill(self) -> None:
        image = self.next_image()
        options = killed(self.store, image)
        self.recorder.carry_over(self.options.data_dir, image)
        self.options = options
        committed = self.store.committed_offset
        self.abandon()
        self.start()
        # The content of pool buffers is gone. A file for which no buffer was free is written directly, and what is
        # in it stays, also where no commit has passed it yet.
        end = self.store.max_physical_offset
        assert end >= committed
        self.keep_before(end)
        self.check_everything(len([entry for entry in self.log if entry[2] <= committed]))

    def keep_before(self, end: int) -> None:
        """Messages behind this log offset are gone, and so is what was deleted there."""
        self.log = [entry for entry in self.log if entry[2] <= end]
        self.deleted_before = {topic: min(at, end) for topic, at in self.deleted_before.items()}

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        flushed = self.store.flushed_offset
        self.options = power_cut(self.store, self.next_image(), self.recorder, random.Random(seed))
        self.abandon()
        self.start()
        end = self.store.max_physical_offset
        assert end >= flushed
        self.keep_before(end)
        self.check_everything(len([entry for entry in self.log if entry[2] <= flushed]))

    def abandon(self) -> None:
        """Let the old process's store go without letting it finish anything."""
        self.store._release()

    # -- what must hold --------------------------------------------------------------------------------------

    def check_everything(self, at_least: int) -> None:
        """After a start every message is there, in order, and nothing waits to be dispatched."""
        assert self.store.dispatch_is_idle()
        assert len(self.log) >= at_least
        for topic in ("T", "U"):
            for queue_id in (0, 1):
                assert bodies(self.store, topic, queue_id) == self.of_queue((topic, queue_id))
        if self.options.consume_queue_ext:
            check_ext_entries(self.store)

    @invariant()
    def queues_are_prefixes(self) -> None:
        """While it runs a queue shows a beginning of what was put, and under SYNC_FLUSH only what is flushed."""
        if not hasattr(self, "store"):
            return
        for queue in (("T", 0), ("U", 1)):
            found = bodies(self.store, *queue)
            expected = self.of_queue(queue)
            assert found == expected[: len(found)]
            result = self.store.get_message(*queue, len(found), 1, 100)
            assert result.status in (
                GetStatus.NO_MATCHED_LOGIC_QUEUE,
                GetStatus.NO_MESSAGE_IN_QUEUE,
                GetStatus.OFFSET_OVERFLOW_ONE,
            )
            if self.options.flush_sync:
                deleted = self.deleted_before.get(queue[0], 0)
                durable = [end for at, _, end in self.log if at == queue and deleted < end <= self.store.flushed_offset]
                assert len(found) <= len(durable)

    @rule()
    def catch_up(self) -> None:
        dispatch_all(self.store)
        self.check_everything(len(self.log))


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
