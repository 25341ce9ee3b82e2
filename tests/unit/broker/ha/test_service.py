"""A master and its slaves, whatever they send: RocketMQ's frames, lies, silence."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from reput_broker.config.sections import HAConfig, StoreConfig
from reput_broker.ha.frames import HEADER, REPORT, Hello, encode_hello
from reput_broker.ha.service import Copies, HAService, OfferedLog, ReplicationProgress
from reput_broker.observe.counters import Counters
from reput_broker.put.progress import LogProgress
from reput_broker.store.message_store import MessageStore
from support.inside import log_of
from support.stores import opened, put, small_options

FILE = 8192
EPOCH = 7
Frame = tuple[int, bytes]


def master_store(root: Path) -> MessageStore:
    """A log that ends at 16806, in the third of its files of 8192 bytes."""
    store = opened(small_options(root, commit_log_file_size=FILE))
    for size in (*[1022] * 14, 330):
        put(store, bytes(size))
    assert store.max_physical_offset == 16806
    return store


class Bench:
    """A service over a store, connections to it within the test, and the reports that reached it."""

    def __init__(self, store: MessageStore, nursery: trio.Nursery, flush: str = "async", **options: Any) -> None:
        self.store = store
        self._nursery = nursery
        self.config = HAConfig(**options)
        config: Any = SimpleNamespace(store=StoreConfig(flush=flush), ha=self.config)  # type: ignore[arg-type]
        self.progress = LogProgress(store, config, Counters())
        self.service = HAService(OfferedLog(store, self.config, self.progress, EPOCH))
        self.copies = Copies(self.service, self.progress, config)
        self.progress.serve(self.copies)
        self.acks: list[tuple[str, int]] = []
        acknowledged = self.copies.acknowledged

        def noted(slave: Any) -> None:
            self.acks.append((slave.peer, slave.acked_offset))
            acknowledged(slave)

        self.copies.acknowledged = noted  # type: ignore[method-assign]

    @property
    def replicated(self) -> int:
        return self.progress.replicated.offset

    def connect(self, *, reads: bool = True, peer: str = "h:1") -> trio.abc.Stream:
        """A new slave; what it does not read is not buffered without end."""
        pair = trio.testing.memory_stream_pair() if reads else trio.testing.lockstep_stream_pair()
        self._nursery.start_soon(self.service.serve, pair[1], peer)
        return pair[0]

    async def slave(self, first: int, member: int | None = None, **how: Any) -> trio.abc.Stream:
        """A connected slave that has reported once."""
        stream = self.connect(**how)
        hello = b"" if member is None else encode_hello(Hello(member, EPOCH))
        await stream.send_all(hello + REPORT.pack(first))
        return stream


@asynccontextmanager
async def running(store: MessageStore, **options: Any) -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        yield Bench(store, nursery, **options)
        nursery.cancel_scope.cancel()
    store.close()


async def exactly(stream: trio.abc.Stream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        assert piece, "the connection was closed"
        data += bytes(piece)
    return data


async def frame(stream: trio.abc.Stream) -> Frame:
    offset, length = HEADER.unpack(await exactly(stream, HEADER.size))
    return offset, await exactly(stream, length)


def log_bytes(store: MessageStore, start: int, end: int) -> bytes:
    files = sorted(store.options.commit_log_dir.glob("0*"))
    return b"".join(path.read_bytes() for path in files)[start - store.min_physical_offset :][: end - start]


async def until_closed(stream: trio.abc.Stream) -> None:
    while await stream.receive_some(1 << 16):
        pass


@pytest.mark.trio
async def test_the_frames_of_rocketmq(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """As recorded from RocketMQ: master end 16806, files of 8192 bytes, frames of at most 3000."""
    async with running(master_store(tmp_path), transfer_batch_size=3000) as bench:
        empty = await bench.slave(0)
        assert await frame(empty) == (16384, log_bytes(bench.store, 16384, 16806))
        second = await bench.slave(8192)
        for offset, size in ((8192, 3000), (11192, 3000), (14192, 2192), (16384, 422)):
            assert await frame(second) == (offset, log_bytes(bench.store, offset, offset + size))
        for _ in range(2):
            before = trio.current_time()
            assert await frame(second) == (16806, b"")
            assert trio.current_time() - before == pytest.approx(5, abs=0.1)
            await second.send_all(REPORT.pack(16806))
        put(bench.store, b"more")
        assert await frame(second) == (16806, log_bytes(bench.store, 16806, bench.store.max_physical_offset))


@pytest.mark.trio
async def test_a_reput_slave_begins_exactly_where_it_says(tmp_path: Path) -> None:
    """Also at 0, where one of RocketMQ is sent the last file."""
    async with running(master_store(tmp_path)) as bench:
        stream = await bench.slave(0, member=2)
        assert await frame(stream) == (0, log_bytes(bench.store, 0, FILE))
        (slave,) = bench.service.slaves
        assert (slave.member, slave.acked_offset) == (2, 0)
        await frame(stream)
        await stream.send_all(REPORT.pack(FILE)[:5])
        await trio.testing.wait_all_tasks_blocked()
        assert slave.acked_offset == 0, "half a report"
        await stream.send_all(REPORT.pack(FILE)[5:] + REPORT.pack(FILE + 100))
        await trio.testing.wait_all_tasks_blocked()
        assert slave.acked_offset == FILE + 100


Lie = Callable[[trio.abc.Stream], Awaitable[None]]


def says(*parts: bytes) -> Lie:
    async def send(stream: trio.abc.Stream) -> None:
        await stream.send_all(parts[0])
        for part in parts[1:]:
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(part)

    return send


@pytest.mark.trio
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (says(encode_hello(Hello(1, EPOCH)) + REPORT.pack(-5)), "reports log offset -5, which is negative"),
        (says(REPORT.pack(8192), REPORT.pack(-1)), "which is negative"),
        (says(REPORT.pack(16807)), "ends at 16807, beyond the end of this one, 16806"),
        (says(REPORT.pack((1 << 63) - 1)), "beyond the end"),
        (says(encode_hello(Hello(1, EPOCH)) + REPORT.pack(8193)), "at 8193, where no record of this log starts"),
        (says(encode_hello(Hello(1, EPOCH - 1)) + REPORT.pack(0)), "with epoch 6, and this is epoch 7"),
        (says(REPORT.pack(8192), REPORT.pack(16807)), "reports log offset 16807 after 8192"),
        (says(REPORT.pack(8192), REPORT.pack(8000)), "reports log offset 8000 after 8192"),
        (says(REPORT.pack(8192)[:3]), r"has sent nothing for 20 s \(ha.housekeeping_interval\)"),
        (says(REPORT.pack(8192)), "has sent nothing for 20 s"),
    ],
)
async def test_a_slave_that_lies_or_falls_silent_is_dropped_alone(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, lie: Lie, reason: str
) -> None:
    async with running(master_store(tmp_path)) as bench:
        other = await bench.slave(16384, member=9)
        await frame(other)
        with structlog.testing.capture_logs() as logs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_alive, other)
                stream = bench.connect()
                await lie(stream)
                with trio.fail_after(60):
                    await until_closed(stream)
                nursery.cancel_scope.cancel()
        assert [slave.member for slave in bench.service.slaves] == [9]
    (entry,) = [entry for entry in logs if entry["event"] == "slave_gone"]
    assert re.search(reason, entry["detail"]), entry


async def keep_alive(stream: trio.abc.Stream) -> None:
    while True:
        await trio.sleep(5)
        await stream.send_all(REPORT.pack(16384))


@pytest.mark.trio
async def test_a_slave_behind_a_deleted_file_is_dropped(tmp_path: Path) -> None:
    store = master_store(tmp_path)
    assert log_of(store).files.delete_first()
    async with running(store) as bench:
        with structlog.testing.capture_logs() as logs:
            await until_closed(await bench.slave(4096))
            await trio.testing.wait_all_tasks_blocked()
        assert "this one begins at 8192: files that it needs have been deleted" in str(logs)


@pytest.mark.trio
async def test_a_slave_that_never_reads_delays_no_other(tmp_path: Path) -> None:
    """What waits for it is one buffer, however much is appended."""
    async with running(master_store(tmp_path)) as bench:
        await bench.slave(0, member=1, reads=False)
        other = await bench.slave(16384, member=2)
        await frame(other)
        for number in range(20):
            result = put(bench.store, bytes(500) + b"%d" % number)
            offset, data = await frame(other)
            assert offset + len(data) in (result.end_offset, result.physical_offset)
            while offset + len(data) < result.end_offset:
                offset, data = await frame(other)
        stuck, _ = bench.service.slaves
        assert stuck.next_offset == FILE, "no more was read from the log for it"


@pytest.mark.trio
async def test_a_slave_that_connects_twice_counts_once(tmp_path: Path) -> None:
    store = master_store(tmp_path)
    async with running(store, in_sync_replicas=3) as bench:
        copies = bench.copies
        first = await bench.slave(16806, member=1)
        second = await bench.slave(16806, member=1)
        with trio.fail_after(5):
            await until_closed(first)
        assert [slave.member for slave in bench.service.slaves] == [1]
        assert "slaves in sync: 1, needed: 2, connected: 1" in str(copies.refusal())
        await bench.slave(16384, member=2)
        await trio.testing.wait_all_tasks_blocked()
        assert copies.refusal() is None
        assert bench.replicated == 16384
        await second.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert "slaves in sync: 1, needed: 2, connected: 1" in str(copies.refusal())
        assert bench.replicated == 16384, "it was there"


@pytest.mark.trio
async def test_a_slave_of_rocketmq_that_connects_twice_is_one_copy(tmp_path: Path) -> None:
    """It does not say who it is, and its earlier connection may look alive for a while."""
    store = master_store(tmp_path)
    async with running(store, in_sync_replicas=3) as bench:
        copies = bench.copies
        progress = ReplicationProgress(lambda: store.max_physical_offset, lambda: bench.service.slaves, bench.config)
        await bench.slave(16806, peer="10.0.0.2:4001")
        await bench.slave(8192, peer="10.0.0.2:4002")
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.service.slaves) == 2
        assert "slaves in sync: 1, needed: 2, connected: 1" in str(copies.refusal())
        assert (bench.replicated, progress.copies_in_sync) == (0, 2)
        await bench.slave(16806, peer="10.0.0.3:4001")
        await trio.testing.wait_all_tasks_blocked()
        assert copies.refusal() is None
        assert (bench.replicated, progress.copies_in_sync) == (8192, 3), "what the last connection said"


@pytest.mark.trio
async def test_a_report_that_arrived_before_its_connection_was_ended_does_not_count(tmp_path: Path) -> None:
    async with running(master_store(tmp_path)) as bench:
        stream = await bench.slave(8192, member=1)
        await frame(stream)
        (connection,) = bench.service.slaves
        before = list(bench.acks)
        await stream.send_all(REPORT.pack(16384))
        connection.close("it has connected again")
        await trio.testing.wait_all_tasks_blocked()
        assert bench.acks == before
        assert connection.acked_offset == 8192


@pytest.mark.trio
async def test_a_slave_far_behind_is_not_in_sync(tmp_path: Path) -> None:
    store = master_store(tmp_path)
    async with running(store, flush="sync", max_gap_not_in_sync=4096) as bench:
        copies = bench.copies
        stream = await bench.slave(8192, member=1)
        await trio.testing.wait_all_tasks_blocked()
        assert "slaves in sync: 0, needed: 1, connected: 1" in str(copies.refusal())
        for _ in range(2):
            offset, data = await frame(stream)
        await stream.send_all(REPORT.pack(offset + len(data)))
        await trio.testing.wait_all_tasks_blocked()
        assert copies.refusal() is None
        assert bench.replicated == 0, "with flush = sync the master's own copy counts once it is synced"
        bench.progress.flushed.advance(store.flush_commit_log())
        assert bench.replicated == 16806


@pytest.mark.trio
async def test_connections_beyond_the_limit_are_closed_and_those_without_a_word_first(tmp_path: Path) -> None:
    async with running(master_store(tmp_path)) as bench:
        first = await bench.slave(16384)
        assert (await frame(first))[0] == 16384
        silent = [bench.connect() for _ in range(63)]
        await trio.testing.wait_all_tasks_blocked()
        slave = await bench.slave(16384)
        with trio.fail_after(5):
            assert (await frame(slave))[0] == 16384
        for stream in silent:  # one of them is closed
            with suppress(trio.BrokenResourceError):
                await stream.send_all(REPORT.pack(16384))
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.service.slaves) == 64
        with trio.fail_after(5):
            await until_closed(bench.connect())
        assert len(bench.service.slaves) == 64


@pytest.mark.trio
async def test_what_is_appended_is_sent_when_it_is_offered(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A master that syncs each put offers it when the sync begins; a heartbeat brings what no sync has followed."""
    store = master_store(tmp_path)
    async with running(store, flush="sync", send_heartbeat_interval="10s") as bench:
        slave = await bench.slave(16806)
        await trio.sleep(1)
        put(store, b"one")
        put(store, b"two")
        await trio.sleep(1)
        assert bench.service.slaves[0].next_offset == 16806
        bench.progress.offer()
        await trio.sleep(1)
        frame = bytes(await slave.receive_some())
        assert HEADER.unpack_from(frame) == (16806, store.max_physical_offset - 16806), "both in one frame"
        put(store, b"three")
        await trio.sleep(11)
        assert bench.service.slaves[0].next_offset == store.max_physical_offset
