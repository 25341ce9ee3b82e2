"""How far log, queues and index are known to be on the disk (RocketMQ: StoreCheckpoint).

    position  0         8         16        24        32        40       72       4096
              +---------+---------+---------+---------+---------+--------+-- ... --+
              | i64     | i64     | i64     | i64     | i64     | mark   |  zero   |   big-endian
              +---------+---------+---------+---------+---------+--------+---------+
              physic    logics    index     master    confirm
              msg time  msg time  msg time  flushed   physical
                                            offset    offset

Times are store times in milliseconds. Values that lie too low are safe: recovery then starts further back. The
fields lie in one disk sector, so that an update is either there or not.

The mark is ours. RocketMQ keeps the bytes after the five fields as they are, and never looks at them:

    position  40            48       56       64       68       76       80       84
              +-------------+--------+--------+--------+--------+--------+--------+
              | "RPUTMARK"  | i64    | i64    | u32    | i64    | u32    | u32    |
              +-------------+--------+--------+--------+--------+--------+--------+
                            flushed  queues   queues   index    index    CRC-32 of
                            offset   offset   digest   offset   digest   bytes [0, 80)

The log is on the disk up to the flushed offset, and so are the queue units of all records before the queues offset.
The first digest is over the ends of all queues after an orderly stop; before it, it is the sum of their maximum queue
offsets at the queues offset. The second is over the headers of all index files and counts only after an orderly stop,
as does the index offset, before which every record has its keys in the index. The CRC covers the five fields too: once
RocketMQ has worked in the directory it has changed them, and a mark that knows nothing of its work is void.
"""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.errors import FlushFailed, ForeignFile
from reput_broker.store.file_io import is_out_of_descriptors, sync_directory, write_all
from reput_protocol.kernel.records import crc32

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")
_MARK = struct.Struct(">8sqqIqI")
_CRC = struct.Struct(">I")
_MARK_MAGIC = b"RPUTMARK"
_CRC_AT = _FIELDS.size + _MARK.size
_MARGIN_MS = 3000


class FlushMark(NamedTuple):
    """What this broker knows beyond RocketMQ's fields, all of it on the disk when the mark is written."""

    flushed_offset: int
    """The log is durable up to here."""
    queues_offset: int
    """Every record before this log offset has its queue unit on the disk."""
    queues_digest: int = 0
    """After an orderly stop a checksum of where all queues begin and end; before it, how many entries the queues had
    in all at the queues offset (modulo 2^32)."""
    index_offset: int = 0
    """Every record before this log offset is in the index, as of an orderly stop."""
    index_digest: int = 0
    """Checksum of what the index files hold, made by an orderly stop."""


class StoreCheckpoint:
    """The marks, in memory and in the file `checkpoint`.

    The owner, and for `mark` whoever flushes, sets the attributes; `write` and `flush` may run in worker threads.
    Absent means all zero.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.physic_msg_timestamp_ms = 0
        self.logics_msg_timestamp_ms = 0
        self.index_msg_timestamp_ms = 0
        self.master_flushed_offset = 0
        self.confirm_physical_offset = 0
        self.mark: FlushMark | None = None
        """None until it is set, or if the file's mark is missing or void."""
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._mark_lock = threading.Lock()
        self._fd: int | None = None
        self._written = b""
        self._flushed = b""
        self._flush_error: FlushFailed | None = None

    def move_mark(self, *, flushed_offset: int = 0, queues_offset: int = 0, entries: int = 0) -> None:
        """Move the mark on; neither offset ever goes back. The syncs of log and queues call it from two threads."""
        with self._mark_lock:
            known = self.mark or FlushMark(0, 0)
            flushed = max(known.flushed_offset, flushed_offset)
            if queues_offset and queues_offset >= known.queues_offset:
                self.mark = FlushMark(flushed, queues_offset, entries & 0xFFFF_FFFF)
            else:
                self.mark = known._replace(flushed_offset=flushed)

    @property
    def min_timestamp_ms(self) -> int:
        """Store time before which log and queues are certain, with three seconds to spare."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - _MARGIN_MS)

    def load(self) -> bool:
        """Read the file; False, with all marks zero, if there is none (or a start was killed making it).

        Raises:
            ForeignFile: it has another length than a checkpoint.
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
        if self.mark is None:
            return fields
        covered = fields + _MARK.pack(_MARK_MAGIC, *self.mark)
        return covered + _CRC.pack(crc32(covered))

    def write(self) -> None:
        """Write the marks as they are now, without waiting for the disk: a killed process leaves them behind.

        Raises:
            DiskFull: the file could not be made or written.
            OSError: it could not be opened, for want of descriptors for example; nothing has changed.
        """
        with self._lock:
            self._write()

    def _write(self) -> None:
        data = self._encode()
        if data == self._written:
            return
        if self._fd is None:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A new file appears with all its bytes in one write: a kill leaves it empty or whole.
        is_new = not self._written
        write_all(self._fd, data.ljust(CHECKPOINT_BYTES, b"\0") if is_new else data, 0, self.path)
        self._written = data

    def flush(self) -> None:
        """Write the marks as they are now and bring them to the disk; nothing is done if they are there already.

        Blocks; a second call waits for the first. The system tells of a failed sync once: were two to run at a time,
        one of them would take for written what is lost.

        Raises:
            DiskFull: the file could not be made or written.
            FlushFailed: the sync failed, now or earlier; final.
            OSError: it could not be opened, for want of descriptors for example; the call may be repeated.
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
                    raise  # it is the directory that could not be opened
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
    if magic != _MARK_MAGIC or crc != crc32(data[:_CRC_AT]):
        return None
    return FlushMark(*values)


MARK_AT = _FIELDS.size
"""Where our mark lies in the file."""
MARK_CRC_AT = _CRC_AT
"""Where the checksum of everything before it lies."""
MARK_END = _CRC_AT + _CRC.size
"""Where the mark ends; zeros follow."""
