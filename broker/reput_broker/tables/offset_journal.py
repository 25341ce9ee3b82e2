"""The journal of offset commits: the changes since `consumerOffset.json` was last written.

A commit is acknowledged once one `write` has appended its record. It then survives `kill -9`; a crash of the machine
can lose the commits since the last JSON file or `sync`. All numbers are big-endian:

    header   8s  magic "ReputOJ1"
             q   size    \\
             I   crc32    } of the JSON file that this journal continues; all 0 if there is none
             q   counter /  (its dataVersion.counter)
             q   sequence of the first record
             I   crc32 of the 36 bytes above

    record   H   magic 0xC0FE
             H   size of the record in bytes
             B   kind: 1 commit, 2 topic removed, 3 group removed
             B   bytes of the group's name
             B   bytes of the topic's name
             x
             i   queue id
             q   offset: the next one to consume
             q   sequence: one more than the record before
             ..  group, topic (UTF-8)
             I   crc32 of everything above

The header ties a journal to one JSON file. If another broker (RocketMQ, say) has written that file since, the commits
are older than the file or belong to another history, and are not applied.

An incomplete record at the end is what a kill during `write` leaves; it was never acknowledged and is dropped. A bad
record with good ones after it is damage, and is reported as such.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.file_io import sync_data
from reput_protocol.errors import ReputError
from reput_protocol.kernel.records import crc32

_HEADER = struct.Struct(">8sqIqq")
_CRC = struct.Struct(">I")
_RECORD = struct.Struct(">HHBBBxiqq")
_MAGIC = b"ReputOJ1"
_RECORD_MAGIC = 0xC0FE
_RECORD_MARK = _RECORD_MAGIC.to_bytes(2, "big")
HEADER_BYTES = _HEADER.size + _CRC.size

COMMIT = 1
TOPIC_REMOVED = 2
GROUP_REMOVED = 3


class JournalIdentity(NamedTuple):
    """The JSON file that a journal continues."""

    size: int
    crc: int
    counter: int

    @classmethod
    def of(cls, data: bytes, counter: int) -> JournalIdentity:
        """Return the identity of the file with these bytes; no bytes stand for no file."""
        return cls(len(data), crc32(data), counter if data else 0)


class JournalEntry(NamedTuple):
    """One change; members that a kind does not use are empty or 0."""

    kind: int
    group: str
    topic: str
    queue_id: int
    offset: int


class JournalContents(NamedTuple):
    """The content of a journal."""

    identity: JournalIdentity
    entries: list[JournalEntry]
    next_sequence: int
    end: int
    """Where the last good record ends."""
    torn_bytes: int
    """Bytes after `end`: a record that was being written when the broker was killed."""
    damaged_at: int | None
    """The position of the first bad record that has good ones after it; `entries` has those too."""
    damaged: int
    """How many places with bad records have good ones after them."""


class JournalUnreadable(ReputError):
    """A file is not a journal: too short, another magic, or a header that fails its check."""


class JournalWriteFailed(ReputError):
    """A commit could not be written, so it is not acknowledged and nothing changed.

    `disk_full`: whether the cause is a full disk, which can clear by itself.
    """

    def __init__(self, path: Path, error: OSError | None) -> None:
        reason = (
            "an earlier write or sync has failed; it is replaced at the next save"
            if error is None
            else error.strerror or error
        )
        super().__init__(f"{path} cannot be written: {reason}; the offset is not committed")
        self.path = path
        self.disk_full = error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT)


def encode_entry(entry: JournalEntry, sequence: int) -> bytes:
    """Return one record. Topic and group names have at most 255 bytes, which was checked when they were created."""
    group, topic = entry.group.encode(), entry.topic.encode()
    size = _RECORD.size + len(group) + len(topic) + _CRC.size
    head = _RECORD.pack(_RECORD_MAGIC, size, entry.kind, len(group), len(topic), entry.queue_id, entry.offset, sequence)
    data = head + group + topic
    return data + _CRC.pack(crc32(data))


def read_journal(path: Path) -> JournalContents:
    """Read a whole journal.

    Raises:
        JournalUnreadable: it is not a journal.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    if len(data) < HEADER_BYTES:
        raise JournalUnreadable(f"{path} has {len(data)} bytes, less than a header")
    magic, size, crc, counter, sequence = _HEADER.unpack_from(data)
    (header_crc,) = _CRC.unpack_from(data, _HEADER.size)
    if magic != _MAGIC or header_crc != crc32(data[: _HEADER.size]):
        raise JournalUnreadable(f"{path} does not begin with a journal's header")
    entries: list[JournalEntry] = []
    position = end = HEADER_BYTES
    damaged_at: int | None = None
    damaged = 0
    while position < len(data):
        record = _decode_entry(data, position, sequence)
        if record is None:
            position = data.find(_RECORD_MARK, position + 1)
            if position < 0:
                break
            continue
        if position != end:
            damaged += 1
            damaged_at = end if damaged_at is None else damaged_at
        entry, record_sequence, record_size = record
        entries.append(entry)
        sequence = record_sequence + 1
        position = end = position + record_size
    return JournalContents(
        JournalIdentity(size, crc, counter), entries, sequence, end, len(data) - end, damaged_at, damaged
    )


def _decode_entry(data: bytes, position: int, sequence_min: int) -> tuple[JournalEntry, int, int] | None:
    if position + _RECORD.size + _CRC.size > len(data):
        return None
    magic, size, kind, group_size, topic_size, queue_id, offset, sequence = _RECORD.unpack_from(data, position)
    names = position + _RECORD.size
    crc_at = names + group_size + topic_size
    if (
        magic != _RECORD_MAGIC
        or size != crc_at + _CRC.size - position
        or position + size > len(data)
        or sequence < sequence_min
        or _CRC.unpack_from(data, crc_at)[0] != crc32(data[position:crc_at])
    ):
        return None
    group = data[names : names + group_size].decode()
    topic = data[names + group_size : crc_at].decode()
    return JournalEntry(kind, group, topic, queue_id, offset), sequence, size


class OffsetJournal:
    """The journal that is being written, by one writer.

    Opening it truncates a torn record at its end, and may raise OSError.

    Attributes:
        size_b: bytes of good records, with the header.
    """

    def __init__(self, path: Path, next_sequence: int, size_b: int) -> None:
        self.path = path
        self.next_sequence = next_sequence
        self.size_b = size_b
        self._torn = False
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        if os.fstat(self._fd).st_size != size_b:
            os.ftruncate(self._fd, size_b)

    @classmethod
    def create(cls, path: Path, identity: JournalIdentity, next_sequence: int) -> OffsetJournal:
        """Create an empty journal that continues the JSON file `identity`, and sync it. Blocks. Raises OSError."""
        header = _HEADER.pack(_MAGIC, *identity, next_sequence)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, header + _CRC.pack(crc32(header)))
            os.fsync(fd)
        finally:
            os.close(fd)
        return cls(path, next_sequence, HEADER_BYTES)

    def append(self, entries: Sequence[JournalEntry]) -> bytes:
        """Write the entries with one `write` and return their records, which then survive the process.

        Raises:
            JournalWriteFailed: none of them is in the journal.
        """
        records = b"".join(encode_entry(entry, sequence) for sequence, entry in enumerate(entries, self.next_sequence))
        self.append_records(records, len(entries))
        return records

    def append_records(self, records: bytes, count: int) -> None:
        """Write `count` encoded records whose sequences begin at `next_sequence`; see `append`."""
        if self._torn:
            raise JournalWriteFailed(self.path, None)
        try:
            os.fspath(self.path)  # which checks that the journal is still there (store/opening/lock.py)
            written = os.write(self._fd, records)
            if written != len(records):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._truncate_torn_record()
            raise JournalWriteFailed(self.path, error) from error
        self.size_b += written
        self.next_sequence += count

    def sync(self) -> None:
        """Make all records durable. Blocks: for a worker thread; `close` may not be called meanwhile.

        Raises:
            JournalWriteFailed: what survives a crash of the machine is unknown, and this journal takes no more records.
        """
        try:
            if not self._torn:
                sync_data(self._fd)
                return
        except OSError as error:
            self._torn = True  # another sync may succeed without the pages that this one has lost
            raise JournalWriteFailed(self.path, error) from error
        raise JournalWriteFailed(self.path, None)

    def rename(self, path: Path) -> None:
        """Rename the file, replacing a file of that name. Raises OSError."""
        os.replace(self.path, path)
        self.path = path

    def close(self) -> None:
        """Close the file; its records stay. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _truncate_torn_record(self) -> None:
        # A torn record in the middle would hide the later ones from a reader that stops at it.
        try:
            os.ftruncate(self._fd, self.size_b)
        except OSError:
            self._torn = True
