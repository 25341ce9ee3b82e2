"""One staging on disk: the blocks that one attempt of a task has sent, in `staging/ID.stage`.

```text
8s   magic "ReputST1"      u32  size of the JSON      JSON: who staged it      u32  crc of all above
...  staged blocks (reput_protocol/commands/stage.py)
8s   magic "ReputEND"      q  bytes of blocks   q  messages   I  checksum   I  crc of the trailer above
```

The trailer is written and the file synced when the sender has sent everything. A kill leaves a file
without a trailer: its complete blocks are kept, as the sender may continue. Methods of a file block, and
each file has one user at a time.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from reput_broker.store.base.errors import FlushFailed, StoreDamaged
from reput_broker.store.base.file_io import make_directories, sync_data, sync_directory, write_all
from reput_protocol.buffers import Buffer
from reput_protocol.commands.stage import HEAD_BYTES_MAX, StagedBlock, add_to_checksum, staged_head
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.records import crc32

SUFFIX: Final = ".stage"
_MAGIC: Final = b"ReputST1"
_END_MAGIC: Final = b"ReputEND"
_SIZE: Final = struct.Struct(">8sI")
_CRC: Final = struct.Struct(">I")
_END: Final = struct.Struct(">8sqqI")
_END_BYTES: Final = _END.size + _CRC.size
RUN_BYTES: Final = 4 << 20
"""How much of a staging is read at a time."""
AHEAD_BYTES: Final = 8 << 20
"""How much of a staging may be unsynced: less means many syncs, more a longer wait at its end."""


class StagingKey(NamedTuple):
    """The attempt that a staging belongs to."""

    query_id: str
    batch_id: int
    partition_id: int
    staging_id: str


class PlacedBlock(NamedTuple):
    """A block of a staging and its place in the file."""

    topic: str
    queue_id: int
    messages: int
    crc: int
    position: int
    size: int


class StagingFile:
    """The file of one staging. Holds no descriptor between two calls."""

    def __init__(self, path: Path, key: StagingKey, born_host: bytes, data_start: int) -> None:
        self.path = path
        self.key = key
        self.born_host = born_host
        self.data_start = data_start
        self.size = 0
        """Bytes of complete blocks."""
        self.messages = 0
        self.checksum = 0
        self.ended = False
        self.may_be_sealed = True
        """Whether a record may hold a checksum over itself; False only if this process has received all of them."""
        self.queues: set[tuple[str, int]] = set()
        """Topics and queues of the blocks that this process has received."""
        self.new_topics: set[str] | None = None
        """Their topics that did not exist yet; None: an earlier process has received some."""
        self.unsynced = 0
        """Bytes appended since the last sync began."""
        self._syncing = threading.Lock()
        self._sync_failure: FlushFailed | None = None
        self.last_used = 0.0
        """When its query was last active, on the table's clock."""

    @staticmethod
    def name_of(key: StagingKey) -> str:
        """Return the name of a staging's file."""
        return f"{key.staging_id}{SUFFIX}"

    @classmethod
    def create(cls, directory: Path, key: StagingKey, born_host: bytes) -> StagingFile:
        """Make the file.

        Raises:
            OSError: it cannot be made, or exists.
        """
        facts = {**key._asdict(), "born_host": born_host.hex()}
        text = json.dumps(facts).encode()
        head = _SIZE.pack(_MAGIC, len(text)) + text
        head += _CRC.pack(crc32(head))
        path = directory / cls.name_of(key)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, head, 0, path)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)
        made = cls(path, key, born_host, len(head))
        made.may_be_sealed = False
        made.new_topics = set()
        return made

    @classmethod
    def load(cls, path: Path, *, truncate: bool = True) -> StagingFile | None:
        """Read a file; None if its head is incomplete, as a kill may leave it.

        With `truncate` an incomplete last block is truncated.

        Raises:
            OSError: it cannot be read or truncated.
        """
        with path.open("rb") as file:
            front = file.read(_SIZE.size)
            if len(front) < _SIZE.size:
                return None
            magic, size = _SIZE.unpack(front)
            if magic != _MAGIC or size > path.stat().st_size:
                return None
            text = file.read(size)
            seal = file.read(_CRC.size)
            if len(seal) < _CRC.size or _CRC.unpack(seal)[0] != crc32(front + text):
                return None
            facts: dict[str, Any] = json.loads(text)
            born_host = bytes.fromhex(facts.pop("born_host"))
            found = cls(path, StagingKey(**facts), born_host, _SIZE.size + size + _CRC.size)
        found._read_end()
        if truncate and not found.ended:
            os.truncate(path, found.data_start + found.size)
        return found

    def _read_end(self) -> None:
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if end >= self.data_start + _END_BYTES:
                file.seek(end - _END_BYTES)
                trailer = file.read(_END_BYTES)
                magic, size, messages, checksum = _END.unpack_from(trailer)
                whole = magic == _END_MAGIC and _CRC.unpack_from(trailer, _END.size)[0] == crc32(trailer[: _END.size])
                if whole and self.data_start + size + _END_BYTES == end:
                    self.size, self.messages, self.checksum, self.ended = size, messages, checksum, True
                    return
        for block, head in self._heads(end):
            self.size = block.position + block.size - self.data_start
            self.messages += block.messages
            self.checksum = crc32(head, self.checksum)

    def append(self, data: Buffer, blocks: list[StagedBlock], *, sealed: bool = True) -> None:
        """Add complete blocks, which then survive a killed process.

        Args:
            data: the bytes to add.
            blocks: those of `data`.
            sealed: whether a record of them may hold a checksum over itself.

        Raises:
            OSError: nothing was added.
        """
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_all(fd, data, self.data_start + self.size, self.path)
        finally:
            os.close(fd)
        self.size += len(data)
        self.unsynced += len(data)
        self.may_be_sealed |= sealed
        for block in blocks:
            self.messages += block.messages
            self.checksum = add_to_checksum(self.checksum, data, block)
            self.queues.add((block.topic, block.queue_id))

    def sync_ahead(self) -> None:
        """Sync what there is, so that less is left for `end`, which also reports a failure. A
        failure is final."""
        with self._syncing:
            try:
                fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # dropped meanwhile
                return
            self.unsynced = 0
            try:
                sync_data(fd)
            except OSError as error:  # the system reports it only once
                self._sync_failure = FlushFailed(self.path, error)
            finally:
                os.close(fd)

    def end(self) -> None:
        """Write the trailer and sync the file and its name.

        Raises:
            OSError, FlushFailed: it may not be durable.
        """
        trailer = _END.pack(_END_MAGIC, self.size, self.messages, self.checksum)
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            at = self.data_start + self.size
            write_all(fd, trailer + _CRC.pack(crc32(trailer)), at, self.path)
            os.ftruncate(fd, at + _END_BYTES)
            with self._syncing:
                if self._sync_failure is not None:
                    raise self._sync_failure
                os.fsync(fd)
        finally:
            os.close(fd)
        sync_directory(self.path.parent)
        self.ended = True

    def remove(self) -> None:
        """Delete the file if it exists."""
        self.path.unlink(missing_ok=True)

    def _heads(self, end: int) -> Iterator[tuple[PlacedBlock, bytes]]:
        """Yield the complete blocks before `end` with their heads."""
        position = self.data_start
        with self.path.open("rb") as file:
            while position < end:
                file.seek(position)
                data = file.read(min(HEAD_BYTES_MAX, end - position))
                try:
                    found = staged_head(data, 0)
                except RecordMalformed:
                    return
                if found is None or position + found.end > end:
                    return
                place = position + found.start
                yield (
                    PlacedBlock(found.topic, found.queue_id, found.messages, found.crc, place, found.size),
                    data[: found.start],
                )
                position += found.end

    def raw(self, start: int, size: int) -> bytes:
        """Return bytes of the staged blocks, heads included, from `start` on; fewer than `size` at the end.

        Raises:
            OSError: they cannot be read.
        """
        with self.path.open("rb") as file:
            file.seek(self.data_start + start)
            return file.read(min(size, self.size - start))

    def blocks(self) -> list[PlacedBlock]:
        """Return all blocks with their places, without their contents.

        Raises:
            StoreDamaged: they do not match the trailer.
        """
        found: list[PlacedBlock] = []
        checksum = 0
        end = self.data_start
        for block, head in self._heads(self.data_start + self.size):
            found.append(block)
            checksum = crc32(head, checksum)
            end = block.position + block.size
        if end != self.data_start + self.size or checksum != self.checksum:
            raise self._damaged(end, "the heads of its blocks are not those that were written")
        return found

    def read(self, block: PlacedBlock) -> bytes:
        """Return the records of a block.

        Raises:
            StoreDamaged: they have changed.
        """
        with self.path.open("rb") as file:
            file.seek(block.position)
            data = file.read(block.size)
        if len(data) != block.size or crc32(data) != block.crc:
            raise self._damaged(block.position, "the checksum of a block is wrong")
        return data

    def read_run(self, run: Sequence[PlacedBlock], buffer: bytearray) -> list[memoryview]:
        """Return the records of consecutive blocks; in `buffer` if that is large enough.

        Raises:
            StoreDamaged: they have changed.
        """
        start, end = run[0].position, run[-1].position + run[-1].size
        view = memoryview(buffer if end - start <= len(buffer) else bytearray(end - start))[: end - start]
        filled = 0
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            while filled < len(view) and (taken := file.readinto(view[filled:])):
                filled += taken
        found = []
        for block in run:
            at = block.position - start
            data = view[at : at + block.size]
            if at + block.size > filled or crc32(data) != block.crc:
                raise self._damaged(block.position, "the checksum of a block is wrong")
            found.append(data)
        return found

    def _damaged(self, position: int, reason: str) -> StoreDamaged:
        return StoreDamaged(self.path, position, reason, "the batch cannot be published from it; check the disk")

    def verify(self) -> list[PlacedBlock]:
        """Read everything and return all blocks.

        Raises:
            StoreDamaged: something has changed.
        """
        found = self.blocks()
        buffer = bytearray(RUN_BYTES)
        for run in runs_of(found):
            self.read_run(run, buffer)
        return found


def runs_of(blocks: Sequence[PlacedBlock]) -> Iterator[list[PlacedBlock]]:
    """Yield blocks of one staging in runs of at most `RUN_BYTES`, or a single block, to be read
    together."""
    run: list[PlacedBlock] = []
    for block in blocks:
        if run and block.position + block.size - run[0].position > RUN_BYTES:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


class SyncAhead:
    """Syncs growing stagings in the background, one at a time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._due: list[StagingFile] = []
        self._wanted = trio.Event()

    def grown(self, file: StagingFile) -> None:
        """Record that something was added to a staging."""
        if file.unsynced >= AHEAD_BYTES and file not in self._due:
            self._due.append(file)
            self._wanted.set()

    async def run(self) -> None:
        """Sync stagings until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._due:
                await trio.to_thread.run_sync(self._due[0].sync_ahead)
                del self._due[0]


STAGING_ID: Final = re.compile(r"[0-9A-Za-z_-]{8,64}")
"""A valid id of a staging, which becomes a file name."""


class StagingTable:
    """All stagings: the directory `staging/` and its files. Belongs to the event loop; methods that access files say
    that they block.

    Args:
        directory: `staging/` below the store's root; made when first needed.
        clock_s: monotonic seconds.
    """

    def __init__(self, directory: Path, clock_s: Callable[[], float]) -> None:
        self.directory = directory
        self._clock_s = clock_s
        self._files: dict[str, StagingFile] = {}
        self.bytes = 0
        """Bytes of all staged blocks."""

    def __len__(self) -> int:
        return len(self._files)

    def load(self, now_s: float, decided: Collection[str] = ()) -> None:
        """Read the stagings of an earlier run; they count as used now. Blocks.

        Incomplete files are deleted or truncated. A staging in `decided`, by its id, was complete
        once: its file is left as it is, so that it can be repaired.

        Raises:
            OSError: it cannot be read.
        """
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            is_decided = path.stem in decided
            file = StagingFile.load(path, truncate=not is_decided)
            if file is None or file.key.staging_id != path.stem:
                if not is_decided:
                    path.unlink()
                continue
            file.last_used = now_s
            self._files[file.key.staging_id] = file
            self.bytes += file.size

    def get(self, staging_id: str) -> StagingFile | None:
        """Return a staging by its id, or None."""
        return self._files.get(staging_id)

    def all(self) -> list[StagingFile]:
        """Return every staging."""
        return list(self._files.values())

    def of(self, query_id: str) -> list[StagingFile]:
        """Return the stagings of a query."""
        return [file for file in self._files.values() if file.key.query_id == query_id]

    def create(self, key: StagingKey, born_host: bytes) -> StagingFile:
        """Make the file of a staging; `add` follows. Blocks. Raises OSError, DiskFull."""
        make_directories(self.directory)
        return StagingFile.create(self.directory, key, born_host)

    def add(self, file: StagingFile) -> None:
        """Add a staging."""
        self._files[file.key.staging_id] = file
        self.bytes += file.size
        self.touch(file.key.query_id)

    def grown(self, file: StagingFile, size: int) -> None:
        """Record that `size` bytes were added to a staging."""
        if file.key.staging_id in self._files:
            self.bytes += size
        self.touch(file.key.query_id)

    def touch(self, query_id: str) -> None:
        """Record activity of a query, which restarts the timeout of its stagings."""
        now = self._clock_s()
        for file in self._files.values():
            if file.key.query_id == query_id:
                file.last_used = now

    def forget(self, files: Iterable[StagingFile]) -> list[StagingFile]:
        """Remove stagings from the table; return those that were in it, whose files `remove` then
        deletes."""
        forgotten = []
        for file in files:
            if self._files.pop(file.key.staging_id, None) is not None:
                self.bytes -= file.size
                forgotten.append(file)
        return forgotten

    def idle(self, timeout_s: float) -> list[StagingFile]:
        """Return the stagings whose query has been idle for `timeout_s`."""
        since = self._clock_s() - timeout_s
        return [file for file in self._files.values() if file.last_used < since]


def remove(files: Iterable[StagingFile]) -> None:
    """Delete the files of forgotten stagings. Blocks. The next start finds leftovers, and they time out.

    Raises:
        OSError: one cannot be deleted.
    """
    for file in files:
        file.remove()
