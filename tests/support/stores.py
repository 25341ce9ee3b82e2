"""Stores for tests: small files, a clock that moves on demand, directories as a crash leaves them."""

from __future__ import annotations

import os
import random
import shutil
import stat
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block, GetMessageResult, GetStatus, PutResult, TransferLimits
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.layout import tags_code
from reput_protocol.record.message import Message
from reput_protocol.record.message_id import Host, born_host_bytes
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import Record, decode_record
from reput_protocol.store.unit import is_address
from support.inside import queue_of

T0 = 1_700_000_000_000
BORN_HOST = born_host_bytes("10.0.0.1", 40_000)
PAGE_BYTES = 4096
PLENTY = TransferLimits(1 << 26, 1 << 20, 1 << 26, 1 << 20, 1 << 24)


@dataclass
class FakeClock:
    """Milliseconds that stand still."""

    now_ms: int = T0

    def __call__(self) -> int:
        return self.now_ms


def small_options(data_dir: Path, **changes: object) -> StoreOptions:
    """Options with files of a few records each."""
    options = StoreOptions(
        data_dir=data_dir,
        commit_log_file_size=4096,
        consume_queue_entries=10,
        index_slots=16,
        index_entries=40,
        host=Host("10.0.0.2", 10911),
        memory_bytes=1 << 30,
    )
    return replace(options, **changes)  # type: ignore[arg-type]


def opened(options: StoreOptions, clock: Callable[[], int] | None = None, **arguments: object) -> MessageStore:
    """An open store."""
    store = MessageStore(options, clock_ms=clock or FakeClock(), **arguments)  # type: ignore[arg-type]
    store.open()
    return store


def put(
    store: MessageStore,
    *bodies: bytes,
    topic: str = "T",
    queue_id: int = 0,
    tag: str | None = None,
    properties: dict[str, str] | None = None,
    keys: Sequence[str] = (),
) -> PutResult:
    """Put messages as one block, all with the same keys."""
    messages = [Message(topic, body, tag=tag, keys=keys, properties=properties) for body in bodies]
    block = bytearray(encode_put_block(messages, topic, queue_id, T0))
    return store.put_one(Block(block, topic, queue_id, len(bodies), BORN_HOST))


def dispatch_all(store: MessageStore) -> int:
    """Flush and dispatch until nothing is left to do; return how many records were dispatched."""
    store.flush_commit_log()
    count = 0
    while step := store.reput_step():
        count += step
    store.complete_index()
    return count


def read_queue(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[Record]:
    """Every message of a queue, checked against the place where it was found."""
    records: list[Record] = []
    offset = store.min_offset_in_queue(topic, queue_id)
    while True:
        result = store.get_message(topic, queue_id, offset, 1000, 1 << 24, limits=PLENTY)
        if result.status is not GetStatus.FOUND:
            return records
        data = store.read_extents(result.extents, cold=result.cold)
        position = 0
        while position < len(data):
            record = decode_record(data, position)
            (size,) = struct.unpack_from(">i", data, position)
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert record.queue_offset == offset
            records.append(record)
            position += size
            offset += 1
        assert offset == result.next_begin_offset


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """The bodies of a queue in order."""
    return [record.body for record in read_queue(store, topic, queue_id)]


def check_ext_entries(store: MessageStore) -> None:
    """Every unit that is an address leads to an extended entry that says of its message what the message says."""
    for topic, queue_id in store.queues():
        queue = queue_of(store, topic, queue_id)
        assert queue is not None
        for record in read_queue(store, topic, queue_id):
            unit = queue.get_unit(record.queue_offset)
            assert unit is not None
            assert is_address(unit.tags_code)
            entry = queue.get_ext_unit(record.queue_offset)
            assert entry is not None
            tag = record.property_map().get("TAGS")
            expected = (tags_code(tag) if tag else 0, record.store_timestamp_ms)
            assert (entry.tags_code, entry.store_timestamp_ms) == expected


def killed(store: MessageStore, image: Path) -> StoreOptions:
    """The directory as `kill -9` leaves it at this moment, copied; the store itself continues."""
    return replace(store.options, data_dir=copied_as_killed(store.options.data_dir, image))


def copied_as_killed(directory: Path, image: Path) -> Path:
    """Copy a directory whose threads go on: first the checkpoint, which must claim no more than other files have."""
    image.mkdir(parents=True)
    if (directory / "checkpoint").exists():
        shutil.copy2(directory / "checkpoint", image)
    shutil.copytree(directory, image, ignore=shutil.ignore_patterns("checkpoint"), dirs_exist_ok=True)
    return image


class SyncRecorder:
    """Remembers what each file held when it was last synced, until `stop`."""

    def __init__(self) -> None:
        self.durable: dict[int, bytes] = {}
        """Content by inode."""
        self._patches = pytest.MonkeyPatch()
        for name in ("fsync", "fdatasync"):
            self._patches.setattr(os, name, self._recording(getattr(os, name)))
        real_unlink = os.unlink

        def unlink(path: Path, **options: int) -> None:
            self.durable.pop(os.stat(path).st_ino, None) if os.path.exists(path) else None
            real_unlink(path, **options)

        self._patches.setattr(os, "unlink", unlink)

    def _recording(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                self.durable[status.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()
            real(fd)

        return sync

    def carry_over(self, source: Path, image: Path) -> None:
        """Take what is durable of a directory as durable of its copy, too: the machine continued."""
        for path in image.rglob("*"):
            original = source / path.relative_to(image)
            if path.is_file() and (inode := original.stat().st_ino) in self.durable:
                self.durable[path.stat().st_ino] = self.durable[inode]

    def take_all(self, image: Path) -> None:
        """Take all of a directory as durable: the machine was started again, it is what the disk holds."""
        for path in image.rglob("*"):
            if path.is_file():
                self.durable[path.stat().st_ino] = path.read_bytes()

    def stop(self) -> None:
        self._patches.undo()


def power_cut(store: MessageStore, image: Path, recorder: SyncRecorder, rng: random.Random) -> StoreOptions:
    """The directory as a power cut leaves it: what was synced, and of every later page its bytes or what was before.

    The store itself continues.
    """
    options = killed(store, image)
    for path in sorted(image.rglob("*")):
        if not path.is_file():
            continue
        inode = (store.options.data_dir / path.relative_to(image)).stat().st_ino
        synced = recorder.durable.get(inode)
        if synced is None and rng.random() < 0.5:
            path.unlink()
            continue
        content = bytearray(path.read_bytes())
        synced = (synced or b"").ljust(len(content), b"\0")
        for start in range(0, len(content), PAGE_BYTES):
            end = min(start + PAGE_BYTES, len(content))
            if rng.random() < 0.5:
                content[start:end] = synced[start:end]
        path.write_bytes(content)
    recorder.take_all(image)
    return options


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def make_sparse(path: Path) -> None:
    """Leave out every page of a file that holds nothing, as `cp --sparse=always` does; its time stays."""
    status = path.stat()
    data = path.read_bytes()
    with open(path, "r+b") as file:
        file.truncate(0)
        file.truncate(len(data))
        for start in range(0, len(data), PAGE_BYTES):
            page = data[start : start + PAGE_BYTES]
            if page.strip(b"\0"):
                file.seek(start)
                file.write(page)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def is_reserved(path: Path) -> bool:
    """Whether the disk has set all of a file aside."""
    status = path.stat()
    return status.st_blocks * 512 >= status.st_size


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a directory with its content, without the files that only say who has it open."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("abort", "lock")
    }


def store_of_25(directory: Path, *, numbered: bool = False) -> MessageStore:
    """Return a store whose queue 0 holds 25 messages tagged a and b by turns, in queue files of 10.

    With `numbered` the property `n` is the message's number.
    """
    store = opened(small_options(directory, commit_log_file_size=1 << 16))
    for number in range(25):
        properties = {"n": str(number)} if numbered else {}
        put(store, b"%02d" % number + bytes(98), tag="ab"[number % 2], properties=properties)
    dispatch_all(store)
    return store


def numbers(store: MessageStore, result: GetMessageResult) -> list[int]:
    """Return the numbers of the messages that a get has found."""
    data = store.read_extents(result.extents, cold=result.cold)
    found, position = [], 0
    while position < len(data):
        found.append(int(decode_record(data, position).body[:2]))
        position += int.from_bytes(data[position : position + 4], "big")
    assert (len(found), len(data)) == (result.count, result.size)
    return found


def outline(result: GetMessageResult) -> tuple[GetStatus, int, int, int]:
    """Return the status of a get, where the next one begins, and the bounds of the queue."""
    return result.status, result.next_begin_offset, result.min_offset, result.max_offset
