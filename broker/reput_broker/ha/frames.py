"""The bytes between a master and a slave (RocketMQ: DefaultHAConnection, DefaultHAClient).

Slave to master, 8 bytes: the log offset up to which the slave has the log. The transfer begins at the first one. A
slave of a Reput master first sends two more: -1 less its number, and the epoch of the master whose history it has
compared with its own. So a master that has restarted meanwhile, perhaps with a shorter log, notices it.

Master to slave: i64 log offset, i32 length, and that number of bytes of the log. The length is 0 in a heartbeat. A
frame never spans two files of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reput_protocol.errors import ReputError

HEADER: Final = struct.Struct(">qi")
REPORT: Final = struct.Struct(">q")
_HELLO: Final = struct.Struct(">qq")


class HAProtocolError(ReputError):
    """The peer of a replication connection sent something that it must not send. The connection ends."""


class Hello(NamedTuple):
    """The identity that a Reput slave sends before its first report."""

    member: int
    """Its number in the group."""
    epoch: int
    """The epoch of the master that it has compared its history with."""


def encode_hello(hello: Hello) -> bytes:
    """Return the bytes before the first report."""
    return _HELLO.pack(-1 - hello.member, hello.epoch)


class ReportReader:
    """Reads what a slave sends, in pieces of any size."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        """Set if it is a Reput slave."""
        self._rest = b""
        self._has_begun = False

    def feed(self, data: bytes) -> list[int]:
        """Return the reports that are now complete. `hello` is set before the first one.

        Raises:
            HAProtocolError: a report is negative.
        """
        data = self._rest + data
        if not self._has_begun and len(data) >= REPORT.size and REPORT.unpack_from(data)[0] < 0:
            if len(data) < _HELLO.size:
                self._rest = data
                return []
            number, epoch = _HELLO.unpack_from(data)
            self.hello = Hello(-1 - number, epoch)
            data = data[_HELLO.size :]
            self._has_begun = True
        size = len(data) // REPORT.size * REPORT.size
        reports = [offset for (offset,) in REPORT.iter_unpack(data[:size])]
        self._rest = data[size:]
        self._has_begun = self._has_begun or bool(reports)
        if reports and min(reports) < 0:
            raise HAProtocolError(f"it reports log offset {min(reports)}, which is negative")
        return reports


class LogPiece(NamedTuple):
    """Some bytes of the log, a part of a frame or all of it."""

    offset: int
    data: memoryview
    """Valid until the next `feed`."""


@dataclass(eq=False, repr=False)
class TransferReader:
    """Reads what a master sends, in pieces of any size, without collecting frames.

    Args:
        file_size: of the files of the log.
        offset: where the first frame must begin; None for any start of a file, because the slave has nothing.
    """

    _file_size: int
    offset: int | None
    """Where the next bytes belong."""
    _header: bytes = field(default=b"", init=False)
    _left: int = field(default=0, init=False)

    def feed(self, data: bytes) -> Iterator[LogPiece]:
        """Yield the bytes of the log in `data`, in order.

        Raises:
            HAProtocolError: a frame does not continue the log, or its length is not possible.
        """
        view = memoryview(data)
        at = 0
        while at < len(view):
            if not self._left:
                wanted = HEADER.size - len(self._header)
                self._header += bytes(view[at : at + wanted])
                at += wanted
                if len(self._header) < HEADER.size:
                    return
                self._begin(*HEADER.unpack(self._header))
                self._header = b""
                continue
            piece = view[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            assert self.offset is not None, "a header has set it"
            offset, self.offset = self.offset, self.offset + len(piece)
            yield LogPiece(offset, piece)

    def _begin(self, offset: int, length: int) -> None:
        if self.offset is None:
            if offset < 0 or offset % self._file_size:
                raise HAProtocolError(
                    f"it begins at log offset {offset}, where no file of {self._file_size} bytes starts; "
                    "set store.commit_log_file_size to the same on both"
                )
            self.offset = offset
        if offset != self.offset:
            raise HAProtocolError(f"it sends the log from offset {offset} on, but this log continues at {self.offset}")
        left = self._file_size - offset % self._file_size
        if not 0 <= length <= left:
            raise HAProtocolError(
                f"it announces {length} bytes at log offset {offset}, where {left} are left in the file"
            )
        self._left = length
