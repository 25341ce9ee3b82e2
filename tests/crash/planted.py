"""Bugs to plant in the broker, so that the checker can prove that it would notice them.

Each function changes the running program before it starts to serve. None of this is reachable from the product.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
import zlib
from typing import Any, Final

from support.planted_bugs import Bug, table_of

_rng = random.Random(7)
_BODY_AT = 88


def early_ack() -> None:
    """a put may be acknowledged before its bytes are in the log"""
    from reput_broker.store.log.mapped_file import MappedFile

    real = MappedFile.write_published

    def late(self: MappedFile, data: Any) -> int:
        """Take the place at once, but let the bytes follow a little later."""
        if _rng.random() < 0.5:
            return real(self, data)
        base = self.wrote_position
        content = bytes(data)
        position = real(self, bytes(len(content)))

        def write() -> None:
            time.sleep(0.05)
            with open(self.path, "r+b") as file:
                file.seek(base)
                file.write(content)

        threading.Thread(target=write, daemon=True).start()
        return position

    MappedFile.write_published = late  # type: ignore[method-assign]


def skipped_sync() -> None:
    """most syncs of the commit log are claimed but not done"""
    real = os.fdatasync

    def lazy(fd: int) -> None:
        if "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}") and _rng.random() < 0.8:
            return
        real(fd)

    os.fdatasync = lazy  # type: ignore[assignment]


def lost_queue_unit() -> None:
    """now and then a message gets no unit in its ConsumeQueue"""
    from reput_broker.store.queue.consume_queue import ConsumeQueue

    real = ConsumeQueue._append

    def forgetful(self: ConsumeQueue, expected: int, data: bytes | bytearray, max_physical_offset: int) -> None:
        if len(data) > 20 and _rng.random() < 0.1:
            data = data[:-20] + bytes(20)
        real(self, expected, data, max_physical_offset)

    ConsumeQueue._append = forgetful  # type: ignore[method-assign]


def early_offset_commit() -> None:
    """offset commits are acknowledged without being written anywhere but in memory"""
    from reput_broker.tables.offset_journal import OffsetJournal

    def pretend(self: OffsetJournal, entries: Any) -> bytes:
        del self, entries
        return b""

    OffsetJournal.append = pretend  # type: ignore[method-assign]


def changed_byte() -> None:
    """now and then one byte of a body changes after it was checked, checksum and all"""
    from reput_broker.store.log.mapped_file import MappedFile

    real = MappedFile.write_published

    def careless(self: MappedFile, data: Any) -> int:
        if len(data) > _BODY_AT + 40 and _rng.random() < 0.005:
            data = bytearray(data)
            data[_BODY_AT + 36] ^= 1
            (size,) = struct.unpack_from(">i", data, _BODY_AT - 4)
            struct.pack_into(">I", data, 8, zlib.crc32(data[_BODY_AT : _BODY_AT + size]) & 0x7FFFFFFF)
        return real(self, data)

    MappedFile.write_published = careless  # type: ignore[method-assign]


BUGS: Final = table_of(map(Bug, (early_ack, skipped_sync, lost_queue_unit, early_offset_commit, changed_byte)))
