"""How far the timer has come: `config/timercheck`, 4096 bytes (RocketMQ: TimerCheckpoint).

    position  0       8       16      24      32      40      48      56
              +-------+-------+-------+-------+-------+-------+-------+
              | i64   | i64   | i64   | i64   | i64   | i64   | i64   |  big-endian
              +-------+-------+-------+-------+-------+-------+-------+
              read    timer   queue   master  state   time of counter
              time    log     offset  queue   version change
                      flushed         offset

    position  56      64      72      80     84                  84 + 12 n
              +-------+-------+-------+------+-------------------+------+
              | 8 B   | i64   | i64   | u32  | n of (i64, u32)   | u32  |  ours, big-endian, then zeros
              +-------+-------+-------+------+-------------------+------+
              RPUT    replay  the     n      start of a file of  CRC
              TIME    from    counter        the timer log, CRC

Every slot before the read time is finished; every message of the timer's queue before the queue offset
has its unit before the position up to which the timer log is flushed. Our mark adds the log offset
behind which the delivered copies of unfinished slots are, checksums of the newest files of the timer
log, and a checksum of everything before it. RocketMQ keeps the mark and never reads it: after RocketMQ
has used the directory its counter differs and the mark is void. If the counter is the same and the
checksum is wrong, the file is damaged.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from reput_broker.store.base.errors import FlushFailed, ForeignFile
from reput_broker.store.base.file_io import make_directories, sync_directory, write_all

TIMERCHECK_BYTES = 4096
_FIELDS = struct.Struct(">qqqqqqq")
_MARK = struct.Struct(">8sqqI")
_FILE = struct.Struct(">qI")
_CRC = struct.Struct(">I")
_MARK_MAGIC = b"RPUTTIME"
_FILES_AT = _FIELDS.size + _MARK.size
_SECTOR_BYTES = 512
FILES_MAX = (_SECTOR_BYTES - _FILES_AT - _CRC.size) // _FILE.size
"""How many timer log files have a checksum: everything must fit into one sector, which a power loss does not tear."""

FileDigests = tuple[tuple[int, int], ...]
"""For each file of the timer log the position of its first unit and a checksum of its units."""


class TimerCheckDamaged(Exception):
    """The checksum is wrong: the timer's files must be rebuilt from the log."""


class TimerProgress(NamedTuple):
    """The content of the file."""

    read_ms: int = 0
    """Time of the first unfinished slot."""
    log_position: int = 0
    """The timer log is flushed up to here."""
    queue_offset: int = 0
    """The first message of the timer's queue that has no unit before that position."""
    replay_from: int | None = None
    """Copies of messages in unfinished slots are in the log from here on; None if RocketMQ wrote the file."""
    digests: FileDigests = ()
    """Checksums of the newest files of the timer log up to that position."""


class TimerCheckpoint:
    """The file. `save` may run in a worker thread, one call at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counter = 0
        self._written: TimerProgress | None = None

    def load(self) -> TimerProgress | None:
        """Read the file; None if it is missing, empty or zeros: a kill or power loss at its creation leaves that.

        Raises:
            ForeignFile: it has another length.
            TimerCheckDamaged: nothing in it can be trusted.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if data in (b"", bytes(TIMERCHECK_BYTES)):
            return None
        if len(data) != TIMERCHECK_BYTES:
            raise ForeignFile(
                self.path,
                f"it has {len(data)} bytes and a timer's checkpoint has {TIMERCHECK_BYTES}; "
                "move it away to have it rebuilt from the log",
            )
        read_ms, log_position, queue_offset, _, _, _, self._counter = _FIELDS.unpack_from(data)
        magic, replay_from, counter, count = _MARK.unpack_from(data, _FIELDS.size)
        if magic != _MARK_MAGIC or counter != self._counter:
            return TimerProgress(read_ms, log_position, queue_offset)
        crc_at = _FILES_AT + _FILE.size * count
        if count > FILES_MAX or _CRC.unpack_from(data, crc_at)[0] != crc32(data[:crc_at]):
            raise TimerCheckDamaged
        digests = tuple(_FILE.iter_unpack(data[_FILES_AT:crc_at]))
        return TimerProgress(read_ms, log_position, queue_offset, replay_from, digests)

    def head(self, progress: TimerProgress, now_ms: int) -> bytes:
        """Return RocketMQ's part of the file for `progress` (RocketMQ: TimerCheckpoint.encode)."""
        return _FIELDS.pack(*progress[:3], progress.queue_offset, 0, now_ms, self._counter)

    def save(self, progress: TimerProgress, now_ms: int) -> None:
        """Write and sync the file unless its content is the same. Blocks.

        Everything that the progress states must have been flushed before.

        Raises:
            DiskFull: the file could not be made or written.
            FlushFailed: the sync failed.
        """
        if progress == self._written:
            return
        assert progress.replay_from is not None
        self._counter += 1
        digests = progress.digests
        assert len(digests) <= FILES_MAX
        covered = self.head(progress, now_ms)
        covered += _MARK.pack(_MARK_MAGIC, progress.replay_from, self._counter, len(digests))
        covered += b"".join(_FILE.pack(*digest) for digest in digests)
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
        self._written = progress
