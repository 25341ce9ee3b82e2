"""How far the timer has come: `config/timercheck`, 4096 bytes (RocketMQ: TimerCheckpoint).

    position  0       8       16      24      32      40      48      56      64      72   76
              +-------+-------+-------+-------+-------+-------+-------+-------+-------+----+
              | i64   | i64   | i64   | i64   | i64   | i64   | i64   | 8 B   | i64   | u32|  big-endian, then zeros
              +-------+-------+-------+-------+-------+-------+-------+-------+-------+----+
              read    timer   queue   master  state   time of counter RPUT    replay  CRC
              time    log     offset  queue   version change          TIME    from
                      flushed         offset

Every slot before the read time is done with; every message of the timer's queue before the queue offset has its unit
before the position up to which the timer log is flushed. Our mark adds the log offset behind which every copy lies that
was delivered of what is not done with, and a checksum over everything before it. RocketMQ leaves the mark as it is and
never reads it: once it has worked in the directory, the checksum does not fit and the mark is void.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from reput_broker.store.errors import FlushFailed, ForeignFile
from reput_broker.store.file_io import make_directories, sync_directory, write_all

TIMERCHECK_BYTES = 4096
_FIELDS = struct.Struct(">qqqqqqq")
_MARK = struct.Struct(">8sq")
_CRC = struct.Struct(">I")
_MARK_MAGIC = b"RPUTTIME"
_CRC_AT = _FIELDS.size + _MARK.size


class TimerProgress(NamedTuple):
    """What the file says."""

    read_ms: int = 0
    """Time of the first slot that is not done with."""
    log_position: int = 0
    """The timer log is on the disk up to here."""
    queue_offset: int = 0
    """The first message of the timer's queue that has no unit before that position."""
    replay_from: int | None = None
    """Copies of what is not done with lie in the log from here on; None if RocketMQ wrote the file."""


class TimerCheckpoint:
    """The file. `save` may run in a worker thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counter = 0
        self._written = b""

    def load(self) -> TimerProgress | None:
        """Read the file; None if there is none (or a start was killed making it).

        Raises:
            ForeignFile: it has another length.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if not data:
            return None
        if len(data) != TIMERCHECK_BYTES:
            raise ForeignFile(
                self.path,
                f"it has {len(data)} bytes and a timer's checkpoint has {TIMERCHECK_BYTES}; "
                "move it away to have it made again from the log",
            )
        read_ms, log_position, queue_offset, _, _, _, self._counter = _FIELDS.unpack_from(data)
        magic, replay_from = _MARK.unpack_from(data, _FIELDS.size)
        (crc,) = _CRC.unpack_from(data, _CRC_AT)
        is_ours = magic == _MARK_MAGIC and crc == crc32(data[:_CRC_AT])
        return TimerProgress(read_ms, log_position, queue_offset, replay_from if is_ours else None)

    def save(self, progress: TimerProgress, now_ms: int) -> None:
        """Write the file and bring it to the disk; nothing is done if it says so already. Blocks.

        What the progress says must be on the disk before. The bytes that count lie in one sector.

        Raises:
            DiskFull: it could not be made or written.
            FlushFailed: the system could not.
        """
        assert progress.replay_from is not None
        said = _FIELDS.pack(*progress[:3], progress.queue_offset, 0, 0, 0)
        said += _MARK.pack(_MARK_MAGIC, progress.replay_from)
        if said == self._written:
            return
        self._counter += 1
        fields = _FIELDS.pack(*progress[:3], progress.queue_offset, 0, now_ms, self._counter)
        covered = fields + _MARK.pack(_MARK_MAGIC, progress.replay_from)
        data = (covered + _CRC.pack(crc32(covered))).ljust(TIMERCHECK_BYTES, b"\0")
        make_directories(self.path.parent)
        is_new = not self.path.exists()
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data, 0, self.path)
            os.fsync(fd)
        except OSError as error:
            raise FlushFailed(self.path, error) from error
        finally:
            os.close(fd)
        if is_new:
            sync_directory(self.path.parent)
        self._written = said
