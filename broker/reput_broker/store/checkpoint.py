"""How far log, queues and index are known to be on the disk (RocketMQ: StoreCheckpoint).

    position  0         8         16        24        32        40       4096
              +---------+---------+---------+---------+---------+-- ... --+
              | i64     | i64     | i64     | i64     | i64     |  zero   |   big-endian
              +---------+---------+---------+---------+---------+---------+
              physic    logics    index     master    confirm
              msg time  msg time  msg time  flushed   physical
                                            offset    offset

Times are store times in milliseconds. Values that lie too low are safe: recovery then starts further back. The
fields lie in one disk sector, so that an update is either there or not.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from .errors import FlushFailed, ForeignFile
from .file_io import sync_directory, write_all

CHECKPOINT_BYTES = 4096
_FIELDS = struct.Struct(">qqqqq")
_MARGIN_MS = 3000


class StoreCheckpoint:
    """The five marks, in memory and in the file `checkpoint`.

    The owner sets the attributes; `flush` writes them, in a worker thread if wanted. Absent means all zero.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.physic_msg_timestamp_ms = 0
        self.logics_msg_timestamp_ms = 0
        self.index_msg_timestamp_ms = 0
        self.master_flushed_offset = 0
        self.confirm_physical_offset = 0
        self._flushed: tuple[int, ...] | None = None
        self._flush_error: FlushFailed | None = None

    def _values(self) -> tuple[int, int, int, int, int]:
        return (
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )

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
        self._flushed = values if data else None
        return bool(data)

    def flush(self) -> None:
        """Write the marks as they are now and bring them to the disk; nothing is done if they are there already.

        Blocks.

        Raises:
            DiskFull: the file could not be made or written.
            FlushFailed: the sync failed, now or earlier; final.
        """
        if self._flush_error is not None:
            raise self._flush_error
        values = self._values()
        if values == self._flushed:
            return
        is_new = self._flushed is None
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A new file appears with all its bytes in one write: a kill leaves it empty or whole.
            data = _FIELDS.pack(*values)
            write_all(fd, data.ljust(CHECKPOINT_BYTES, b"\0") if is_new else data, 0, self.path)
            os.fsync(fd)
            if is_new:
                sync_directory(self.path.parent)
        except FlushFailed as error:
            self._flush_error = error
            raise
        except OSError as error:
            self._flush_error = FlushFailed(self.path, error)
            raise self._flush_error from error
        finally:
            os.close(fd)
        self._flushed = values
