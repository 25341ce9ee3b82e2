"""How far log, queues and index are on disk (RocketMQ: StoreCheckpoint). docs/formats.md has the layout of the file.

A value that is too low is safe: recovery starts further back. The fields are in one disk sector, so that an update is
written completely or not at all.

The mark after RocketMQ's five fields is Reput's own; RocketMQ preserves it and never reads it. Its index offset and
both digests are valid only after an orderly stop; before one the queues digest is the sum of the queues' maximum queue
offsets at the queues offset. The CRC also covers the five fields: RocketMQ changes them when it works in the directory,
which makes the mark void.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.errors import FlushFailed, ForeignFile
from reput_broker.store.base.file_io import is_out_of_descriptors, sync_directory, write_all
from reput_protocol.kernel.records import crc32

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")
_MARK = struct.Struct(">8sqqIqI")
_CRC = struct.Struct(">I")
MARK_MAGIC = b"RPUTMARK"
_CRC_AT = _FIELDS.size + _MARK.size
_MARGIN_MS = 3000


class FlushMark(NamedTuple):
    """What Reput records beyond RocketMQ's fields; all of it is on disk when it is written."""

    flushed_offset: int
    queues_offset: int
    """Every record before this log offset has its queue entry on disk."""
    queues_digest: int = 0
    """After an orderly stop: checksum of the queues' bounds. Else: number of their entries, modulo 2^32."""
    index_offset: int = 0
    """After an orderly stop: every record before this log offset is in the index."""
    index_digest: int = 0
    """After an orderly stop: checksum of names and headers of all index files."""


class StoreCheckpoint:
    """The checkpoint, in memory and in the file `checkpoint`. A missing file means all zero.

    The owner sets the attributes, and the flush threads move `mark`; `write` and `flush` may run in workers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.physic_msg_timestamp_ms = 0
        self.logics_msg_timestamp_ms = 0
        self.index_msg_timestamp_ms = 0
        self.master_flushed_offset = 0
        self.confirm_physical_offset = 0
        self.mark: FlushMark | None = None
        """None until it is set, or if the mark in the file is missing or void."""
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._mark_lock = threading.Lock()
        self._fd: int | None = None
        self._written = b""
        self._flushed = b""
        self._flush_error: FlushFailed | None = None

    def move_mark(self, *, flushed_offset: int = 0, queues_offset: int = 0, entries: int = 0) -> None:
        """Advance the mark; neither offset ever decreases. Called by both flush threads."""
        with self._mark_lock:
            known = self.mark or FlushMark(0, 0)
            flushed = max(known.flushed_offset, flushed_offset)
            if queues_offset and queues_offset >= known.queues_offset:
                self.mark = FlushMark(flushed, queues_offset, entries & 0xFFFF_FFFF)
            else:
                self.mark = known._replace(flushed_offset=flushed)

    @property
    def min_timestamp_ms(self) -> int:
        """Store time up to which log and queues are on disk, less a margin of three seconds."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - _MARGIN_MS)

    def load(self) -> bool:
        """Read the file. Return False, with all values zero, if it is missing or empty (a start was killed).

        Raises:
            ForeignFile: it does not have the length of a checkpoint.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = b""
        if data and len(data) != CHECKPOINT_BYTES:
            raise ForeignFile(
                self.path,
                f"it has {len(data)} bytes and a checkpoint has {CHECKPOINT_BYTES}; move it away to start from the log",
            )
        values = _FIELDS.unpack_from(data) if data else (0, 0, 0, 0, 0)
        (
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        ) = values
        self.mark = _decode_mark(data) if data else None
        self._written = self._flushed = self._encode() if data else b""
        return bool(data)

    def _encode(self) -> bytes:
        fields = _FIELDS.pack(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        if self.mark is None:  # zeros void the mark that the file may have, even if no field changes
            return fields.ljust(MARK_END, b"\0")
        covered = fields + _MARK.pack(MARK_MAGIC, *self.mark)
        return covered + _CRC.pack(crc32(covered))

    def write(self) -> None:
        """Write the current values to the file without a sync: they survive the process.

        Raises:
            DiskFull: the file could not be created or written.
            OSError: it could not be opened, for example for lack of descriptors; nothing has changed.
        """
        with self._lock:
            self._write()

    def _write(self) -> None:
        data = self._encode()
        if data == self._written:
            return
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A new file gets all its bytes in one write, so that a kill leaves it empty or complete.
        is_new = not self._written
        write_all(self._fd, data.ljust(CHECKPOINT_BYTES, b"\0") if is_new else data, 0, self.path)
        self._written = data

    def flush(self) -> None:
        """Write the current values and sync them, unless they are already on disk. Blocks.

        A second call waits for the first, because the system reports a failed sync only once: of two concurrent calls
        one would take lost data for written.

        Raises:
            DiskFull: the file could not be created or written.
            FlushFailed: the sync failed, now or earlier; final.
            OSError: it could not be opened, for example for lack of descriptors; the call may be repeated.
        """
        with self._flush_lock:
            if self._flush_error is not None:
                raise self._flush_error
            with self._lock:
                is_new = not self._flushed
                self._write()
                data, fd = self._written, self._fd
                if data == self._flushed or fd is None:
                    return
                fd = os.dup(fd)
            try:
                os.fsync(fd)
                if is_new:
                    sync_directory(self.path.parent)
            except FlushFailed as error:
                self._flush_error = error
                raise
            except OSError as error:
                if is_out_of_descriptors(error):
                    raise  # the directory could not be opened
                self._flush_error = FlushFailed(self.path, error)
                raise self._flush_error from error
            finally:
                os.close(fd)
            self._flushed = data

    def close(self) -> None:
        """Close the file. Flushes nothing."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)


def _decode_mark(data: bytes) -> FlushMark | None:
    magic, *values = _MARK.unpack_from(data, _FIELDS.size)
    (crc,) = _CRC.unpack_from(data, _CRC_AT)
    if magic != MARK_MAGIC or crc != crc32(data[:_CRC_AT]):
        return None
    return FlushMark(*values)


MARK_AT = _FIELDS.size
MARK_CRC_AT = _CRC_AT
MARK_END = _CRC_AT + _CRC.size
